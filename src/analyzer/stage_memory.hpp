/// @file Peak memory of a stage as expressions: the live bytes of schedule's Programs in closed
/// form.
#pragma once

#include "state_memory.hpp"

namespace brume::analyzer {

struct MemoryExpressions {
  Expr peak_forward_bytes;   ///< device, over forward passes and updates
  Expr peak_backward_bytes;  ///< device, over backward passes
  Expr host_bytes;
  Expr disk_bytes;
  Expr persistent_bytes;  ///< of the device, from step to step
  Expr kept_bytes;        ///< ... by a microbatch between its forward and its backward
};

/// Device bytes that a stage keeps from step to step.
Expr persistent_bytes(const model::Config& model, StageRole role, const StateMemory& state);

MemoryExpressions stage_memory(const model::Config& model, StageRole role);

/// The same for a stage without layers.
MemoryExpressions lone_block_memory(const model::Config& model, StageRole role);

}  // namespace brume::analyzer
