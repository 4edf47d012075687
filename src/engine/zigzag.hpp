/// @file The tokens of a sequence that a rank has.
#pragma once

#include "kernels/types.hpp"
#include "plan/plan.hpp"

namespace brume::engine {

/// The rows of ranks that gather keys; without a cut where ranks exchange heads, or have all
/// tokens.
inline kernels::Zigzag zigzag(const plan::Stage& stage, int seq_len, int cp_rank) {
  if (stage.gather_keys == 0) return {};
  return {.ranks = stage.cp, .rank = cp_rank, .chunk = seq_len / (2 * stage.cp)};
}

}  // namespace brume::engine
