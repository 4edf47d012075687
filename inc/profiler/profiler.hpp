/// @file Measures this machine for a model: operators, links, copies, interference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/numbers.hpp"
#include "comm/communicator.hpp"
#include "hardware/cluster.hpp"
#include "hardware/profile.hpp"
#include "model/model.hpp"

namespace brume::profiler {

using model::Split;

/// A pass of a model that generates, Config::generates(), and the part of it that a rank computes.
struct Pass {
  model::Config model;
  Split split;
};

/// Shapes that a search may need: the profiler measures these and no others.
struct Shapes {
  std::vector<Split> splits;  ///< the parts that a training computes
  std::vector<Pass> passes = {};
  std::vector<int> groups;                            ///< ranks of collectives, from 2 to all
  std::optional<std::string> scratch = std::nullopt;  ///< directory on the disk; none: no disk
  double longest_s = infinity;  ///< a measurement that takes longer is refused
};

/// The key of a profile of this machine, model and rank count. Collective over `world`.
hardware::ProfileKey key(comm::Communicator& world, int ranks_per_node, int threads_per_rank,
                         const model::Config& model, const Shapes& shapes);

/// Measures. Collective over `world`: all ranks work at the same time, as they do in training, and
/// find operands in memory rather than in a cache. What works alone is measured in three rounds, or
/// in those that begin within ten seconds; each figure is their median.
/// A measurement that fails costs its own entry only, and is named in the log.
/// @throws Error(input) where it would take longer than it may
hardware::Profile measure(comm::Communicator& world, const hardware::ProfileKey& key,
                          const hardware::Cluster& cluster, const model::Config& model,
                          const Shapes& shapes);

/// The hosts of a job's nodes in their order; none where there is no more than one link between
/// them, or they have unlike numbers of ranks. Collective over `world`.
std::vector<std::string> hosts(comm::Communicator& world, int ranks_per_node);

/// Measures anew which pairs of nodes are slow: other jobs have other nodes. Collective over
/// `world`.
void measure_slow_pairs(comm::Communicator& world, hardware::Profile& profile);

/// 64-bit FNV-1a over all fields of the key.
std::uint64_t hash(const hardware::ProfileKey& key);

/// The path of the cached profile with this key: $XDG_CACHE_HOME or ~/.cache, then
/// brume/profile-<hash>.toml.
std::string cache_path(const hardware::ProfileKey& key);

/// Saves a profile at its cache path and makes the folders, the last one for this user alone.
/// @throws Error(storage)  also where the folder is not this user's, or others may write to it
void cache(const hardware::Profile& profile);

/// The profile that is cached for this key; nothing where none is.
///
/// @throws Error(input)    when the file cannot be read, or holds another key
/// @throws Error(storage)  when the file or its folder is not this user's, or others may write to
///                         it: they could have planted it
std::optional<hardware::Profile> cached(const hardware::ProfileKey& key);

}  // namespace brume::profiler
