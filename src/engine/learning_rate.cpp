/// @file The learning rate of each step, and the length of steps of matrices.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.hpp"
#include "engine/optimizer.hpp"

namespace brume::engine {

LrSchedule lr_schedule(std::string_view name) {
  if (name == "cosine") return LrSchedule::cosine;
  if (name == "linear") return LrSchedule::linear;
  if (name == "constant") return LrSchedule::constant;
  require(name == "wsd", Failure::input, "'{}' is no schedule of the learning rate", name);
  return LrSchedule::wsd;
}

MatrixScale matrix_scale(std::string_view name) {
  if (name == "moonshot") return MatrixScale::moonshot;
  if (name == "spectral") return MatrixScale::spectral;
  if (name == "jordan") return MatrixScale::jordan;
  require(name == "rms", Failure::input, "'{}' is no scale of steps of matrices", name);
  return MatrixScale::rms;
}

double step_scale(MatrixScale scale, std::int64_t rows, std::int64_t columns) {
  const double ratio = double(rows) / double(columns);
  switch (scale) {
    case MatrixScale::moonshot: return 0.2 * std::sqrt(double(std::max(rows, columns)));
    case MatrixScale::spectral: return std::sqrt(double(std::max(rows, columns)));
    case MatrixScale::jordan: return std::sqrt(std::max(1.0, ratio));
    case MatrixScale::rms: break;
  }
  return std::sqrt(ratio);
}

double learning_rate(const Optimizer& optimizer, std::int64_t step, std::int64_t steps) {
  if (step < optimizer.warmup_steps)
    return optimizer.lr * double(step + 1) / optimizer.warmup_steps;
  std::int64_t first = optimizer.warmup_steps;  // of the decay
  if (optimizer.schedule == LrSchedule::wsd)
    first = steps - 1 - (optimizer.decay_steps > 0 ? optimizer.decay_steps : (steps + 9) / 10);
  const std::int64_t decay_steps = std::max<std::int64_t>(1, steps - 1 - first);
  const double progress = std::clamp(double(step - first) / double(decay_steps), 0.0, 1.0);
  const auto left = [&] {
    switch (optimizer.schedule) {
      case LrSchedule::cosine: return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      case LrSchedule::constant: return 1.0;
      case LrSchedule::linear:
      case LrSchedule::wsd: break;
    }
    return 1.0 - progress;
  };
  return optimizer.lr * (optimizer.min_lr_ratio + (1.0 - optimizer.min_lr_ratio) * left());
}

}  // namespace brume::engine
