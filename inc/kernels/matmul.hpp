/// @file Matrix products of linear layers, fp32, by oneDNN on the host.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// y[n,o] = sum_i x[n,i] w[o,i]  (+ y[n,o] when accumulating)
///
/// @param x  [N, I] tokens by input features
/// @param w  [O, I] output by input features
/// @param y  [N, O]
void linear_forward(ConstMatrix x, ConstMatrix w, Write write, Matrix y);

/// dx[n,i] = sum_o dy[n,o] w[o,i]  (+ dx[n,i] when accumulating)
void linear_backward_input(ConstMatrix dy, ConstMatrix w, Write write, Matrix dx);

/// dw[o,i] = sum_n dy[n,o] x[n,i]  (+ dw[o,i] when accumulating)
void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Write write, Matrix dw);

}  // namespace brume::kernels
