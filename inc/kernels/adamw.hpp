/// @file AdamW, one pass over weights, gradient and moments.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// Constants of one optimizer step.
struct AdamW {
  float lr;
  float beta1;
  float beta2;
  float eps;
  float weight_decay;      ///< 0 for parameters that do not decay
  float bias_correction1;  ///< 1 - beta1^t, t = 1 at the first step
  float bias_correction2;  ///< 1 - beta2^t
  float grad_scale;        ///< what the gradient is multiplied by first (clipping)
};

/// g = grad_scale grad;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
/// w = w - lr weight_decay w - lr (m / c1) / (sqrt(v / c2) + eps)
///
/// @source  Loshchilov and Hutter 2019, algorithm 2; order of operations as torch.optim.AdamW
void adamw_step(const AdamW& step, ConstVector grad, Vector weight, Vector m, Vector v);

/// The same on fp32 master weights; `weight` becomes their rounded copy that layers compute with.
void adamw_step(const AdamW& step, ConstVector grad, Vector master, Vector m, Vector v,
                VectorOf<bfloat16> weight);

}  // namespace brume::kernels
