/// @file Whether ranks that must hold the same weights do: memory and processors err silently.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "engine/engine.hpp"
#include "plan/plan.hpp"

namespace brume::engine {

/// A parameter whose copies differ.
struct Difference {
  std::string parameter;
  std::vector<std::vector<int>> ranks;  ///< groups of ranks with equal copies, the largest first
};

/// Compares, by hash, the weights of which each data-parallel rank holds a copy: those of stages
/// with ZeRO levels below 3. Collective over the plan's ranks; not while a step runs.
///
/// @return the first parameter of the first stage where a copy differs, on all ranks alike
std::optional<Difference> compare_replicas(Engine& engine, const plan::Plan& plan,
                                           comm::Communicator& world);

}  // namespace brume::engine
