#include "kernels/pointwise.hpp"

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

constexpr std::int64_t piece =
    4096;  // elements of one launch index: 16 KiB an array, so L1 holds two

}  // namespace

template <class Storage>
void add_bias(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> bias, MatrixOf<Storage> y) {
  promise(same_extents(x, y) && is_row_of(bias, x), "add_bias",
          "x [N, C], bias [C] and y [N, C] must fit");
  const int width = x.extent_int(1);
  for_each("add_bias", x.extent(0), [=](std::int64_t n) {
    const Storage* const in = &x(n, 0);
    const Storage* const b = bias.data();
    Storage* const out = &y(n, 0);
#pragma omp simd
    for (int c = 0; c < width; ++c) out[c] = in[c] + b[c];
  });
}

template <class Storage>
void bias_backward(ConstMatrixOf<Storage> dy, Write write, Vector db) {
  promise(is_row_of(db, dy), "bias_backward", "dy [N, C] and db [C] must fit");
  const int tokens = dy.extent_int(0);
  // Four rows at a time, because every addition to a sum waits for the store of the last one.
  for_each_columns("bias_backward", dy.extent(1), [=](std::int64_t begin, std::int64_t end) {
    float* const sum = db.data();
    if (write == Write::replace) std::fill(sum + begin, sum + end, 0.0f);
    int n = 0;
    for (; n + 4 <= tokens; n += 4) {
      const Storage *const r0 = &dy(n, 0), *const r1 = &dy(n + 1, 0);
      const Storage *const r2 = &dy(n + 2, 0), *const r3 = &dy(n + 3, 0);
#pragma omp simd
      for (std::int64_t c = begin; c < end; ++c) sum[c] += (r0[c] + r1[c]) + (r2[c] + r3[c]);
    }
    for (; n < tokens; ++n) {
      const Storage* const row = &dy(n, 0);
#pragma omp simd
      for (std::int64_t c = begin; c < end; ++c) sum[c] += row[c];
    }
  });
}

void add(ConstVector x, Vector y) {
  promise(x.extent(0) == y.extent(0), "add", "x and y must have one length");
  for_each_piece("add", x.extent(0), piece, [=](std::int64_t begin, std::int64_t end) {
    const float* const in = x.data();
    float* const out = y.data();
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] += in[i];
  });
}

template <class Storage>
void add_residual(ConstMatrixOf<Storage> x, MatrixOf<Storage> y) {
  promise(same_extents(x, y), "add_residual", "x and y [N, C] must fit");
  const int width = x.extent_int(1);
  for_each("add_residual", x.extent(0), [=](std::int64_t n) {
    const Storage* const in = &x(n, 0);
    Storage* const out = &y(n, 0);
#pragma omp simd
    for (int c = 0; c < width; ++c) out[c] = out[c] + in[c];
  });
}

template <class Storage>
void copy(ConstVectorOf<Storage> x, VectorOf<Storage> y) {
  promise(x.extent(0) == y.extent(0), "copy", "x and y must have one length");
  for_each_piece("copy", x.extent(0), piece, [=](std::int64_t begin, std::int64_t end) {
    std::copy(x.data() + begin, x.data() + end, y.data() + begin);
  });
}

template <class Storage>
void scale(float factor, MatrixOf<Storage> y) {
  const int width = y.extent_int(1);
  for_each("scale", y.extent(0), [=](std::int64_t n) {
    Storage* const out = &y(n, 0);
#pragma omp simd
    for (int c = 0; c < width; ++c) out[c] = Storage(factor * float(out[c]));
  });
}

void fill(float value, Vector y) {
  for_each_piece("fill", y.extent(0), piece, [=](std::int64_t begin, std::int64_t end) {
    std::fill(y.data() + begin, y.data() + end, value);
  });
}

void sum_squares(ConstVector x, Write write, double* sum) {
  const std::int64_t count = x.extent(0);
  const double own = ordered_sum("sum_squares", (count + piece - 1) / piece, [=](std::int64_t i) {
    const std::int64_t begin = i * piece;
    const std::int64_t end = std::min(count, begin + piece);
    const float* const in = x.data();
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = begin; j < end; ++j) sum += double(in[j]) * double(in[j]);
    return sum;
  });
  store(own, write, sum);
}

}  // namespace brume::kernels

#include "kernels/instances/pointwise.hpp"
