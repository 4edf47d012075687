#include "kernels/muon.hpp"

#include "kernels/portable/launch.hpp"
#include "kernels/update_rules.hpp"

namespace brume::kernels {
namespace {

/// @param rounded  null, or where each new weight goes too
template <class Rule, class Rounded>
void step_elements(const Rule& rule, std::int64_t first, const UpdatedElements& elements,
                   Rounded* rounded) {
  float* const weight = elements.weight;
  for_each(
      "step_along", elements.count, KOKKOS_LAMBDA(std::int64_t i) {
        const float w = rule(first + i, weight[i]);
        weight[i] = w;
        if (rounded != nullptr) rounded[i] = w;
      });
}

}  // namespace

template <class Storage>
void normalize(ConstMatrix d, const MatrixPart& part, const double* squares, bool transposed,
               MatrixOf<Storage> x) {
  const std::int64_t columns = d.extent_int(1);
  for_each(
      "normalize", d.extent_int(0) * columns, KOKKOS_LAMBDA(std::int64_t k) {
        const float factor = float(1.0 / (std::sqrt(*squares) + 1e-7));
        const std::int64_t row = part.first_row + k / columns,
                           column = part.first_column + k % columns;
        (transposed ? x(column, row) : x(row, column)) =
            Storage(factor * d(k / columns, k % columns));
      });
}

template <class Storage>
void scale_add(float a, ConstMatrixOf<Storage> x, float b, MatrixOf<Storage> y) {
  const std::int64_t columns = x.extent_int(1);
  for_each(
      "scale_add", x.extent_int(0) * columns, KOKKOS_LAMBDA(std::int64_t k) {
        Storage& out = y(k / columns, k % columns);
        out = Storage(a * float(x(k / columns, k % columns)) + b * float(out));
      });
}

template <class Storage>
void step_along(float kept, float length, ConstMatrixOf<Storage> x, bool transposed,
                const MatrixPart& part, int columns, std::int64_t first,
                const UpdatedElements& elements) {
  const StepAlong<Storage> rule{x, transposed, part, columns, kept, length};
  std::visit([&](auto* rounded) { step_elements(rule, first, elements, rounded); },
             elements.rounded);
}

}  // namespace brume::kernels

#include "kernels/instances/muon.hpp"
