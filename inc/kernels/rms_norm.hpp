/// @file Root-mean-square normalisation, forward and backward, of rows or of equal parts of them.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// y[n,g,c] = residual[n,g,c] + (base + gain[c]) x[n,g,c] rstd[n,g],  rstd[n,g] = 1 /
/// sqrt(mean_c(x[n,g,c]^2) + eps)
///
/// @param x     [N, G C] G parts of a row, each normalised alone: the heads of queries or keys,
/// else
///              the one row itself; y may be x
/// @param gain  [C]
/// @param y     [N, G C]
/// @param rstd  [N G] written, kept for backward
/// @param residual  [N, G C]; an empty view adds nothing
/// @param base  1 where gains are kept as what they are above 1
/// @source      Zhang and Sennrich 2019, eq. (4); eps as in Llama, base as in Gemma
template <class Storage = float>
void rms_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, float eps,
                      MatrixOf<Storage> y, Vector rstd, float base = 0.0f,
                      ConstMatrixOf<Storage> residual = {});

/// The same y, without a residual, again from the kept rstd: backward needs it and it is cheaper to
/// make than to keep.
template <class Storage = float>
void rms_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, ConstVector rstd,
                    MatrixOf<Storage> y, float base = 0.0f);

/// dx[n,g,c] = residual[n,g,c] + rstd[n,g] (u - xhat mean_c(u xhat)),  u = dy[n,g,c] (base +
/// gain[c]) dgain[c] = sum_n,g dy[n,g,c] xhat[n,g,c],  xhat = x[n,g,c] rstd[n,g]  (+ old values
/// when accumulating)
///
/// @param residual  [N, G C] added to dx; an empty view adds nothing. dx may be `dy` or `residual`
///                  itself
/// @param dgain     [C]; an empty view: nobody wants it
template <class Storage = float>
void rms_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                       ConstVectorOf<Storage> gain, ConstVector rstd,
                       ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                       Vector dgain, float base = 0.0f);

}  // namespace brume::kernels
