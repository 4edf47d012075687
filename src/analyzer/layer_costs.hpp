/// @file What one layer's passes cost.
#pragma once

#include "costs.hpp"

namespace brume::analyzer {

/// A layer's passes: compute, exposed collectives over tp and cp, activation copies.
struct LayerCosts {
  Expr forward_s, backward_s;        ///< compute
  Expr forward_tp_s, backward_tp_s;  ///< collectives
  Expr backward_wait_s;              ///< ... beside which sums of gradients can stand
  Expr hidden_tp_s;        ///< how much of them hides behind a recompute that needs no gradient yet
  Expr recompute_ahead_s;  ///< what a backward recomputes before it needs such a gradient
  Expr inputs_tp_s;        ///< collectives that bring inputs of a backward together beside compute
  Expr ahead_tp_s;         ///< of these, what may be done beside the block before
  Expr beside_forward_s, beside_backward_s;  ///< what gathering the next block's input adds to the
                                             ///< pass's last segment
  Expr out_s, in_s;                          ///< copies of what is offloaded
  Expr write_s, read_s;                      ///< of this, what lies on disk
};
LayerCosts select(const Expr& condition, const LayerCosts& yes, const LayerCosts& no);

/// The mean over the model's layers, where these differ in kind.
/// @param dense  share of layers without experts where others have them
/// @param ahead  1 where the first input of a backward is brought together beside the block before
LayerCosts layer_costs(const model::Config& model, const Costs& costs, model::Recompute recompute,
                       const Expr& dense, const Expr& ahead);

/// 1 where that is so, as a norm waits for no weights and no offloaded input.
///
/// @param moves  whether the layer may be offloaded
Expr brings_ahead(const model::Config& model, const model::Block& layer, bool host_update,
                  bool moves);

/// Bytes of a layer's saved tensors that activation offload moves, as plan::moved_tensors has it.
/// @param ratio  act_offload_ratio; act_disk_ratio for those on disk
Expr moved_bytes(const model::Config& model, model::Recompute recompute, const StageRole& role,
                 const Expr& ratio);

}  // namespace brume::analyzer
