/// @file Plans whose predictions are compared with measured times.
#pragma once

#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::perf {

inline constexpr int global_batch = 16;

/// Every way to split over `ranks` into equal stages, with each memory knob alone and all together,
/// where stages run further ahead in every other plan; and two stages that are unlike.
std::vector<plan::Plan> plans(const model::Config& model, int ranks);

}  // namespace brume::perf
