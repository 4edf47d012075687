/// @file Root-mean-square normalisation, forward and backward.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// y[n,c] = gain[c] x[n,c] rstd[n],  rstd[n] = 1 / sqrt(mean_c(x[n,c]^2) + eps)
///
/// @param x     [N, C]
/// @param gain  [C]
/// @param y     [N, C]
/// @param rstd  [N] written, kept for backward
/// @source      Zhang and Sennrich 2019, eq. (4); eps as in Llama
void rms_norm_forward(ConstMatrix x, ConstVector gain, float eps, Matrix y, Vector rstd);

/// The same y again from the kept rstd: backward needs it and it is cheaper to make than to keep.
void rms_norm_apply(ConstMatrix x, ConstVector gain, ConstVector rstd, Matrix y);

/// dx[n,c] = residual[n,c] + rstd[n] (g - xhat mean_c(g xhat)),  g = dy[n,c] gain[c]
/// dgain[c] = sum_n dy[n,c] xhat[n,c],  xhat = x[n,c] rstd[n]  (+ old values when accumulating)
///
/// @param residual  [N, C] added to dx; an empty view adds nothing. dx may be `dy` or `residual`
///                  itself
void rms_norm_backward(ConstMatrix dy, ConstMatrix x, ConstVector gain, ConstVector rstd,
                       ConstMatrix residual, Matrix dx, Write write, Vector dgain);

}  // namespace brume::kernels
