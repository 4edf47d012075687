/// @file Products of experts: a product of kernels/matmul.hpp for one expert after another.
#include <vector>

#include "device/device.hpp"
#include "kernels/experts.hpp"
#include "kernels/promises.hpp"

namespace brume::kernels {
namespace {

template <class Element>
MatrixView<Element> rows(const MatrixView<Element>& matrix, std::size_t begin, std::size_t end) {
  return {matrix.data() + begin * matrix.stride(0), end - begin, matrix.extent(1),
          matrix.stride(0)};
}

/// The part of all experts' matrices that is of expert e.
template <class Element>
MatrixView<Element> of_expert(const MatrixView<Element>& all, const Routes& routes, int e) {
  const std::size_t each = all.extent(0) / std::size_t(routes.num_experts);
  return rows(all, std::size_t(e) * each, (std::size_t(e) + 1) * each);
}

/// Calls body(e, begin, end) with the rows of each expert, also of one that has none: a product
/// without rows clears the gradient that it replaces.
template <class Body>
void for_each_expert(const Routes& routes, const Body& body) {
  std::vector<std::int32_t> begins(std::size_t(routes.num_experts) + 1);
  device::copy(begins.data(), routes.begins, std::int64_t(begins.size() * sizeof(begins[0])));
  device::finish();
  for (std::size_t e = 0; e + 1 < begins.size(); ++e)
    body(int(e), std::size_t(begins[e]), std::size_t(begins[e + 1]));
}

}  // namespace

template <class Storage>
void experts_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, const Routes& routes,
                     MatrixOf<Storage> y, Factors factors) {
  promise_experts("experts_forward", x, w, y, routes);
  for_each_expert(routes, [&](int e, std::size_t begin, std::size_t end) {
    linear_forward<Storage>(rows(x, begin, end), of_expert(w, routes, e), Write::replace,
                            rows(y, begin, end), factors);
  });
}

template <class Storage>
void experts_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                            const Routes& routes, MatrixOf<Storage> dx, Factors factors) {
  promise_experts("experts_backward_input", dx, w, dy, routes);
  for_each_expert(routes, [&](int e, std::size_t begin, std::size_t end) {
    linear_backward_input<Storage>(rows(dy, begin, end), of_expert(w, routes, e), Write::replace,
                                   rows(dx, begin, end), factors);
  });
}

template <class Storage>
void experts_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                             const Routes& routes, Write write, Matrix dw, Factors factors) {
  promise_experts("experts_backward_weight", x, dw, dy, routes);
  for_each_expert(routes, [&](int e, std::size_t begin, std::size_t end) {
    linear_backward_weight<Storage>(rows(dy, begin, end), rows(x, begin, end), write,
                                    of_expert(dw, routes, e), factors);
  });
}

}  // namespace brume::kernels

#include "kernels/instances/experts_products.hpp"
