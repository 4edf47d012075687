/// @file Matrix products of linear layers by oneDNN on the host.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// y[n,o] = sum_i x[n,i] w[o,i]  (+ y[n,o] when accumulating)
///
/// @param x  [N, I] tokens by input features
/// @param w  [O, I] output by input features
/// @param y  [N, O]
template <class Storage = float>
void linear_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Write write,
                    MatrixOf<Storage> y);

/// dx[n,i] = sum_o dy[n,o] w[o,i]  (+ dx[n,i] when accumulating)
template <class Storage = float>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx);

/// dw[o,i] = sum_n dy[n,o] x[n,i]  (+ dw[o,i] when accumulating)
template <class Storage = float>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw);

}  // namespace brume::kernels
