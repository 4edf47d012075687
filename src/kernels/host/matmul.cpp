#include "kernels/matmul.hpp"

#include <type_traits>

#include "kernels/affine.hpp"
#include "kernels/host/gemm.hpp"

namespace brume::kernels {
namespace {

template <class Storage>
FactorOf<Storage> factor(const ConstMatrixOf<Storage>& matrix,
                         Transpose transpose = Transpose::no) {
  return {matrix.data(), std::int64_t(matrix.stride(0)), transpose};
}

/// What a product reads: rounded to e5m2 where it is a gradient, in 8 bits, else to e4m3.
enum class Reads { values, gradients };

template <class Storage, class Result>
void product(const FactorOf<Storage>& a, Reads reads, const FactorOf<Storage>& b,
             std::int64_t inner, Write write, const Result& c, Factors factors) {
  const std::int64_t m = c.extent(0), n = c.extent(1), stride = c.stride(0);
  if (factors == Factors::stored) return gemm(m, n, inner, a, b, write, c.data(), stride);
  if constexpr (std::is_same_v<Storage, bfloat16>) {
    if (m == 0 || n == 0 || inner == 0) return gemm(m, n, inner, a, b, write, c.data(), stride);
    if (reads == Reads::gradients)
      return gemm_float8<float8_e5m2>(m, n, inner, a, b, write, c.data(), stride);
    return gemm_float8<float8_e4m3>(m, n, inner, a, b, write, c.data(), stride);
  }
  promise(false, "product", "factors in 8 bits are of bf16");
}

}  // namespace

template <class Storage>
void linear_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Write write,
                    MatrixOf<Storage> y, Factors factors) {
  promise_product("linear_forward", x, w, y);
  product(factor<Storage>(x), Reads::values, factor<Storage>(w, Transpose::yes), x.extent(1), write,
          y, factors);
}

template <class Storage>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx, Factors factors) {
  promise_product("linear_backward_input", dx, w, dy);
  product(factor<Storage>(dy), Reads::gradients, factor<Storage>(w), dy.extent(1), write, dx,
          factors);
}

template <class Storage>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw, Factors factors) {
  promise_product("linear_backward_weight", x, dw, dy);
  product(factor<Storage>(dy, Transpose::yes), Reads::gradients, factor<Storage>(x), dy.extent(0),
          write, dw, factors);
}

template <class Storage>
void affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y, Factors factors) {
  promise_affine("affine_forward", x, w, bias, residual, y);
  if (residual.data() != nullptr || factors != Factors::stored)
    return affine_forward_in_passes<Storage>(x, w, bias, residual, y, factors);
  gemm(y.extent(0), y.extent(1), x.extent(1), factor<Storage>(x),
       factor<Storage>(w, Transpose::yes), Write::replace, y.data(), y.stride(0), bias.data());
}

template <class Storage>
void affine_backward_parameters(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                                Matrix dw, Vector db, Factors factors) {
  affine_backward_parameters_in_passes<Storage>(dy, x, write, dw, db, factors);
}

template <class Storage>
void gelu_affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                         ConstVectorOf<Storage> bias, MatrixOf<Storage> u, MatrixOf<Storage> a,
                         Factors factors) {
  promise_gelu_affine("gelu_affine_forward", x, w, bias, u, a);
  gelu_affine_forward_in_passes<Storage>(x, w, bias, u, a, factors);
}

template <class Storage>
void gelu_affine_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                          ConstMatrixOf<Storage> u, MatrixOf<Storage> du, Factors factors) {
  promise_gelu_affine_backward("gelu_affine_backward", dy, w, u, du);
  gelu_affine_backward_in_passes<Storage>(dy, w, u, du, factors);
}

bool products_have_epilogues() { return false; }

}  // namespace brume::kernels

#include "kernels/instances/matmul.hpp"
