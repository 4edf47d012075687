/// @file Matrix products of linear layers, by oneDNN on hosts and cuBLASLt on NVIDIA devices.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// How a product takes its factors: as stored, or in 8 bits, which storage of bf16 may ask for.
///
/// fp8: x and w are rounded to e4m3, dy to e5m2, each times the power of two that brings its
/// largest magnitude A into [2^7, 2^8), of dy into [2^14, 2^15); nothing saturates, and the
/// product, summed in fp32, is divided by both powers. They change no bits of a rounded number that
/// is normal. So a plan that cuts a factor into parts, whose powers differ, changes only elements
/// below 2^-13 A (dy: 2^-28 A), by at most 2^-17 A (2^-31 A), and ranks need not agree on A. A
/// factor with an infinity or a NaN is NaN as a whole.
enum class Factors { stored, fp8 };

/// y[n,o] = sum_i x[n,i] w[o,i]  (+ y[n,o] when accumulating)
///
/// @param x  [N, I] tokens by input features
/// @param w  [O, I] output by input features
/// @param y  [N, O]
template <class Storage = float>
void linear_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Write write,
                    MatrixOf<Storage> y, Factors factors = Factors::stored);

/// dx[n,i] = sum_o dy[n,o] w[o,i]  (+ dx[n,i] when accumulating)
template <class Storage = float>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx, Factors factors = Factors::stored);

/// dw[o,i] = sum_n dy[n,o] x[n,i]  (+ dw[o,i] when accumulating)
template <class Storage = float>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw, Factors factors = Factors::stored);

/// y[n,o] = residual[n,o] + sum_i x[n,i] w[o,i] + bias[o]
///
/// @param bias      [O]; an empty view adds nothing
/// @param residual  [N, O]; an empty view adds nothing. y may be `residual` itself
template <class Storage = float>
void affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y,
                    Factors factors = Factors::stored);

/// dw[o,i] = sum_n dy[n,o] x[n,i],  db[o] = sum_n dy[n,o]  (+ old values when accumulating)
///
/// @param dw, db  [O, I], [O]; an empty view: nobody wants it
template <class Storage = float>
void affine_backward_parameters(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                                Matrix dw, Vector db, Factors factors = Factors::stored);

/// u[n,f] = sum_i x[n,i] w[f,i] + bias[f],  a = gelu(u), the tanh form of kernels/pointwise.hpp
///
/// @param bias  [F]
/// @param u     [N, F] kept for backward
/// @param a     [N, F]
template <class Storage = float>
void gelu_affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                         ConstVectorOf<Storage> bias, MatrixOf<Storage> u, MatrixOf<Storage> a,
                         Factors factors = Factors::stored);

/// du[n,f] = gelu'(u[n,f]) sum_o dy[n,o] w[o,f]: through the layer behind gelu, and gelu
///
/// @param w   [O, F] of the layer behind
/// @param u   [N, F] as kept
/// @param du  [N, F]
template <class Storage = float>
void gelu_affine_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                          ConstMatrixOf<Storage> u, MatrixOf<Storage> du,
                          Factors factors = Factors::stored);

/// Whether biases, residuals and gelu go with their products, without passes over memory of their
/// own.
bool products_have_epilogues();

}  // namespace brume::kernels
