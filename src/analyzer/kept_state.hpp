/// @file The rules of what a rank keeps of a block (plan/rules.hpp), in the variables of a stage.
#pragma once

#include "costs.hpp"
#include "plan/rules.hpp"

namespace brume::analyzer {

struct KeptState : plan::KeptState<Expr> {
  Expr fetched_grads = 0.0;  ///< on the host, of those that the device steps
  Expr dense = 0.0;          ///< model::Layout::dense_elements
  Expr full_state = 0.0;     ///< model::Layout::full_state_elements

  /// Bytes of the optimizer state of the first `elements` of what the first shard keeps.
  Expr optimizer_bytes(const model::Config& model, const Expr& elements) const;
  /// ... of so many before those `behind`, which the range ends with.
  Expr optimizer_bytes_before(const model::Config& model, const Expr& elements,
                              const Expr& behind) const;
};

/// What a rank keeps of one kind of block from step to step.
///
/// @param host_update  whether the node's processor steps any; without it formulas stay shorter
KeptState kept_state(const model::Config& model, const model::Block& block, bool host_update);

/// Device memory for the step of a block's whole matrices.
struct MatrixStepBytes {
  Expr directions = 0.0;  ///< where they are not in the gradients' place
  Expr work = 0.0;        ///< directions of all tp ranks, and products
};
MatrixStepBytes matrix_step_bytes(const model::Config& model, const model::Block& block,
                                  const KeptState& s);

/// The elements of a block's matrices of which tensor-parallel ranks have parts, and what lies
/// between them.
Expr cut_matrix_elements(const model::Block& block);

/// The blocks whose sizes a stage's formulas take: a layer of the model for all that have a
/// backward, one without experts for the first ones where others have them, and a frozen one for
/// layers that have no backward, without experts if the stage has as many such layers.
struct StageBlocks {
  StageBlocks(const model::Config& model, StageRole role);
  model::Block embedding, layer, dense_layer, frozen_layer, head;
};

}  // namespace brume::analyzer
