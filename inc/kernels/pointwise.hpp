/// @file Element-wise kernels and row sums: biases, residuals, GELU, sums.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// y[n,c] = x[n,c] + bias[c]; y may be x itself.
void add_bias(ConstMatrix x, ConstVector bias, Matrix y);

/// db[c] = sum_n dy[n,c]  (+ db[c] when accumulating); rows are added in a fixed order.
void bias_backward(ConstMatrix dy, Write write, Vector db);

/// a[n,f] = gelu(u[n,f] + bias[f]), the tanh form: gelu(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715
/// z^3)))
///
/// @param u  [N, F] the product before its bias
/// @param a  [N, F] may be u itself
void gelu_forward(ConstMatrix u, ConstVector bias, Matrix a);

/// du[n,f] = da[n,f] gelu'(u[n,f] + bias[f]); du may be da itself. du is also the bias's gradient
/// per token.
void gelu_backward(ConstMatrix u, ConstVector bias, ConstMatrix da, Matrix du);

/// y += x, element by element.
void add(ConstVector x, Vector y);

/// y = x, element by element.
void copy(ConstVector x, Vector y);

/// y = value, element by element.
void fill(float value, Vector y);

/// sum_i x[i]^2 in double precision, in a fixed order.
double sum_squares(ConstVector x);

}  // namespace brume::kernels
