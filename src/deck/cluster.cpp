#include "cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "deck/machine.hpp"

namespace brume::deck {
namespace {

constexpr const char* memory_help =
    "device memory that a plan may use; default on this machine: that of the GPU, or an equal "
    "share per rank of a third of installed memory";
constexpr const char* host_memory_help =
    "CPU memory per node for offloading; checkpoint copies use the rest; default on this machine: "
    "a third of installed memory";

}  // namespace

const Schema<LevelKeys>& level_schema() {
  static const auto schema = [] {
    return Schema<LevelKeys>()
        .key("nodes", &LevelKeys::nodes,
             {.help = "nodes of a unit, numbered one after the other",
              .required = true,
              .min = 1,
              .max = 100000})
        .key("oversubscription", &LevelKeys::oversubscription,
             {.help = "bandwidth of a unit's nodes together, over that to other units",
              .min = 1,
              .max = 1000})
        .key("hop_s", &LevelKeys::hop_s,
             {.unit = "s",
              .help = "hop between units, in addition to one between nodes",
              .min = 0,
              .max = 1});
  }();
  return schema;
}

void check_levels(const std::vector<LevelKeys>& levels, const std::string& where) {
  for (std::size_t i = 1; i < levels.size(); ++i)
    require(levels[i].nodes > levels[i - 1].nodes && levels[i].nodes % levels[i - 1].nodes == 0,
            Failure::input,
            "{}: each of the levels must have a multiple of the nodes of the one before, found {} "
            "after {}",
            where, levels[i].nodes, levels[i - 1].nodes);
}

namespace {

/// The keys of a group; `required`: none of them may be left out.
template <typename T>
Schema<T>& add_group_keys(Schema<T>& schema, bool required) {
  const auto member = [](auto GroupKeys::*of_group) {
    return static_cast<std::remove_reference_t<decltype(std::declval<T&>().*of_group)> T::*>(
        of_group);
  };
  return schema
      .key("nodes", member(&GroupKeys::nodes), {.help = "number of nodes", .min = 1, .max = 100000})
      .key("devices_per_node", member(&GroupKeys::devices_per_node),
           {.help = "GPUs per node, or ranks on CPU-only nodes", .min = 1, .max = 1024})
      .key("memory_gib", member(&GroupKeys::memory_gib),
           {.unit = "GiB",
            .help = memory_help,
            .required = required,
            .min = 0.001,
            .max = 1e6,
            .if_given = true,
            .aliases = {"device_memory_gib"}})
      .key("host_memory_gib", member(&GroupKeys::host_memory_gib),
           {.unit = "GiB",
            .help = host_memory_help,
            .required = required,
            .min = 0,
            .max = 1e6,
            .if_given = true})
      .key("disk_gib", member(&GroupKeys::disk_gib),
           {.unit = "GiB",
            .help = "disk per node for offloaded optimizer state and activations; 0: no disk",
            .min = 0,
            .max = 1e9})
      .key("scratch", member(&GroupKeys::scratch),
           {.help = "directory on that disk; empty: $TMPDIR, otherwise /tmp"})
      .key("profile", member(&GroupKeys::profile),
           {.help = "measured times: name of a shipped profile, or a file relative to the deck or "
                    "the working directory; empty: measured and cached"})
      .key("machine", member(&GroupKeys::machine),
           {.help = "shipped machine, for example dgx-h100; supplies the keys above that are not "
                    "set and, without a profile, the times",
            .if_given = true})
      .key("network", member(&GroupKeys::network),
           {.help = "shipped network between nodes, for example 8x400g, instead of the machine's",
            .if_given = true})
      .tables("levels", member(&GroupKeys::levels), level_schema(),
              "Levels of the network between nodes, the smallest units first");
}

const Schema<GroupKeys>& group_schema() {
  static const auto schema = [] {
    Schema<GroupKeys> s;
    s.key("name", &GroupKeys::name, {.help = "name of the group in plans"});
    return add_group_keys(s, true);
  }();
  return schema;
}

const Schema<LinkKeys>& link_schema() {
  static const auto schema = [] {
    return Schema<LinkKeys>()
        .key("between", &LinkKeys::between, {.help = "names of two groups", .required = true})
        .key("gib_per_s", &LinkKeys::gib_per_s,
             {.unit = "GiB/s",
              .help = "bandwidth of a message between two devices",
              .required = true,
              .min = 1e-6,
              .max = 1e6})
        .key("latency_s", &LinkKeys::latency_s,
             {.unit = "s", .help = "latency of a message", .min = 0, .max = 60});
  }();
  return schema;
}

}  // namespace

const Schema<ClusterKeys>& cluster_schema() {
  static const auto schema = [] {
    Schema<ClusterKeys> s;
    return add_group_keys(s, false)
        .tables("groups", &ClusterKeys::groups, group_schema(),
                "Groups of equal nodes, instead of the keys above")
        .tables("links", &ClusterKeys::links, link_schema(),
                "Links between groups; default: the slower of both groups' networks");
  }();
  return schema;
}

namespace {

/// One group by the keys of [cluster], which then must be given.
void check_single_group(const ClusterKeys& cluster, const Document& document) {
  const std::pair<const char*, const char*> required[] = {{"memory_gib", memory_help},
                                                          {"host_memory_gib", host_memory_help}};
  for (const auto& [name, help] : required)
    require(document.has(std::string("cluster.") + name), Failure::input,
            "{}: table 'cluster': missing key '{}': {}", document.where("cluster"), name, help);
  const Checker check(document);
  check(cluster.links.empty(), "cluster.links", "needs [[cluster.groups]] to be between");
}

std::size_t group_at(const ClusterKeys& cluster, const std::string& name) {
  return std::size_t(std::ranges::find(cluster.groups, name, &GroupKeys::name) -
                     cluster.groups.begin());
}

void check_links(const ClusterKeys& cluster, const Checker& check) {
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    const auto& between = cluster.links[i].between;
    const std::string path = fmt::format("cluster.links.{}.between", i);
    check(between.size() == 2 && between[0] != between[1], path,
          "must name two groups, as in [\"a\", \"b\"]");
    for (const std::string& name : between)
      check(group_at(cluster, name) < cluster.groups.size(), path,
            fmt::format("names '{}', which is no group of [[cluster.groups]]", name));
    for (std::size_t j = 0; j < i; ++j)
      check(!std::ranges::is_permutation(between, cluster.links[j].between), path,
            "names two groups that have a link already");
  }
}

}  // namespace

