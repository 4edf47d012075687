/// @file Constants of updates, and the learning rate of each step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/optimizers.hpp"
#include "model/parameters.hpp"

namespace brume::engine {

/// How the learning rate goes from the end of the warm-up to the last step.
enum class LrSchedule { cosine, linear, constant, wsd };
/// @throws Error(input) for a name that none of them has
LrSchedule lr_schedule(std::string_view name);

/// The length of a step of a whole matrix over lr, of `rows` outputs and `columns` inputs:
///
///   moonshot  0.2 sqrt(max(rows, columns)): as long as AdamW's steps (Liu et al. 2025)
///   spectral  sqrt(max(rows, columns))
///   jordan    sqrt(max(1, rows / columns)) (Jordan et al. 2024)
///   rms       sqrt(rows / columns) (Bernstein 2025)
enum class MatrixScale { moonshot, spectral, jordan, rms };
/// @throws Error(input) for a name that none of them has
MatrixScale matrix_scale(std::string_view name);
double step_scale(MatrixScale scale, std::int64_t rows, std::int64_t columns);

/// Parameters that are updated in a way of their own.
struct ParameterGroup {
  std::string pattern;    ///< pattern of parameter names, with * ? and [] as in a shell
  double lr_scale = 1.0;  ///< times the learning rate of each step
  /// Weight decay of all matching parameters, norms and biases too.
  std::optional<double> weight_decay = {};
};

/// Constants of updates, and the learning rate's way.
struct Optimizer {
  double lr = 3e-4;
  LrSchedule schedule = LrSchedule::cosine;
  double min_lr_ratio = 0.1;  ///< share of lr at the last step
  int warmup_steps = 0;
  int decay_steps = 0;  ///< wsd (warm-up, stable, decay) only; 0: a tenth of all steps
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< not on norms and biases
  double clip_norm = 1.0;     ///< 0: no clipping
  double momentum = 0.95;     ///< Muon's, of whole matrices
  bool nesterov = true;       ///< ... and steps look ahead
  MatrixScale matrix_scale = MatrixScale::moonshot;
  std::vector<ParameterGroup> groups = {};  ///< a parameter is in the first one that fits
  /// Kernels of the model's optimizer; none: those that kernels::update_kernels has for it.
  std::optional<kernels::UpdateKernels> kernels = {};
};

/// Deviations of one parameter's update from the others.
struct UpdateRule {
  float lr_scale, weight_decay;
};
UpdateRule update_rule(const Optimizer& optimizer, const model::Parameter& parameter);

/// The learning rate of step i of N, with w warm-up and d decay steps and r = min_lr_ratio:
///
///   i < w                lr (i + 1) / w
///   cosine               lr (r + (1 - r) (1 + cos(pi p)) / 2),  p = (i - w) / (N - 1 - w)
///   linear               lr (r + (1 - r) (1 - p))
///   constant             lr
///   wsd                  lr, and the last d steps linear with p = (i - (N - 1 - d)) / d
double learning_rate(const Optimizer& optimizer, std::int64_t step, std::int64_t steps);

}  // namespace brume::engine
