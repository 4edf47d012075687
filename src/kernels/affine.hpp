/// @file Linear layers with biases, residuals and gelu as products and passes beside them.
#pragma once

#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/promises.hpp"

namespace brume::kernels {

template <class X, class W, class Bias, class Residual, class Y>
void promise_affine(const char* kernel, const X& x, const W& w, const Bias& bias,
                    const Residual& residual, const Y& y) {
  promise_product(kernel, x, w, y);
  promise(bias.data() == nullptr || is_row_of(bias, y), kernel, "bias must be empty or [O]");
  promise_residual(kernel, y, residual);
}

/// y = x, row by row.
template <class Storage>
void copy_rows(const ConstMatrixOf<Storage>& x, const MatrixOf<Storage>& y) {
  const auto row = [](const auto& matrix, std::size_t first, std::size_t count) {
    return VectorView(&matrix(std::ptrdiff_t(first), 0), count);
  };
  const std::size_t width = y.extent(1);
  if (y.size() == 0 || x.data() == y.data()) return;
  if (x.stride(0) == width && y.stride(0) == width)
    return copy<Storage>(row(x, 0, y.size()), row(y, 0, y.size()));
  for (std::size_t n = 0; n < y.extent(0); ++n) copy<Storage>(row(x, n, width), row(y, n, width));
}

/// @param multiply  (write): makes the product in y, or adds it
template <class Storage, class Multiply>
void affine_in_passes(ConstVectorOf<Storage> bias, ConstMatrixOf<Storage> residual,
                      MatrixOf<Storage> y, const Multiply& multiply) {
  const bool adds_bias = bias.data() != nullptr, adds_residual = residual.data() != nullptr;
  if (adds_residual && adds_bias)
    add_bias<Storage>(residual, bias, y);
  else if (adds_residual)
    copy_rows<Storage>(residual, y);
  multiply(adds_residual ? Write::accumulate : Write::replace);
  if (adds_bias && !adds_residual) add_bias<Storage>(y, bias, y);
}

template <class Storage>
void affine_forward_in_passes(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                              ConstVectorOf<Storage> bias, ConstMatrixOf<Storage> residual,
                              MatrixOf<Storage> y, Factors factors) {
  affine_in_passes<Storage>(bias, residual, y,
                            [&](Write write) { linear_forward<Storage>(x, w, write, y, factors); });
}

template <class Storage>
void affine_backward_parameters_in_passes(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                                          Write write, Matrix dw, Vector db, Factors factors) {
  if (dw.data() != nullptr) linear_backward_weight<Storage>(dy, x, write, dw, factors);
  if (db.data() != nullptr) bias_backward<Storage>(dy, write, db);
}

template <class X, class W, class Bias, class U, class A>
void promise_gelu_affine(const char* kernel, const X& x, const W& w, const Bias& bias, const U& u,
                         const A& a) {
  promise_product(kernel, x, w, u);
  promise(is_row_of(bias, u) && same_extents(u, a), kernel, "bias [F], u and a [N, F] must fit");
}

template <class DY, class W, class U, class DU>
void promise_gelu_affine_backward(const char* kernel, const DY& dy, const W& w, const U& u,
                                  const DU& du) {
  promise_product(kernel, du, w, dy);
  promise(same_extents(u, du), kernel, "u and du must be [N, F]");
}

template <class Storage>
void gelu_affine_forward_in_passes(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                                   ConstVectorOf<Storage> bias, MatrixOf<Storage> u,
                                   MatrixOf<Storage> a, Factors factors) {
  affine_forward<Storage>(x, w, bias, {}, u, factors);
  gelu_forward<Storage>(u, {}, a);
}

template <class Storage>
void gelu_affine_backward_in_passes(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                                    ConstMatrixOf<Storage> u, MatrixOf<Storage> du,
                                    Factors factors) {
  linear_backward_input<Storage>(dy, w, Write::replace, du, factors);
  gelu_backward<Storage>(u, {}, du, du);
}

}  // namespace brume::kernels
