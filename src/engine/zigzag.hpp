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

/// The place in its sequence of a rank's row, of a microbatch.
inline int position(const plan::Stage& stage, int seq_len, int cp_rank, int row) {
  if (stage.gather_keys == 1) return zigzag(stage, seq_len, cp_rank).position(row);
  return (cp_rank * (seq_len / stage.cp) + row) % seq_len;
}

}  // namespace brume::engine
