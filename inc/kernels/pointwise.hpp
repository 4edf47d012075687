/// @file Element-wise kernels and row sums: biases, residuals, GELU, sums.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// y[n,c] = x[n,c] + bias[c]; y may be x itself.
template <class Storage = float>
void add_bias(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> bias, MatrixOf<Storage> y);

/// db[c] = sum_n dy[n,c]  (+ db[c] when accumulating); rows are added in a fixed order.
template <class Storage = float>
void bias_backward(ConstMatrixOf<Storage> dy, Write write, Vector db);

/// a[n,f] = gelu(u[n,f] + bias[f]), the tanh form: gelu(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715
/// z^3)))
///
/// @param u     [N, F] the product before its bias
/// @param bias  [F]; an empty view: none
/// @param a     [N, F] may be u itself
template <class Storage = float>
void gelu_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a);

/// du[n,f] = da[n,f] gelu'(u[n,f] + bias[f]); du may be da itself. du is also the bias's gradient
/// per token.
template <class Storage = float>
void gelu_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, ConstMatrixOf<Storage> da,
                   MatrixOf<Storage> du);

/// y += x, element by element.
void add(ConstVector x, Vector y);

/// y += x: the residual stream of a rank's tokens and their sums.
template <class Storage = float>
void add_residual(ConstMatrixOf<Storage> x, MatrixOf<Storage> y);

/// y = x, element by element.
template <class Storage = float>
void copy(ConstVectorOf<Storage> x, VectorOf<Storage> y);

/// y *= factor, element by element.
template <class Storage = float>
void scale(float factor, MatrixOf<Storage> y);

/// y = value, element by element.
void fill(float value, Vector y);

/// *sum = sum_i x[i]^2  (+ *sum when accumulating) in double precision, in a fixed order.
void sum_squares(ConstVector x, Write write, double* sum);

}  // namespace brume::kernels
