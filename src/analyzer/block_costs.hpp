/// @file What a block's weights, gradients and update cost beside the passes over its neighbours.
#pragma once

#include "costs.hpp"

namespace brume::analyzer {

/// Seconds of work that a stage does within one window, by channel.
struct Load {
  Expr compute_s = 0.0;              ///< kernels and tensor-parallel all-reduces
  Expr moves_s = 0.0;                ///< copies and sums within the device, on the compute channel
  Expr reduce_s = 0.0;               ///< gradients over dp, before `gather_s` on the same channel
  Expr gather_s = 0.0;               ///< weights over dp
  Expr messages_s = 0.0;             ///< to and from neighbouring stages
  Expr weights_in_s = 0.0;           ///< copied in before they are gathered
  Expr in_s = 0.0, out_s = 0.0;      ///< other copies
  Expr read_s = 0.0, write_s = 0.0;  ///< on the disk

  Load& operator+=(const Load& other);
};
Load operator*(const Expr& factor, const Load& load);

/// Time until all of a window's work is done: under interference, or the chains that the next pass
/// waits for.
///
///   max(I(compute + moves, reduce + gather + messages, weights in + in, out),
///       max(weights in, reduce) + gather + moves, read + write)
Expr window(const Costs& costs, const Load& load);

/// One block's state on its way, in the windows of src/schedule/README.md. Loads of weights belong
/// beside the pass before their block's, those of gradients beside the pass after it.
struct BlockCosts {
  Load update;        ///< of a first microbatch
  Load weights;       ///< of a later pass: brought together when staged
  Load kept_grads;    ///< earlier microbatches' part comes from the host, beside the block's pass
  Load grads;         ///< of a microbatch but the last, when staged
  Load last_grads;    ///< of the last microbatch
  Expr grads_staged;  ///< whether a backward writes a buffer of its own
};

BlockCosts block_costs(const model::Config& model, const Costs& costs, const model::Block& block);

}  // namespace brume::analyzer
