/// @file Compute-only lower bound on every plan's simulated time.
#pragma once

#include <vector>

#include "hardware/machine.hpp"
#include "space.hpp"

namespace brume::tuner {

/// Seconds that no plan of these configurations is simulated below, whatever it overlaps and saves:
/// its kernels' own times, each part of the model in the layout that is best for it, on devices
/// that never wait.
///
///   min over configurations of  B / devices  sum over parts of  min over layouts of  tp / b  (F +
///   B)(b, tp)
///
/// Layers keep all tensors for their backward. Recomputation, updates, transfers, interference and
/// the pipeline's fill come on top.
double least_work_s(const std::vector<PipelineConfig>& configs, const model::Config& model,
                    int global_batch, const hardware::Cluster& cluster,
                    const hardware::Machine& machine);

}  // namespace brume::tuner
