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
template <class Storage = float>
void layer_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                        ConstVectorOf<Storage> bias, float eps, MatrixOf<Storage> y, Vector mean,
                        Vector rstd);

/// The same y again from kept statistics: backward needs it and it is cheaper to make than to keep.
template <class Storage = float>
void layer_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                      ConstVectorOf<Storage> bias, ConstVector mean, ConstVector rstd,
                      MatrixOf<Storage> y);

/// dx[n,c] = residual[n,c] + rstd[n] (g - mean_c(g) - xhat mean_c(g xhat)),  g = dy[n,c] gain[c]
/// dgain[c] = sum_n dy[n,c] xhat[n,c],  dbias[c] = sum_n dy[n,c]  (+ old values when accumulating)
///
/// @param residual  [N, C] added to dx; an empty view adds nothing. dx may be `dy` or `residual`
/// itself
/// @param dgain, dbias  [C]; an empty view: nobody wants it
template <class Storage = float>
void layer_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                         ConstVectorOf<Storage> gain, ConstVector mean, ConstVector rstd,
                         ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                         Vector dgain, Vector dbias);

}  // namespace brume::kernels
