#include "profiles.hpp"

#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/numbers.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "generation_plan.hpp"
#include "hardware/cluster.hpp"
#include "kernels/types.hpp"
#include "plan/padding.hpp"
#include "plan/shapes.hpp"
#include "profiler/profiler.hpp"

namespace brume::app {
namespace {

/// The shapes that the search of this deck may ask for. Times of groups of other sizes follow from
/// those of the nearest one.
profiler::Shapes training_shapes(const deck::Deck& deck, const model::Config& model) {
  const hardware::Cluster cluster = hardware::cluster(deck.cluster);
  std::set<profiler::Split> splits;
  std::set<int> groups;
  const auto add = [&](const model::Config& of, const deck::SearchKeys& search) {
    for (const plan::StageShape& shape :
         plan::stage_shapes(of, deck.training.global_batch, cluster, 0, search)) {
      splits.insert({.tp = shape.tp,
                     .microbatch = shape.microbatch,
                     .ep = shape.ep,
                     .cp = shape.cp,
                     .gather_keys = shape.gather_keys,
                     .mlp_tiles = shape.mlp_tiles});
      groups.insert({shape.tp, shape.cp});
    }
  };
  add(model, deck.search);
  if (const auto padded = plan::padded_contexts(model, cluster, deck.search))
    add(padded->model, padded->search);
  for (int ranks : divisors(cluster.groups[0].devices())) groups.insert(ranks);
  groups.erase(1);
  profiler::Shapes shapes{.splits = {splits.begin(), splits.end()},
                          .groups = {groups.begin(), groups.end()}};
  const deck::GroupKeys group = deck.cluster.all_groups()[0];
  if (group.disk_gib > 0.0) shapes.scratch = group.scratch;
  return shapes;
}

/// Passes of all lengths of all numbers of ranks that may hold a copy.
profiler::Shapes generation_shapes(const deck::Deck& deck, const model::Config& model) {
  const hardware::NodeGroup nodes = hardware::cluster(deck.cluster).groups[0];
  profiler::Shapes shapes;
  for (const int tp : copy_widths(nodes, deck.search)) {
    if (tp > 1) shapes.groups.push_back(tp);
    for (int tokens = tp; tokens < 2 * longest_pass(nodes.on_device); tokens *= 2)
      shapes.passes.push_back(
          {.model = model::generating(model, {.tokens = tokens, .sequences = tokens, .blocks = 1}),
           .split = {.tp = tp}});
  }
  require(!shapes.passes.empty(), Failure::input,
          "search.tp allows no number of ranks that divides the cluster's {} devices",
          nodes.devices());
  return shapes;
}

profiler::Shapes shapes(const deck::Deck& deck, const model::Config& model, Purpose purpose) {
  return purpose == Purpose::generation ? generation_shapes(deck, model)
                                        : training_shapes(deck, model);
}

hardware::ProfileKey profile_key(comm::Communicator& world, int ranks_per_node,
                                 const deck::Deck& deck, const model::Config& model,
                                 Purpose purpose) {
  return profiler::key(world, ranks_per_node, device::threads_per_rank(ranks_per_node), model,
                       shapes(deck, model, purpose));
}

}  // namespace

Purpose purpose_of(const std::string& name) {
  return name == "generation" ? Purpose::generation : Purpose::training;
}

hardware::Profile measure_profile(comm::Communicator& world, int ranks_per_node,
                                  const deck::Deck& deck, const model::Config& model,
                                  Purpose purpose, double longest_s) {
  require(
      deck.cluster.all_groups().size() == 1, Failure::input,
      "a cluster of several groups cannot be measured at once: give each of [[cluster.groups]] "
      "a deck of its own, measure it with brume profile DECK -o FILE, and name that file as the "
      "group's profile");
  const hardware::ProfileKey key = profile_key(world, ranks_per_node, deck, model, purpose);
  const kernels::Runtime runtime(device::threads_per_rank(ranks_per_node));
  if (world.rank() == 0)
    log::info(
        "measuring this machine for the model ... (to plan for another one, name it by "
        "cluster.machine, or what was measured there by cluster.profile)");
  profiler::Shapes needed = shapes(deck, model, purpose);
  needed.longest_s = longest_s;
  return profiler::measure(world, key, hardware::cluster(deck.cluster), model, needed);
}

namespace {

/// Whether files hold all that is needed. Of several groups the deck names one for each.
bool has_files(const deck::Deck& deck) {
  const auto groups = deck.cluster.all_groups();
  return groups.size() > 1 || !groups[0].profile.empty();
}
bool names_machine(const deck::Deck& deck) { return !deck.cluster.all_groups()[0].machine.empty(); }

/// What rank 0 finds in its cache, for all ranks: another node may see another home directory.
struct Cached {
  std::string text;    ///< of the profile; empty: none
  bool usable = true;  ///< whether the cache takes a new one, as far as is known
};

Cached look_up(const hardware::ProfileKey& key) {
  const std::string path = profiler::cache_path(key);
  try {
    const std::optional<hardware::Profile> found = profiler::cached(key);
    if (!found) return {};
    log::info("profile: {} (cached; delete it to measure again)", path);
    return {.text = hardware::profile_schema().write(*found)};
  } catch (const Error& error) {
    log::warn("profile: {}: measuring again", error.what());
    return {.text = "", .usable = error.failure() != Failure::storage};
  }
}

/// Finds the profile in the cache or measures it.
hardware::Profile find_profile(comm::Communicator& world, int ranks_per_node,
                               const deck::Deck& deck, const model::Config& model, Purpose purpose,
                               double longest_s) {
  const hardware::ProfileKey key = profile_key(world, ranks_per_node, deck, model, purpose);
  const std::string path = profiler::cache_path(key);
  const bool leader = world.rank() == 0;
  const Cached cached = leader ? look_up(key) : Cached();
  const std::string text = comm::broadcast(world, cached.text, 0);
  if (leader && text.empty())
    log::debug(
        "profile: {} is not there, which would be of the same nodes, ranks, libraries and model",
        path);
  hardware::Profile profile;
  if (!text.empty()) {
    profile = hardware::profile_schema().read(deck::Document::parse(text, path));
    if (profile.hosts == profiler::hosts(world, ranks_per_node)) return profile;
    profiler::measure_slow_pairs(world, profile);
  } else {
    profile = measure_profile(world, ranks_per_node, deck, model, purpose, longest_s);
  }
  if (leader && cached.usable) try {
      profiler::cache(profile);
      log::info("profile: measured, kept in {}", path);
    } catch (const Error& error) {
      log::warn("profile: not cached: {}", error.what());
    }
  return profile;
}

/// Warns of guessed times, and refuses operators of other work.
void check_profiles(const hardware::Machine& machine, Purpose purpose) {
  for (int group = 0; group < machine.num_groups(); ++group)
    require(machine.profile(group).generation == 0 || purpose == Purpose::generation,
            Failure::input,
            "profile '{}' has the operators of generation: measure those of a training by brume "
            "profile without --for generation",
            machine.profile(group).title());
  for (int group = 0; group < machine.num_groups(); ++group)
    for (const std::string& line : hardware::stand_ins(machine.profile(group)))
      log::warn("profile: {}", line);
}

}  // namespace

bool leave_out_other_nodes(comm::Communicator& world, int ranks_per_node,
                           hardware::Machine& machine) {
  const hardware::Profile& profile = machine.profile(0);
  if (machine.num_groups() > 1 || profile.hosts.empty()) return false;
  if (profile.hosts == profiler::hosts(world, ranks_per_node)) return false;
  if (world.rank() == 0 && !profile.slow_pairs.empty())
    log::info(
        "profile: which links between nodes are slow was measured on other nodes, and is "
        "left out");
  machine.forget_slow_pairs();
  return true;
}

hardware::Machine obtain_machine(comm::Communicator& world, int ranks_per_node,
                                 const deck::Deck& deck, const model::Config& model,
                                 Purpose purpose, double longest_s) {
  std::optional<hardware::Machine> machine;
  if (has_files(deck)) {
    comm::together(world, [&] { machine = hardware::load_machine(deck.cluster); });
    leave_out_other_nodes(world, ranks_per_node, *machine);
  } else {
    hardware::Profile profile =
        find_profile(world, ranks_per_node, deck, model, purpose, longest_s);
    hardware::set_levels(profile, deck.cluster.all_groups()[0]);
    machine = std::move(profile);
  }
  comm::together(world, [&] {
    if (world.rank() == 0) check_profiles(*machine, purpose);
  });
  return *machine;
}

hardware::Machine obtain_machine_alone(const deck::Deck& deck, const model::Config& model,
                                       Purpose purpose) {
  std::optional<hardware::Machine> machine;
  if (has_files(deck) || names_machine(deck)) {
    machine = hardware::load_machine(deck.cluster);
    check_profiles(*machine, purpose);
    return *machine;
  }
  const int ranks = deck.cluster.all_groups()[0].devices_per_node;
  device::share_cores(ranks);
  comm::run_local(ranks, [&](comm::Communicator& world) {
    device::use_device(world.rank(), world.size());
    constexpr double longest_s = 600.0;
    const hardware::Machine mine =
        obtain_machine(world, world.size(), deck, model, purpose, longest_s);
    if (world.rank() == 0) machine = mine;
  });
  return *machine;
}

}  // namespace brume::app
