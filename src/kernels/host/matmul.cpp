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

// Fused or not, memory of hosts is passed over as often.
template <class Storage>
void affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y) {
  promise_affine("affine_forward", x, w, bias, residual, y);
  affine_forward_in_passes<Storage>(x, w, bias, residual, y);
}

template <class Storage>
void affine_backward_parameters(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                                Matrix dw, Vector db) {
  affine_backward_parameters_in_passes<Storage>(dy, x, write, dw, db);
}

bool products_take_biases() { return false; }

}  // namespace brume::kernels

#include "kernels/instances/matmul.hpp"
