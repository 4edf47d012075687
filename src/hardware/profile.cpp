#include "hardware/profile.hpp"

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/machine.hpp"

namespace brume::hardware {
namespace {

// What no machine shows. Within these, no sum or product that a prediction makes overflows.
constexpr double most_s = 1e6, most_per_s = 1e24, most_slowdown = 1e6;

deck::Schema<ProfileKey> key_schema() {
  deck::Schema<ProfileKey> schema;
  schema.key("processor", &ProfileKey::processor, {.help = "CPU or GPU"})
      .key("packages", &ProfileKey::packages, {.help = "versions that affect speed"})
      .key("ranks_per_node", &ProfileKey::ranks_per_node, {.help = "ranks on each node", .min = 1})
      .key("threads_per_rank", &ProfileKey::threads_per_rank,
           {.help = "threads that compute", .min = 1})
      .key("binding", &ProfileKey::binding, {.help = "how ranks are pinned"})
      .key("model", &ProfileKey::model, {.help = "shapes that were measured"});
  return schema;
}

deck::Schema<OperatorRow> operator_schema() {
  deck::Schema<OperatorRow> schema;
  schema.key("kind", &OperatorRow::kind, {.help = "kind of operator", .required = true})
      .key("dims", &OperatorRow::dims,
           {.help = "sizes of the operator", .required = true, .min = 0})
      .key("group", &OperatorRow::group,
           {.help = "ranks it was measured as a part of; 0: none", .min = 0})
      .key("forward_s", &OperatorRow::forward_s,
           {.unit = "s", .help = "forward", .required = true, .min = 0, .max = most_s})
      .key("backward_s", &OperatorRow::backward_s,
           {.unit = "s", .help = "backward", .min = 0, .max = most_s});
  return schema;
}

deck::Schema<GroupInterference> group_interference_schema() {
  deck::Schema<GroupInterference> schema;
  schema.key("nodes", &GroupInterference::nodes, {.help = "nodes the group spans", .min = 1})
      .key("ranks_per_node", &GroupInterference::ranks_per_node,
           {.help = "ranks of the group on each", .min = 1})
      .key("added", &GroupInterference::added,
           {.help = "as interference", .required = true, .min = 0, .max = most_slowdown});
  return schema;
}

std::vector<std::string> names(const auto& kinds) {
  std::vector<std::string> words;
  for (const auto kind : kinds) words.emplace_back(name(kind));
  return words;
}

deck::Schema<LinkRow> link_schema() {
  deck::Schema<LinkRow> schema;
  schema
      .key("kind", &LinkRow::kind,
           {.help = "collective or message", .required = true, .choices = names(all_links)})
      .key("nodes", &LinkRow::nodes, {.help = "nodes the group spans", .min = 1})
      .key("ranks_per_node", &LinkRow::ranks_per_node,
           {.help = "ranks of the group on each", .min = 1})
      .key("bytes", &LinkRow::bytes,
           {.unit = "bytes", .help = "whole buffer", .required = true, .min = 1})
      .key("time_s", &LinkRow::time_s,
           {.unit = "s", .help = "measured", .required = true, .min = 0, .max = most_s});
  return schema;
}

deck::Schema<WaitRow> wait_schema() {
  deck::Schema<WaitRow> schema;
  schema.key("ranks", &WaitRow::ranks, {.help = "that meet", .required = true, .min = 2})
      .key("share", &WaitRow::share,
           {.help = "extra time of the slowest rank, as a share of a computation",
            .required = true,
            .min = 0,
            .max = most_slowdown});
  return schema;
}

deck::Schema<CopyRow> copy_schema() {
  deck::Schema<CopyRow> schema;
  schema
      .key("kind", &CopyRow::kind,
           {.help = "direction", .required = true, .choices = names(all_copies)})
      .key("bytes", &CopyRow::bytes, {.unit = "bytes", .help = "size", .required = true, .min = 1})
      .key("time_s", &CopyRow::time_s,
           {.unit = "s", .help = "measured", .required = true, .min = 0, .max = most_s});
  return schema;
}

deck::Schema<EfficiencyRow> efficiency_schema() {
  deck::Schema<EfficiencyRow> schema;
  schema.key("kind", &EfficiencyRow::kind, {.help = "kind of operator", .required = true})
      .key("size", &EfficiencyRow::size,
           {.help = "size of the operator; 0: any", .min = 0, .max = 1e18, .if_not_least = true})
      .key("efficiency", &EfficiencyRow::efficiency,
           {.help = "share of flops_per_s and bytes_per_s",
            .required = true,
            .min = 1e-6,
            .max = most_slowdown});
  return schema;
}

deck::Schema<TransferRow> transfer_schema() {
  deck::Schema<TransferRow> schema;
  schema
      .key("kind", &TransferRow::kind,
           {.help = "kind of transfer",
            .required = true,
            .choices = {"collective", "copy_in", "copy_out", "disk_read", "disk_write"}})
      .key("nodes", &TransferRow::nodes, {.help = "nodes the group spans", .min = 1})
      .key("ranks_per_node", &TransferRow::ranks_per_node,
           {.help = "ranks of the group on each node", .min = 1})
      .key("gib_per_s", &TransferRow::gib_per_s,
           {.unit = "GiB/s", .help = "rate", .required = true, .min = 1e-9, .max = most_per_s})
      .key("latency_s", &TransferRow::latency_s,
           {.unit = "s", .help = "latency", .min = 0, .max = most_s});
  return schema;
}

deck::Schema<NetworkRow> network_schema() {
  deck::Schema<NetworkRow> schema;
  schema
      .key("span", &NetworkRow::span,
           {.help = "between the devices of a node, or between the nodes of a cluster",
            .required = true,
            .choices = {"node", "cluster"}})
      .key("gib_per_s", &NetworkRow::gib_per_s,
           {.unit = "GiB/s",
            .help = "bandwidth in one direction, per device or per node",
            .required = true,
            .min = 1e-9,
            .max = most_per_s})
      .key("peer_gib_per_s", &NetworkRow::peer_gib_per_s,
           {.unit = "GiB/s",
            .help = "largest bandwidth to one peer; 0: all",
            .min = 0,
            .max = most_per_s})
      .key("start_s", &NetworkRow::start_s,
           {.unit = "s", .help = "start of a collective or message", .min = 0, .max = most_s})
      .key("hop_s", &NetworkRow::hop_s,
           {.unit = "s", .help = "hop to the next rank", .min = 0, .max = most_s});
  return schema;
}

deck::Schema<SlowPair> slow_pair_schema() {
  deck::Schema<SlowPair> schema;
  schema
      .key("first", &SlowPair::first,
           {.help = "node, by its position in the group", .required = true, .min = 0})
      .key("second", &SlowPair::second, {.help = "the other node", .required = true, .min = 0})
      .key("times", &SlowPair::times,
           {.help = "slowdown against most node pairs",
            .required = true,
            .min = 1,
            .max = most_slowdown});
  return schema;
}

deck::Schema<ProfileOrigins> origins_schema() {
  deck::Schema<ProfileOrigins> schema;
  schema.key("operators", &ProfileOrigins::operators, {.help = "source of the operator rows"})
      .key("rates", &ProfileOrigins::rates, {.help = "source of flops_per_s and bytes_per_s"})
      .key("efficiencies", &ProfileOrigins::efficiencies, {.help = "source of the efficiencies"})
      .key("transfers", &ProfileOrigins::transfers,
           {.help = "source of links, copies and transfers"})
      .key("interference", &ProfileOrigins::interference, {.help = "source of the slowdowns"});
  return schema;
}

}  // namespace

void check_sizes(const Profile& profile, const std::string& path) {
  require(profile.interference.size() == num_resources * num_resources, Failure::input,
          "{}: interference needs {} numbers, found {}", path, num_resources * num_resources,
          profile.interference.size());
  for (const GroupInterference& group : profile.group_interference)
    require(group.added.size() == num_resources * num_resources, Failure::input,
            "{}: group_interference of {} x {} needs {} numbers, found {}", path, group.nodes,
            group.ranks_per_node, num_resources * num_resources, group.added.size());
  constexpr std::size_t num_slowdowns = 28;
  require(profile.slowdowns.empty() || profile.slowdowns.size() == num_slowdowns, Failure::input,
          "{}: slowdowns need {} numbers or none, found {}", path, num_slowdowns,
          profile.slowdowns.size());
  deck::check_levels(profile.levels, path);
}

const deck::Schema<Profile>& profile_schema() {
  static const deck::Schema<Profile> schema = [] {
    deck::Schema<Profile> s;
    s.table("key", &Profile::key, key_schema(), "machine and model for which the profile is valid")
        .key("origin", &Profile::origin, {.help = "who measured, and when"})
        .key("generation", &Profile::generation,
             {.help = "1: operators of generation, which cannot plan a training",
              .min = 0,
              .max = 1,
              .if_not_least = true})
        .key("flops_per_s", &Profile::flops_per_s,
             {.unit = "1/s",
              .help = "speed of a large matrix product, per rank",
              .min = 0,
              .max = most_per_s})
        .key("fp32_flops_per_s", &Profile::fp32_flops_per_s,
             {.unit = "1/s",
              .help = "speed of a large fp32 product, per rank; 0: flops_per_s",
              .min = 0,
              .max = most_per_s,
              .if_not_least = true})
        .key("fp8_flops_per_s", &Profile::fp8_flops_per_s,
             {.unit = "1/s",
              .help = "speed of a large 8-bit product, per rank; 0: flops_per_s",
              .min = 0,
              .max = most_per_s,
              .if_not_least = true})
        .key("bytes_per_s", &Profile::bytes_per_s,
             {.unit = "bytes/s", .help = "memory bandwidth, per rank", .min = 0, .max = most_per_s})
        .key("host_updates_per_s", &Profile::host_updates_per_s,
             {.unit = "1/s",
              .help = "parameters that the CPU updates next to a device, per rank; 0: none",
              .min = 0,
              .max = most_per_s,
              .if_not_least = true})
        .key("task_overhead_s", &Profile::task_overhead_s,
             {.unit = "s", .help = "time to hand over a task", .min = 0, .max = most_s})
        .key("launch_s", &Profile::launch_s,
             {.unit = "s",
              .help = "least time between the starts of two kernels",
              .min = 0,
              .max = most_s,
              .if_not_least = true})
        .key("error", &Profile::error,
             {.help = "expected relative error of predicted times",
              .min = 0,
              .max = 10,
              .if_not_least = true})
        .key("reserved_bytes", &Profile::reserved_bytes,
             {.unit = "bytes",
              .help = "device memory of libraries and driver, in addition to a plan",
              .min = 1,
              .if_given = true})
        .key("interference", &Profile::interference,
             {.help =
                  "slowdown of compute, communication, copy in, copy out by each other, row by row",
              .min = 0,
              .max = most_slowdown})
        .key("slowdowns", &Profile::slowdowns,
             {.help = "factors of sets of resources (conventions mist)",
              .min = 0,
              .max = most_slowdown})
        .key("hosts", &Profile::hosts,
             {.help = "nodes of slow_pairs, in order; none: any", .if_given = true})
        .table("origins", &Profile::origins, origins_schema(), "sources")
        .tables("operators", &Profile::operators, operator_schema(), "measured operators")
        .tables("links", &Profile::links, link_schema(), "measured collectives and messages")
        .tables("waits", &Profile::waits, wait_schema(), "waits for the slowest rank of a group")
        .tables("copies", &Profile::copies, copy_schema(), "measured host-device copies")
        .tables("transfers", &Profile::transfers, transfer_schema(),
                "transfers by rate and latency")
        .tables("networks", &Profile::networks, network_schema(), "networks by rate and hops")
        .tables("levels", &Profile::levels, deck::level_schema(), "levels of the network")
        .tables("slow_pairs", &Profile::slow_pairs, slow_pair_schema(),
                "node pairs with slower transfers than the rows above")
        .tables("group_interference", &Profile::group_interference, group_interference_schema(),
                "interference with collectives of one group shape")
        .tables("efficiencies", &Profile::efficiencies, efficiency_schema(),
                "efficiencies for kinds without a measured row");
    return s;
  }();
  return schema;
}

Profile load_profile(const std::string& name) {
  const std::string path = deck::shipped_path(deck::Shipped::profile, name);
  Profile profile = profile_schema().read(deck::Document::load(path));
  check_sizes(profile, path);
  profile.file = name;
  return profile;
}

void save_profile(const Profile& profile, const std::string& path) {
  write_file(path, profile_schema().write(profile));
}

}  // namespace brume::hardware
