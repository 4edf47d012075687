/// @file Dynamic scaling of the loss, so that small gradients of activations survive in fp16.
#pragma once

#include <cstdint>

namespace brume::engine {

// S starts where most trainings do and is halved if that is too much. Below 1 it would shrink
// gradients that do not fit unscaled: then the training is at fault. The largest S lets gradients
// of 2^24 tokens a batch use all of fp16, and leaves sums in fp32 far from infinity.
inline constexpr double first_loss_scale = 0x1p16;
inline constexpr double least_loss_scale = 1.0;
inline constexpr double largest_loss_scale = 0x1p40;
inline constexpr std::int64_t steps_before_growth = 2000;

/// Loss scale of the next step. Part of the state of a training.
struct LossScaling {
  double scale = first_loss_scale;  ///< S, a power of two: no bit of a fraction changes with it
  std::int64_t good_steps = 0;      ///< good steps in a row since S changed

  bool operator==(const LossScaling&) const = default;
};

/// The state after a step. Finite gradients keep S, which doubles after so many of them in a row;
/// others halve it. S stays between the least and the largest.
///
/// @source  Micikevicius et al. 2018, 3.2; constants as torch.amp.GradScaler
LossScaling after_step(const LossScaling& before, bool finite);

}  // namespace brume::engine
