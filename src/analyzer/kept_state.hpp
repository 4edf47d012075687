/// @file The rules of what a rank keeps of a block (plan/rules.hpp), in the variables of a stage.
#pragma once

#include "costs.hpp"
#include "plan/rules.hpp"

namespace brume::analyzer {

struct KeptState : plan::KeptState<Expr> {
  Expr fetched_grads = 0.0;  ///< on the host, of those that the device steps
};

/// What a rank keeps of one kind of block from step to step.
///
/// @param host_update  whether the node's processor steps any; without it formulas stay shorter
KeptState kept_state(const model::Block& block, bool host_update);

/// The blocks whose sizes a stage's formulas take: a layer of the model for all that have a
/// backward, and the same one frozen for those that have none.
struct StageBlocks {
  explicit StageBlocks(const model::Config& model);
  model::Block embedding, layer, frozen_layer, head;
};

}  // namespace brume::analyzer
