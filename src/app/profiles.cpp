#include "profiles.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "device/memory.hpp"
#include "hardware/cluster.hpp"
#include "kernels/types.hpp"
#include "profiler/profiler.hpp"

namespace brume::app {
namespace {

std::vector<int> divisors(int number, int limit) {
  std::vector<int> found;
  for (int d = 1; d <= std::min(number, limit); ++d)
    if (number % d == 0) found.push_back(d);
  return found;
}

/// The shapes the search of this deck may ask for.
profiler::Shapes shapes(const deck::Deck& deck, const model::Config& model) {
  profiler::Shapes shapes;
  shapes.microbatches = deck.search.microbatch.empty() ? divisors(deck.training.global_batch, 32)
                                                       : deck.search.microbatch;
  const int devices = deck.cluster.nodes * deck.cluster.devices_per_node;
  for (int tp :
       deck.search.tp.empty() ? divisors(devices, deck.cluster.devices_per_node) : deck.search.tp)
    if (model.num_heads % tp == 0 && model.ffn_size % tp == 0) shapes.tp.push_back(tp);
  for (int group : divisors(devices, devices))
    if (group > 1) shapes.groups.push_back(group);
  return shapes;
}

hardware::ProfileKey profile_key(comm::Communicator& world, int ranks_per_node,
                                 const deck::Deck& deck, const model::Config& model) {
  return profiler::key(world, ranks_per_node, threads_per_rank(ranks_per_node), model,
                       shapes(deck, model));
}

}  // namespace

int threads_per_rank(int ranks_per_node) {
  const device::Processor processor = device::this_processor();
  return std::max(1, std::min(processor.cores, processor.node_cores / ranks_per_node));
}

int first_core(int ranks_per_node, int node_rank) {
  const device::Processor processor = device::this_processor();
  const bool bound = processor.cores < processor.node_cores;
  return bound || ranks_per_node > processor.node_cores
             ? -1
             : node_rank * threads_per_rank(ranks_per_node);
}

hardware::Profile measure_profile(comm::Communicator& world, int ranks_per_node,
                                  const deck::Deck& deck, const model::Config& model) {
  const hardware::ProfileKey key = profile_key(world, ranks_per_node, deck, model);
  const kernels::Runtime runtime(threads_per_rank(ranks_per_node));
  if (world.rank() == 0) log::info("measuring this machine for the model ...");
  return profiler::measure(world, key, hardware::cluster(deck.cluster), model, shapes(deck, model));
}

namespace {

/// Reads, finds in the cache or measures.
hardware::Profile find_profile(comm::Communicator& world, int ranks_per_node,
                               const deck::Deck& deck, const model::Config& model) {
  hardware::Profile profile;
  if (!deck.cluster.profile.empty()) {
    comm::together(world, [&] { profile = hardware::load_profile(deck.cluster.profile); });
    return profile;
  }
  const hardware::ProfileKey key = profile_key(world, ranks_per_node, deck, model);
  const std::string path = profiler::cache_path(key);
  // Rank 0 decides for all: another node may see another home directory.
  std::string text;
  if (world.rank() == 0 && std::filesystem::exists(path)) try {
      text = hardware::profile_schema().write(hardware::load_profile(path));
      log::info("profile: {} (cached; delete it to measure again)", path);
    } catch (const Error& error) {
      log::warn("profile: {}: measuring again", error.what());
    }
  text = comm::broadcast(world, text, 0);
  if (!text.empty()) return hardware::profile_schema().read(deck::Document::parse(text, path));
  profile = measure_profile(world, ranks_per_node, deck, model);
  if (world.rank() == 0) try {
      profiler::cache(profile);
      log::info("profile: measured, kept in {}", path);
    } catch (const Error& error) {
      log::warn("profile: not cached: {}", error.what());
    }
  return profile;
}

void say_stand_ins(const hardware::Profile& profile) {
  for (const std::string& line : hardware::stand_ins(profile)) log::warn("profile: {}", line);
}

}  // namespace

hardware::Profile obtain_profile(comm::Communicator& world, int ranks_per_node,
                                 const deck::Deck& deck, const model::Config& model) {
  hardware::Profile profile = find_profile(world, ranks_per_node, deck, model);
  if (world.rank() == 0) say_stand_ins(profile);
  return profile;
}

hardware::Profile obtain_profile_alone(const deck::Deck& deck, const model::Config& model) {
  hardware::Profile profile;
  if (!deck.cluster.profile.empty()) {
    profile = hardware::load_profile(deck.cluster.profile);
    say_stand_ins(profile);
    return profile;
  }
  comm::run_local(deck.cluster.devices_per_node, [&](comm::Communicator& world) {
    const hardware::Profile mine = obtain_profile(world, world.size(), deck, model);
    if (world.rank() == 0) profile = mine;
  });
  return profile;
}

}  // namespace brume::app