void set_machine_keys(Document& document) {
  const auto set = [&](const std::string& table) {
    const std::optional<std::string> name = document.word(table + ".machine");
    if (!name || name->empty()) return;
    const MachineKeys machine = load_machine(*name);
    const auto unless_given = [&](const char* key, auto value) {
      if (!document.has(table + "." + key))
        document.set(fmt::format("{}.{}={}", table, key, value));
    };
    unless_given("devices_per_node", machine.devices_per_node);
    unless_given("memory_gib", machine.memory_gib);
    unless_given("host_memory_gib", machine.host_memory_gib);
  };
  if (!document.has("cluster.groups")) return set("cluster");
  for (std::size_t i = 0; document.has(fmt::format("cluster.groups.{}", i)); ++i)
    set(fmt::format("cluster.groups.{}", i));
}

void check_cluster(const ClusterKeys& cluster, const Document& document, bool mist) {
  const Checker check(document);
  for (const GroupKeys& group : cluster.all_groups()) {
    check(group.network.empty() || !group.machine.empty(), "cluster",
          "has a network but no machine that it would belong to");
    check_levels(group.levels, document.where("cluster"));
  }
  if (cluster.groups.empty()) return check_single_group(cluster, document);
  check(cluster.nodes == 1 && cluster.devices_per_node == 1, "cluster.groups",
        "have nodes and devices_per_node of their own: leave those of [cluster] out");
  for (const char* key : {"cluster.memory_gib", "cluster.host_memory_gib"})
    check(!document.has(key), key, "belongs into each of [[cluster.groups]]");
  check(cluster.profile.empty(), "cluster.profile", "belongs into each of [[cluster.groups]]");
  check(cluster.machine.empty(), "cluster.machine", "belongs into each of [[cluster.groups]]");
  check(cluster.network.empty(), "cluster.network", "belongs into each of [[cluster.groups]]");
  check(cluster.levels.empty(), "cluster.levels", "belong into each of [[cluster.groups]]");
  check(cluster.disk_gib == 0.0, "cluster.disk_gib", "belongs into each of [[cluster.groups]]");
  check(cluster.scratch.empty(), "cluster.scratch", "belongs into each of [[cluster.groups]]");
  if (cluster.groups.size() == 1) return;
  check(!mist, "cluster.groups", "must be one group for analysis.conventions = \"mist\"");
  check(cluster.groups.size() <= most_groups, "cluster.groups",
        fmt::format("may be at most {}, found {}", most_groups, cluster.groups.size()));
  for (std::size_t i = 0; i < cluster.groups.size(); ++i) {
    const GroupKeys& group = cluster.groups[i];
    const std::string path = fmt::format("cluster.groups.{}", i);
    check(!group.name.empty(), path, "needs a name, as one of several groups");
    check(group_at(cluster, group.name) == i, path + ".name",
          fmt::format("must differ from other groups' names, found '{}' again", group.name));
    check(!group.profile.empty() || !group.machine.empty(), path,
          fmt::format("needs a profile or a machine, as one of several groups: name one that comes "
                      "with brume, "
                      "or measure '{}' by a deck of its own with brume profile DECK -o FILE",
                      group.name));
  }
  check_links(cluster, check);
}

}  // namespace brume::deck
