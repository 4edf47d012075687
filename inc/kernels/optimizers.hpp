/// @file Updates by optimizers, one pass over weights, gradient and optimizer state.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <variant>

#include "base/moments.hpp"
#include "base/narrow.hpp"
#include "base/quantization.hpp"

namespace brume::kernels {

/// Constants of one update of a parameter. Each optimizer reads those that it needs.
struct Update {
  float lr;
  double beta1;  ///< double, because 1 - beta is rounded to fp32 only once
  double beta2;
  float eps;
  float weight_decay;       ///< 0 for parameters that do not decay
  double t = 1.0;           ///< number of the parameter's update, from 1 on
  double clip_norm = 0.0;   ///< largest norm of the whole gradient; 0: no clipping
  double loss_scale = 1.0;  ///< S, a power of two: the gradients are so many times too large
  double momentum = 0.95;   ///< Muon's, of whole matrices
  bool nesterov = true;     ///< ... and steps look ahead
};

inline constexpr int most_state_fields = 4;

/// Numbers of a parameter's elements in the model, whatever part of it is updated.
struct ElementNumbers {
  std::int64_t first = 0;   ///< element i is number first + i of a piece
  std::int64_t before = 0;  ///< number in the model of the piece's first element
  /// The piece has runs of so many elements, each `stride` elements behind the one before; 0: one
  /// run.
  std::int64_t run = 0, stride = 0;

  constexpr std::int64_t operator()(std::int64_t i) const {
    const std::int64_t k = first + i;
    return before + (run == 0 ? k : k / run * stride + k % run);
  }
  /// End of element i's run: up to there numbers follow each other.
  constexpr std::int64_t end_of_run(std::int64_t i) const {
    return run == 0 ? std::numeric_limits<std::int64_t>::max() : i + run - (first + i) % run;
  }
};

/// Elements of one parameter, and all that their update reads and writes.
struct UpdatedElements {
  std::int64_t count = 0;
  const float* grad = nullptr;
  float* weight = nullptr;                       ///< master weight below fp32
  std::array<void*, most_state_fields> state{};  ///< fields as the optimizer's row lists them
  std::array<Quantization, most_state_fields> formats{};  ///< formats of blocks, by Moments::fp8
  /// Copy of the master weight that layers compute with; a null float* in fp32.
  std::variant<float*, bfloat16*, float16*> rounded{};
  ElementNumbers numbers{};  ///< roundings of moments depend on them

  template <class Element>
  Element* field(std::size_t i) const {
    return static_cast<Element*>(state[i]);
  }
};

/// @param squares  one number: the sum of the squares of the whole gradient, S^2 times too large;
///                 without clipping not read
using UpdateKernel = void (*)(const Update& update, const double* squares,
                              const UpdatedElements& elements);

/// Kernels of one optimizer.
struct UpdateKernels {
  UpdateKernel here;
  /// The same by the node's processor, in host memory, also if `here` is a device's: the same bits,
  /// because neither fuses a product with a sum, and roots and quotients are rounded exactly.
  UpdateKernel on_host;
};

/// "adamw":
///
/// g = grad / S min(1, clip_norm / (sqrt(squares) / S + 1e-6))
/// m = b1 m + (1 - b1) g
/// v = b2 v + (1 - b2) g^2
/// w = w - lr weight_decay w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
///
/// @source  Loshchilov and Hutter 2019, algorithm 2; order of operations as torch.optim.AdamW
///
/// "lion":
///
/// w = w - lr weight_decay w - lr sign(b1 m + (1 - b1) g)
/// m = b2 m + (1 - b2) g
///
/// @source  Chen et al. 2023, algorithm 2
///
/// "sgd", whose weight decay is part of the gradient:
///
/// m = b1 m + g + weight_decay w
/// w = w - lr m
///
/// @source  order of operations as torch.optim.SGD with momentum
/// Moments in bf16 and in 8 bits are rounded by chance, so that they stay right on average where a
/// step changes them by less than a rounding: up with the probability (x - below) / (above -
/// below), by a number that follows from the update's t, the element's number and the field. In 8
/// bits elements are whole blocks, and the largest of a block, its scale, stays exact.
///
/// @throws Error(bug) for an optimizer without kernels
UpdateKernels update_kernels(std::string_view optimizer, Moments moments = Moments::fp32);

}  // namespace brume::kernels
