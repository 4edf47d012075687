/// @file SwiGLU and GeGLU: a value gated by its neighbour, which goes through SiLU or GELU; and
/// GPT-OSS's SwiGLU, of bounded numbers.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// a[n,f] = g[n] silu(u[n,f]) u[n,F+f],  silu(z) = z / (1 + e^-z)
///
/// @param u      [N, 2 F] gate and value side by side
/// @param a      [N, F]
/// @param gates  [N] g, such as a router's; an empty view: 1
/// @source       Shazeer 2020, eq. (5)
template <class Storage = float>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates = {});

/// du[n,f] = g[n] da[n,f] u[n,F+f] silu'(u[n,f]),  du[n,F+f] = g[n] da[n,f] silu(u[n,f]),
/// dg[n] = sum_f da[n,f] silu(u[n,f]) u[n,F+f]
///
/// @param du       [N, 2 F] may be u itself
/// @param d_gates  [N] dg; an empty view: nobody wants it
/// @param write    replaces dg, or adds to it
template <class Storage = float>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du,
                     ConstVector gates = {}, Vector d_gates = {}, Write write = Write::replace);

/// The same with z s(1.702 z), s(t) = 1 / (1 + e^-t), of z = min(u[n,f], 7) in place of silu(z) and
/// 1 + max(-7, min(u[n,F+f], 7)) in place of the value. The gradient of a bounded number is 0.
///
/// @source  GptOssExperts in transformers 5, models/gpt_oss/modeling_gpt_oss.py
template <class Storage = float>
void clamped_swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates = {});

template <class Storage = float>
void clamped_swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da,
                             MatrixOf<Storage> du, ConstVector gates = {}, Vector d_gates = {},
                             Write write = Write::replace);

/// The same without gates, with gelu(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) in place of
/// silu(z).
template <class Storage = float>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a);

template <class Storage = float>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du);

}  // namespace brume::kernels
