/// @file What a block's weights, gradients and update cost beside the passes over its neighbours.
#pragma once

#include "costs.hpp"

namespace brume::analyzer {

/// Seconds of work that a stage does within one window, by channel.
struct Load {
  Expr compute_s = 0.0;  ///< kernels
  Expr tp_s = 0.0;       ///< tensor-parallel collectives between them
  Expr wait_s = 0.0;     ///< of these, what updates and sums can stand beside
  // On the compute channel beside a block's pass:
  Expr copies_s = 0.0;               ///< device's parts of weights to where they are gathered
  Expr moves_s = 0.0;                ///< updates, which what is gathered waits for
  Expr sums_s = 0.0;                 ///< of gradients, once they are reduced
  Expr reduce_s = 0.0;               ///< gradients over dp, before `gather_s` on the same channel
  Expr gather_s = 0.0;               ///< weights over dp
  Expr weights_in_s = 0.0;           ///< copied in before they are gathered
  Expr in_s = 0.0, out_s = 0.0;      ///< other copies
  Expr read_s = 0.0, write_s = 0.0;  ///< on the disk
  Expr host_s = 0.0;                 ///< steps of the node's processor beside a device
  Expr down_s = 0.0;                 ///< of `out_s`, what these wait for

  Load& operator+=(const Load& other);
};
Load operator*(const Expr& factor, const Load& load);
Load operator+(Load a, const Load& b);

/// Time until all of a window's work is done: under interference, or the chains that the next pass
/// waits for.
///
///   moved = copies + moves + sums
///   max(I(compute + max(0, moved - wait), reduce + gather, weights in + in, out),
///       max(weights in, copies, reduce) + moves + max(gather, sums), read + write, host)
///
/// Over tp ranks communicate between their kernels, so transfers stand beside both, and
///
///   I(compute, comm, in, out) + I(0, max(tp, comm'), in', out')
///
/// takes the place of I: the primed ones are what is beside tp, by Costs::compute_share.
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

/// The mean of two blocks. @param share  of the first one
BlockCosts mean(const Expr& share, const BlockCosts& one, const BlockCosts& other);

BlockCosts block_costs(const model::Config& model, const Costs& costs, const model::Block& block);

}  // namespace brume::analyzer
