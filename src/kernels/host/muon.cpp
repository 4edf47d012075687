#include "kernels/muon.hpp"

#include <cmath>

#include "kernels/host/loops.hpp"
#include "kernels/update_rules.hpp"

namespace brume::kernels {

void momentum_direction(const Update& update, const double* squares,
                        const UpdatedElements& elements, Moments moments, float* d) {
  const float scale = grad_scale(update.clip_norm, update.loss_scale, squares);
  const auto run = [&](const auto& rule) {
    for_each_numbered_piece("momentum", elements.count, elements.numbers,
                            [=](std::int64_t begin, std::int64_t end, std::int64_t number) {
#pragma omp simd
                              for (std::int64_t i = begin; i < end; ++i)
                                rule(i, number + i - begin, scale);
                            });
  };
  moments == Moments::bf16 ? run(Momentum<bfloat16>::make(update, elements, d))
                           : run(Momentum<float>::make(update, elements, d));
}

template <class Storage>
void normalize(ConstMatrix d, const MatrixPart& part, const double* squares, bool transposed,
               MatrixOf<Storage> x) {
  const float factor = float(1.0 / (std::sqrt(*squares) + 1e-7));
  for_each("normalize", d.extent_int(0), [=](std::int64_t i) {
    const std::int64_t row = part.first_row + i;
    const float* const in = &d(i, 0);
    const std::int64_t columns = d.extent_int(1);
    Storage* const out = transposed ? &x(part.first_column, row) : &x(row, part.first_column);
    const std::int64_t step = transposed ? std::int64_t(x.stride(0)) : 1;
    for (std::int64_t j = 0; j < columns; ++j) out[j * step] = Storage(factor * in[j]);
  });
}

template <class Storage>
void scale_add(float a, ConstMatrixOf<Storage> x, float b, MatrixOf<Storage> y) {
  for_each("scale_add", x.extent_int(0), [=](std::int64_t i) {
    const Storage* const in = &x(i, 0);
    Storage* const out = &y(i, 0);
    const std::int64_t columns = x.extent_int(1);
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j)
      out[j] = Storage(a * float(in[j]) + b * float(out[j]));
  });
}

template <class Storage>
void step_along(float kept, float length, ConstMatrixOf<Storage> x, bool transposed,
                const MatrixPart& part, int columns, std::int64_t first,
                const UpdatedElements& elements) {
  const StepAlong<Storage> rule{x, transposed, part, columns, kept, length};
  float* const weight = elements.weight;
  std::visit(
      [&](auto* rounded) {
        for_each_piece("step_along", elements.count, 4096,
                       [=](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t i = begin; i < end; ++i) {
                           weight[i] = rule(first + i, weight[i]);
                           if (rounded != nullptr) rounded[i] = weight[i];
                         }
                       });
      },
      elements.rounded);
}

}  // namespace brume::kernels

#include "kernels/instances/muon.hpp"
