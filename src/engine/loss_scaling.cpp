#include "engine/loss_scaling.hpp"

#include <algorithm>

namespace brume::engine {

LossScaling after_step(const LossScaling& before, bool finite) {
  if (!finite) return {std::max(before.scale / 2.0, least_loss_scale), 0};
  if (before.good_steps + 1 < steps_before_growth) return {before.scale, before.good_steps + 1};
  return {std::min(before.scale * 2.0, largest_loss_scale), 0};
}

}  // namespace brume::engine
