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

/// The part of all matrices that is of the i-th expert.
template <class Element>
MatrixView<Element> of_expert(const MatrixView<Element>& all, const Routes& routes, int i) {
  const std::size_t each = all.extent(0) / std::size_t(routes.num_held);
  return rows(all, std::size_t(i) * each, (std::size_t(i) + 1) * each);
}

/// Calls body(i, begin, end) with the rows of the i-th expert, also of one that has none: a product
/// without rows clears the gradient that it replaces.
template <class Body>
void for_each_expert(const Routes& routes, const Body& body) {
  const std::int32_t* const begins = routes.host_begins;
  for (int i = 0; i < routes.num_held; ++i)
    body(i, std::size_t(begins[i]), std::size_t(begins[i + 1]));
}

}  // namespace

std::vector<std::int32_t> read_begins(const Routes& routes) {
  std::vector<std::int32_t> begins(std::size_t(routes.num_experts) + 1);
  device::copy(begins.data(), routes.begins, std::int64_t(begins.size() * sizeof(begins[0])));
  device::finish();
  return begins;
}

template <class Storage>
void experts_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, const Routes& routes,
                     Write write, MatrixOf<Storage> y, Factors factors) {
  promise_experts("experts_forward", x, w, y, routes);
  for_each_expert(routes, [&](int i, std::size_t begin, std::size_t end) {
    linear_forward<Storage>(rows(x, begin, end), of_expert(w, routes, i), write,
                            rows(y, begin, end), factors);
  });
}

template <class Storage>
void experts_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                            const Routes& routes, Write write, MatrixOf<Storage> dx,
                            Factors factors) {
  promise_experts("experts_backward_input", dx, w, dy, routes);
  for_each_expert(routes, [&](int i, std::size_t begin, std::size_t end) {
    linear_backward_input<Storage>(rows(dy, begin, end), of_expert(w, routes, i), write,
                                   rows(dx, begin, end), factors);
  });
}

template <class Storage>
void experts_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                             const Routes& routes, Write write, Matrix dw, Factors factors) {
  promise_experts("experts_backward_weight", x, dw, dy, routes);
  for_each_expert(routes, [&](int i, std::size_t begin, std::size_t end) {
    linear_backward_weight<Storage>(rows(dy, begin, end), rows(x, begin, end), write,
                                    of_expert(dw, routes, i), factors);
  });
}

}  // namespace brume::kernels

#include "kernels/instances/experts_products.hpp"
