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
template <class Storage = float>
void rms_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, float eps,
                      MatrixOf<Storage> y, Vector rstd);

/// The same y again from the kept rstd: backward needs it and it is cheaper to make than to keep.
template <class Storage = float>
void rms_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, ConstVector rstd,
                    MatrixOf<Storage> y);

/// dx[n,c] = residual[n,c] + rstd[n] (g - xhat mean_c(g xhat)),  g = dy[n,c] gain[c]
/// dgain[c] = sum_n dy[n,c] xhat[n,c],  xhat = x[n,c] rstd[n]  (+ old values when accumulating)
///
/// @param residual  [N, C] added to dx; an empty view adds nothing. dx may be `dy` or `residual`
///                  itself
template <class Storage = float>
void rms_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                       ConstVectorOf<Storage> gain, ConstVector rstd,
                       ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                       Vector dgain);

}  // namespace brume::kernels
