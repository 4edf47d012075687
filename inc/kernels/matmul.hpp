/// @file Matrix products of linear layers, by oneDNN on hosts and cuBLASLt on NVIDIA devices.
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

/// y[n,o] = residual[n,o] + sum_i x[n,i] w[o,i] + bias[o]
///
/// @param bias      [O]; an empty view adds nothing
/// @param residual  [N, O]; an empty view adds nothing. y may be `residual` itself
template <class Storage = float>
void affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y);

/// dw[o,i] = sum_n dy[n,o] x[n,i],  db[o] = sum_n dy[n,o]  (+ old values when accumulating)
///
/// @param db  [O]; an empty view: there is no bias
template <class Storage = float>
void affine_backward_parameters(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                                Matrix dw, Vector db);

/// u[n,f] = sum_i x[n,i] w[f,i] + bias[f],  a = gelu(u), the tanh form of kernels/pointwise.hpp
///
/// @param bias  [F]
/// @param u     [N, F] kept for backward
/// @param a     [N, F]
template <class Storage = float>
void gelu_affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                         ConstVectorOf<Storage> bias, MatrixOf<Storage> u, MatrixOf<Storage> a);

/// du[n,f] = gelu'(u[n,f]) sum_o dy[n,o] w[o,f]: through the layer behind gelu, and gelu
///
/// @param w   [O, F] of the layer behind
/// @param u   [N, F] as kept
/// @param du  [N, F]
template <class Storage = float>
void gelu_affine_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                          ConstMatrixOf<Storage> u, MatrixOf<Storage> du);

/// Whether biases, residuals and gelu go with their products, without passes over memory of their
/// own.
bool products_have_epilogues();

}  // namespace brume::kernels
