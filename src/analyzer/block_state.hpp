/// @file What a rank keeps of a block from step to step, in elements; the rules are
/// src/schedule/README.md's.
#pragma once

#include "costs.hpp"

namespace brume::analyzer {

/// Ranges of one kind of block's flat layout, and the parts of them that are offloaded.
struct BlockState {
  Expr whole;           ///< the block on this tensor-parallel rank
  Expr weights, grads;  ///< kept: all, or the shard
  Expr stepped;         ///< what this rank updates
  Expr host_weights, host_grads;
  Expr offloaded_moments;             ///< to the host and to the disk
  Expr disk_moments;                  ///< of these
  Expr weights_staged, grads_staged;  ///< 1 where kernels work on a buffer of their own
};

/// The ZeRO level that has an effect: 0 where dp is 1.
Expr zero_level(const Variables& v);

BlockState block_state(const model::Block& block);

}  // namespace brume::analyzer
