/// @file The rules of what a rank keeps of a block (plan/rules.hpp), in the variables of a stage.
#pragma once

#include "costs.hpp"
#include "plan/rules.hpp"

namespace brume::analyzer {

using KeptState = plan::KeptState<Expr>;

/// What a rank keeps of one kind of block from step to step, where it is trained and where not.
KeptState kept_state(const model::Block& block, bool trains = true);

}  // namespace brume::analyzer
