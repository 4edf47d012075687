/// @file Keys that go from the ranks of one plan of a copy to those of another.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::engine {

/// The key heads of a layer on a rank. Latent features count as one head.
struct KeyHeads {
  int first = 0, count = 1;
  bool cut = false;              ///< otherwise each rank of the stage has all heads
  std::int64_t block_bytes = 0;  ///< bytes of a head's keys in a block; values are as many

  /// @param tp_rank  among the tensor-parallel ranks of the stage
  /// @param model    Config::generates()
  KeyHeads(const plan::Stage& stage, int tp_rank, const model::Config& model);
};

/// Key heads of a layer that a rank of a copy has by one plan, and a rank needs by another.
struct KeyMove {
  int layer;
  int head, heads;
  int from, to;  ///< numbers in the copy
};

/// Moves of all layers, in rounds: the first layers of all stages of `from`, so that all ranks
/// send, then their second ones. Ranks that have the same heads take turns in giving them.
///
/// @param from, to  plans that `generating` returned, with as many ranks in a copy
std::vector<std::vector<KeyMove>> key_rounds(const plan::Plan& from, const plan::Plan& to,
                                             const model::Config& model);

/// The most bytes of a block's keys and values that a rank of the copy sends to others, or gets.
double moved_block_bytes(const plan::Plan& from, const plan::Plan& to, const model::Config& model);

/// Ranks of a plan, copy by copy.
std::vector<int> ranks_by_copy(const plan::Plan& plan);

}  // namespace brume::engine
