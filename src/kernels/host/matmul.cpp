#include "kernels/matmul.hpp"

#include "kernels/affine.hpp"
#include "kernels/host/gemm.hpp"

namespace brume::kernels {
namespace {

template <class Storage>
FactorOf<Storage> factor(const ConstMatrixOf<Storage>& matrix,
                         Transpose transpose = Transpose::no) {
  return {matrix.data(), std::int64_t(matrix.stride(0)), transpose};
}

template <class Storage, class Result>
void product(const FactorOf<Storage>& a, const FactorOf<Storage>& b, std::int64_t inner,
             Write write, const Result& c) {
  gemm(c.extent(0), c.extent(1), inner, a, b, write, c.data(), c.stride(0));
}

}  // namespace

template <class Storage>
void linear_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Write write,
                    MatrixOf<Storage> y) {
  promise_product("linear_forward", x, w, y);
  product(factor<Storage>(x), factor<Storage>(w, Transpose::yes), x.extent(1), write, y);
}

template <class Storage>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx) {
  promise_product("linear_backward_input", dx, w, dy);
  product(factor<Storage>(dy), factor<Storage>(w), dy.extent(1), write, dx);
}

template <class Storage>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw) {
  promise_product("linear_backward_weight", x, dw, dy);
  product(factor<Storage>(dy, Transpose::yes), factor<Storage>(x), dy.extent(0), write, dw);
}

template <class Storage>
void affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y) {
  promise_affine("affine_forward", x, w, bias, residual, y);
  if (residual.data() != nullptr) return affine_forward_in_passes<Storage>(x, w, bias, residual, y);
  gemm(y.extent(0), y.extent(1), x.extent(1), factor<Storage>(x),
       factor<Storage>(w, Transpose::yes), Write::replace, y.data(), y.stride(0), bias.data());
}

template <class Storage>
void affine_backward_parameters(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                                Matrix dw, Vector db) {
  affine_backward_parameters_in_passes<Storage>(dy, x, write, dw, db);
}

template <class Storage>
void gelu_affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                         ConstVectorOf<Storage> bias, MatrixOf<Storage> u, MatrixOf<Storage> a) {
  promise_gelu_affine("gelu_affine_forward", x, w, bias, u, a);
  gelu_affine_forward_in_passes<Storage>(x, w, bias, u, a);
}

template <class Storage>
void gelu_affine_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                          ConstMatrixOf<Storage> u, MatrixOf<Storage> du) {
  promise_gelu_affine_backward("gelu_affine_backward", dy, w, u, du);
  gelu_affine_backward_in_passes<Storage>(dy, w, u, du);
}

bool products_have_epilogues() { return false; }

}  // namespace brume::kernels

#include "kernels/instances/matmul.hpp"
