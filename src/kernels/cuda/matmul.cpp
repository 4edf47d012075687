#include "kernels/matmul.hpp"

#include <type_traits>

#include "device/cuda.hpp"
#include "kernels/affine.hpp"
#include "kernels/cublas.hpp"
#include "kernels/cuda/float8.hpp"
#include "kernels/narrow.hpp"
#include "kernels/workspace.hpp"

namespace brume::kernels {
namespace {

constexpr std::int64_t gradient_bytes = std::int64_t{1} << 20;  ///< of a bias, where it is added

/// The calling thread's products: its channel runs them one after another.
CublasLinear& linear() {
  thread_local CublasLinear linear(workspace(workspace_bytes), workspace_bytes - gradient_bytes);
  return linear;
}

/// What products leave of the workspace.
Vector gradient_room(std::size_t count) {
  auto* const bytes = static_cast<std::byte*>(workspace(workspace_bytes));
  return {reinterpret_cast<float*>(bytes + workspace_bytes - gradient_bytes), count};
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

/// What a result adds to.
template <class View>
DeviceMatrix old(const View& result, Write write) {
  return write == Write::accumulate ? on_device(result) : DeviceMatrix();
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

/// What of a linear layer a product is: x w^T, dy w or dy^T x.
enum class Reads { values, gradient, both };

/// d = a b^T and what else `rest` says, of factors in 8 bits.
/// @return false where no algorithm has the epilogue: nothing was done
template <class Storage>
bool narrow_product(const ConstMatrixOf<Storage>& a, const ConstMatrixOf<Storage>& b, Reads reads,
                    const Product& rest) {
  if constexpr (std::is_same_v<Storage, bfloat16>) {
    const bool of_inputs = reads == Reads::values;
    return float8_product(
        linear(), {.values = a, .is_gradient = !of_inputs, .transposed = reads == Reads::both},
        {.values = b, .is_gradient = false, .transposed = !of_inputs}, rest);
  }
  promise(false, "product", "factors in 8 bits are of bf16");
  return false;
}

}  // namespace

template <class Storage>
void linear_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Write write,
                    MatrixOf<Storage> y, Factors factors) {
  promise_product("linear_forward", x, w, y);
  if (is_empty(y, x.extent(1), write)) return;
  if (factors == Factors::fp8) {
    narrow_product<Storage>(x, w, Reads::values, {.c = old(y, write), .d = on_device(y)});
    return;
  }
  linear().forward(on_device(x), on_device(w), nullptr, old(y, write), on_device(y),
                   device::cuda_stream());
}

template <class Storage>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx, Factors factors) {
  promise_product("linear_backward_input", dx, w, dy);
  if (is_empty(dx, dy.extent(1), write)) return;
  if (factors == Factors::fp8) {
    narrow_product<Storage>(dy, w, Reads::gradient, {.c = old(dx, write), .d = on_device(dx)});
    return;
  }
  linear().backward_input(on_device(dy), on_device(w), write, on_device(dx), device::cuda_stream());
}

template <class Storage>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw, Factors factors) {
  promise_product("linear_backward_weight", x, dw, dy);
  if (is_empty(dw, dy.extent(0), write)) return;
  if (factors == Factors::fp8) {
    narrow_product<Storage>(dy, x, Reads::both, {.c = old(dw, write), .d = on_device(dw)});
    return;
  }
  linear().backward_weight(on_device(dy), on_device(x), write, on_device(dw), nullptr,
                           device::cuda_stream());
}

template <class Storage>
void affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y, Factors factors) {
  promise_affine("affine_forward", x, w, bias, residual, y);
  const bool is_whole = y.size() > 0 && x.extent(1) > 0;
  const auto done = [&] {
    if (factors == Factors::fp8)
      return narrow_product<Storage>(x, w, Reads::values,
                                     {.c = on_device(residual),
                                      .d = on_device(y),
                                      .epilogue = bias.data() ? Epilogue::bias : Epilogue::none,
                                      .side = const_cast<Storage*>(bias.data())});
    return linear().forward(on_device(x), on_device(w), bias.data(), on_device(residual),
                            on_device(y), device::cuda_stream());
  };
  if (!is_whole || !done()) affine_forward_in_passes<Storage>(x, w, bias, residual, y, factors);
}

template <class Storage>
void affine_backward_parameters(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                                Matrix dw, Vector db, Factors factors) {
  if (dw.data() != nullptr) promise_product("affine_backward_parameters", x, dw, dy);
  promise(db.data() == nullptr || is_row_of(db, dy), "affine_backward_parameters",
          "db must be empty or [O]");
  // The bias's gradient is a sum of what is not rounded.
  if (factors == Factors::fp8)
    return affine_backward_parameters_in_passes<Storage>(dy, x, write, dw, db, factors);
  const bool adds = write == Write::accumulate && db.data() != nullptr;
  const Vector made = adds ? gradient_room(db.size()) : db;
  const bool fits = !adds || db.size() * sizeof(float) <= std::size_t(gradient_bytes);
  const bool is_whole = dw.size() > 0 && dy.extent(0) > 0;
  if (!is_whole || !fits ||
      !linear().backward_weight(on_device(dy), on_device(x), write, on_device(dw), made.data(),
                                device::cuda_stream()))
    return affine_backward_parameters_in_passes<Storage>(dy, x, write, dw, db, factors);
  if (adds) add(made, db);
}

template <class Storage>
void gelu_affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                         ConstVectorOf<Storage> bias, MatrixOf<Storage> u, MatrixOf<Storage> a,
                         Factors factors) {
  promise_gelu_affine("gelu_affine_forward", x, w, bias, u, a);
  const bool is_whole = u.size() > 0 && x.extent(1) > 0;
  const auto done = [&] {
    if (factors == Factors::fp8)
      return narrow_product<Storage>(x, w, Reads::values,
                                     {.d = on_device(a),
                                      .epilogue = Epilogue::gelu,
                                      .side = const_cast<Storage*>(bias.data()),
                                      .z = on_device(u)});
    return linear().gelu_forward(on_device(x), on_device(w), bias.data(), on_device(u),
                                 on_device(a), device::cuda_stream());
  };
  if (!is_whole || !done()) gelu_affine_forward_in_passes<Storage>(x, w, bias, u, a, factors);
}

template <class Storage>
void gelu_affine_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                          ConstMatrixOf<Storage> u, MatrixOf<Storage> du, Factors factors) {
  promise_gelu_affine_backward("gelu_affine_backward", dy, w, u, du);
  const bool is_whole = du.size() > 0 && dy.extent(1) > 0;
  const auto done = [&] {
    if (factors == Factors::fp8)
      return narrow_product<Storage>(
          dy, w, Reads::gradient,
          {.d = on_device(du), .epilogue = Epilogue::slope, .z = on_device(u)});
    return linear().gelu_backward(on_device(dy), on_device(w), on_device(u), on_device(du),
                                  device::cuda_stream());
  };
  if (!is_whole || !done()) gelu_affine_backward_in_passes<Storage>(dy, w, u, du, factors);
}

bool products_have_epilogues() { return true; }

}  // namespace brume::kernels

#include "kernels/instances/matmul.hpp"
