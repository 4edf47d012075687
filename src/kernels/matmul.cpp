#include "kernels/matmul.hpp"

#include "kernels/gemm.hpp"
#include "kernels/host.hpp"

namespace brume::kernels {
namespace {

Factor factor(const ConstMatrix& matrix, Transpose transpose = Transpose::no) {
  return {matrix.data(), std::int64_t(matrix.stride(0)), transpose};
}

void product(Factor a, Factor b, std::int64_t inner, Write write, const Matrix& c) {
  const float beta = write == Write::accumulate ? 1.0f : 0.0f;
  gemm(c.extent(0), c.extent(1), inner, 1.0f, a, b, beta, c.data(), c.stride(0));
}

}  // namespace

void linear_forward(ConstMatrix x, ConstMatrix w, Write write, Matrix y) {
  promise(x.extent(1) == w.extent(1) && y.extent(0) == x.extent(0) && y.extent(1) == w.extent(0),
          "linear_forward", "x [N, I], w [O, I] and y [N, O] must fit");
  product(factor(x), factor(w, Transpose::yes), x.extent(1), write, y);
}

void linear_backward_input(ConstMatrix dy, ConstMatrix w, Write write, Matrix dx) {
  promise(
      dy.extent(1) == w.extent(0) && dx.extent(0) == dy.extent(0) && dx.extent(1) == w.extent(1),
      "linear_backward_input", "dy [N, O], w [O, I] and dx [N, I] must fit");
  product(factor(dy), factor(w), dy.extent(1), write, dx);
}

void linear_backward_weight(ConstMatrix dy, ConstMatrix x, Write write, Matrix dw) {
  promise(
      dy.extent(0) == x.extent(0) && dw.extent(0) == dy.extent(1) && dw.extent(1) == x.extent(1),
      "linear_backward_weight", "dy [N, O], x [N, I] and dw [O, I] must fit");
  product(factor(dy, Transpose::yes), factor(x), dy.extent(0), write, dw);
}

}  // namespace brume::kernels
