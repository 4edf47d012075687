/// @file Layer normalisation, forward and backward.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// y[n,c] = gain[c] (x[n,c] - mean[n]) rstd[n] + bias[c],  rstd[n] = 1 / sqrt(var_c(x[n,c]) + eps)
///
/// @param x     [N, C]
/// @param gain  [C]
/// @param bias  [C]
/// @param y     [N, C]
/// @param mean  [N] written, kept for backward
/// @param rstd  [N] written, kept for backward
/// @source      Ba, Kiros and Hinton 2016, eq. (4)
void layer_norm_forward(ConstMatrix x, ConstVector gain, ConstVector bias, float eps, Matrix y,
                        Vector mean, Vector rstd);

/// The same y again from kept statistics: backward needs it and it is cheaper to make than to keep.
void layer_norm_apply(ConstMatrix x, ConstVector gain, ConstVector bias, ConstVector mean,
                      ConstVector rstd, Matrix y);

/// dx[n,c] = residual[n,c] + rstd[n] (g - mean_c(g) - xhat mean_c(g xhat)),  g = dy[n,c] gain[c]
/// dgain[c] = sum_n dy[n,c] xhat[n,c],  dbias[c] = sum_n dy[n,c]  (+ old values when accumulating)
///
/// @param residual  [N, C] added to dx; an empty view adds nothing. dx may be `dy` or `residual`
/// itself
void layer_norm_backward(ConstMatrix dy, ConstMatrix x, ConstVector gain, ConstVector mean,
                         ConstVector rstd, ConstMatrix residual, Matrix dx, Write write,
                         Vector dgain, Vector dbias);

}  // namespace brume::kernels
