/// @file Which parameters are not finite, and on which ranks.
#pragma once

#include "comm/communicator.hpp"
#include "engine/engine.hpp"
#include "model/model.hpp"

namespace brume::app {

/// Says in the log of rank 0 where a step's loss or gradient norm ceased to be finite: at the
/// first weight in the order of a forward or, where all weights are finite, at the first gradient
/// in the order of a backward, for what comes after it is spoilt by it. Collective.
void report_nonfinite(engine::Engine& engine, const model::Config& model,
                      comm::Communicator& world);

}  // namespace brume::app
