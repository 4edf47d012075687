#include "kernels/matmul.hpp"

#include "kernels/gemm.hpp"
#include "kernels/host.hpp"

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
  promise(x.extent(1) == w.extent(1) && y.extent(0) == x.extent(0) && y.extent(1) == w.extent(0),
          "linear_forward", "x [N, I], w [O, I] and y [N, O] must fit");
  product(factor<Storage>(x), factor<Storage>(w, Transpose::yes), x.extent(1), write, y);
}

template <class Storage>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx) {
  promise(
      dy.extent(1) == w.extent(0) && dx.extent(0) == dy.extent(0) && dx.extent(1) == w.extent(1),
      "linear_backward_input", "dy [N, O], w [O, I] and dx [N, I] must fit");
  product(factor<Storage>(dy), factor<Storage>(w), dy.extent(1), write, dx);
}

template <class Storage>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw) {
  promise(
      dy.extent(0) == x.extent(0) && dw.extent(0) == dy.extent(1) && dw.extent(1) == x.extent(1),
      "linear_backward_weight", "dy [N, O], x [N, I] and dw [O, I] must fit");
  product(factor<Storage>(dy, Transpose::yes), factor<Storage>(x), dy.extent(0), write, dw);
}

template void linear_forward<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                    MatrixOf<float>);
template void linear_forward<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>, Write,
                                       MatrixOf<bfloat16>);
template void linear_backward_input<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                           MatrixOf<float>);
template void linear_backward_input<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                              Write, MatrixOf<bfloat16>);
template void linear_backward_weight<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, Write,
                                            Matrix);
template void linear_backward_weight<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                               Write, Matrix);

}  // namespace brume::kernels
