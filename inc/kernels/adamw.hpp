/// @file AdamW, one pass over weights, gradient and moments.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// Constants of one optimizer step.
struct AdamW {
  float lr;
  double beta1;  ///< double, because 1 - beta is rounded to fp32 only once
  double beta2;
  float eps;
  float weight_decay;       ///< 0 for parameters that do not decay
  float bias_correction1;   ///< 1 - beta1^t, t = 1 in the parameter's first update
  float bias_correction2;   ///< 1 - beta2^t
  double clip_norm;         ///< largest norm of the whole gradient; 0: no clipping
  double loss_scale = 1.0;  ///< S, a power of two: the gradients are so many times too large
};

/// g = grad / S min(1, clip_norm / (sqrt(squares) / S + 1e-6))
/// m = b1 m + (1 - b1) g
/// v = b2 v + (1 - b2) g^2
/// w = w - lr weight_decay w - lr (m / c1) / (sqrt(v / c2) + eps)
///
/// @param squares  one number: the sum of the squares of the whole gradient, S^2 times too large;
///                 without clipping not read
/// @source  Loshchilov and Hutter 2019, algorithm 2; order of operations as torch.optim.AdamW
void adamw_step(const AdamW& step, const double* squares, ConstVector grad, Vector weight, Vector m,
                Vector v);

/// The same on fp32 master weights; `weight` becomes their rounded copy that layers compute with.
template <Narrow Storage>
void adamw_step(const AdamW& step, const double* squares, ConstVector grad, Vector master, Vector m,
                Vector v, VectorOf<Storage> weight);

/// Both by the node's processor, in host memory, also where `adamw_step` is a device's: the same
/// bits, because neither fuses a product with a sum, and roots and quotients are rounded exactly.
void adamw_step_on_host(const AdamW& step, const double* squares, ConstVector grad, Vector weight,
                        Vector m, Vector v);
template <Narrow Storage>
void adamw_step_on_host(const AdamW& step, const double* squares, ConstVector grad, Vector master,
                        Vector m, Vector v, VectorOf<Storage> weight);

}  // namespace brume::kernels
