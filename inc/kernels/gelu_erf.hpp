/// @file The exact GELU, by the error function.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// a[n,f] = gelu(u[n,f] + bias[f]),  gelu(z) = z/2 (1 + erf(z / sqrt(2)))
///
/// @param u     [N, F] the product before its bias
/// @param bias  [F]; an empty view: none
/// @param a     [N, F] may be u itself
/// @source      Hendrycks and Gimpel 2016
template <class Storage = float>
void gelu_erf_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a);

/// du[n,f] = da[n,f] gelu'(u[n,f] + bias[f]); du may be da itself. du is also the bias's gradient
/// per token.
template <class Storage = float>
void gelu_erf_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias,
                       ConstMatrixOf<Storage> da, MatrixOf<Storage> du);

}  // namespace brume::kernels
