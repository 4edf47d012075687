/// @file How long messages between pipeline stages take, whose b, dp and tp may differ.
#pragma once

#include <functional>
#include <vector>

#include "analyzer/pipeline_time.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::analyzer {

/// Whether the i-th rank of one stage and the j-th of another are on the same node.
using SameNode = std::function<bool(int, int)>;

/// Seconds until a microbatch's stream has passed from one stage to another, or its gradient back:
/// each rank sends and receives its messages one after the other, and the busiest one counts.
double stream_s(const model::Config& model, const hardware::Machine& machine,
                const plan::Stage& from, const plan::Stage& to, const SameNode& same_node);

/// Seconds of the messages of a tied head between a first and a last stage, adding the gradients
/// that come home included.
TiedTimes tied_s(const model::Config& model, const hardware::Machine& machine,
                 const plan::Stage& first, const plan::Stage& last, const SameNode& same_node);

/// The pipeline's messages as the plan's ranks stand on their nodes.
void add_messages(const plan::Plan& plan, const model::Config& model,
                  const hardware::Machine& machine, Pipeline& pipeline);

}  // namespace brume::analyzer
