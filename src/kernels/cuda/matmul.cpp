#include "kernels/matmul.hpp"

#include <type_traits>

#include "device/cuda.hpp"
#include "kernels/cublas.hpp"
#include "kernels/narrow.hpp"
#include "kernels/promises.hpp"
#include "kernels/workspace.hpp"

namespace brume::kernels {
namespace {

/// The calling thread's products: its channel runs them one after another.
CublasLinear& linear() {
  thread_local CublasLinear linear(workspace(workspace_bytes), workspace_bytes);
  return linear;
}

template <class Element>
ElementType type_of() {
  if (std::is_same_v<Element, float>) return tf32_allowed() ? ElementType::tf32 : ElementType::fp32;
  return std::is_same_v<Element, bfloat16> ? ElementType::bf16 : ElementType::fp16;
}

template <class View>
DeviceMatrix on_device(const View& matrix) {
  using Element = std::remove_cvref_t<decltype(matrix(0, 0))>;
  return {.data = const_cast<Element*>(matrix.data()),
          .rows = std::int64_t(matrix.extent(0)),
          .columns = std::int64_t(matrix.extent(1)),
          .type = type_of<Element>(),
          .stride = std::int64_t(matrix.stride(0))};
}

/// Does what is left of a product with a size that is 0. @return whether one is
template <class Element>
bool is_empty(const MatrixView<Element>& result, std::size_t inner, Write write) {
  if (result.size() > 0 && inner > 0) return false;
  if (result.size() > 0 && write == Write::replace)
    device::cuda_check(cudaMemset2DAsync(result.data(), result.stride(0) * sizeof(Element), 0,
                                         result.extent(1) * sizeof(Element), result.extent(0),
                                         device::cuda_stream()),
                       "clearing a matrix");
  return true;
}

}  // namespace

template <class Storage>
void linear_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Write write,
                    MatrixOf<Storage> y) {
  promise_product("linear_forward", x, w, y);
  if (is_empty(y, x.extent(1), write)) return;
  linear().forward(on_device(x), on_device(w), Epilogue::none, nullptr, write, on_device(y),
                   device::cuda_stream());
}

template <class Storage>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx) {
  promise_product("linear_backward_input", dx, w, dy);
  if (is_empty(dx, dy.extent(1), write)) return;
  linear().backward_input(on_device(dy), on_device(w), write, on_device(dx), device::cuda_stream());
}

template <class Storage>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw) {
  promise_product("linear_backward_weight", x, dw, dy);
  if (is_empty(dw, dy.extent(0), write)) return;
  linear().backward_weight(on_device(dy), on_device(x), write, on_device(dw),
                           device::cuda_stream());
}

}  // namespace brume::kernels

#include "kernels/instances/matmul.hpp"
