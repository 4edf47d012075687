#include "kernels/rms_norm.hpp"

#include <cmath>

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

template <class Storage>
inline void apply_row(const Storage* x, const Storage* gain, float rstd, int width, Storage* y) {
#pragma omp simd
  for (int c = 0; c < width; ++c) y[c] = gain[c] * (x[c] * rstd);
}

/// dgain += sum_n dy xhat over rows [first, last), in their order.
template <class Storage>
void add_column_sums(const ConstMatrixOf<Storage>& dy, const ConstMatrixOf<Storage>& x,
                     const ConstVector& rstd, std::int64_t first, std::int64_t last,
                     const Vector& dgain) {
  for_each_columns("rms_norm_backward_sums", x.extent(1),
                   [=](std::int64_t begin, std::int64_t end) {
                     float* const sum = dgain.data();
                     for (std::int64_t n = first; n < last; ++n) {
                       const Storage* const grad = &dy(n, 0);
                       const Storage* const in = &x(n, 0);
                       const float scale = rstd(n);
#pragma omp simd
                       for (std::int64_t c = begin; c < end; ++c)
                         sum[c] += grad[c] * (in[c] * scale);
                     }
                   });
}

template <class Storage>
inline void write_dx_row(const Storage* grad, const Storage* x, const Storage* gain, float rstd,
                         const Storage* residual, int width, Storage* dx) {
  const float mean_gx =
      sum_terms(width, [=](int c) { return grad[c] * gain[c] * (x[c] * rstd); }) / float(width);
  const auto value = [=](int c) { return rstd * (grad[c] * gain[c] - x[c] * rstd * mean_gx); };
  if (residual == nullptr) {
#pragma omp simd
    for (int c = 0; c < width; ++c) dx[c] = value(c);
  } else {
#pragma omp simd
    for (int c = 0; c < width; ++c) dx[c] = residual[c] + value(c);
  }
}

}  // namespace

template <class Storage>
void rms_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, float eps,
                      MatrixOf<Storage> y, Vector rstd) {
  promise_norm("rms_norm_forward", x, gain, y, rstd);
  const int width = x.extent_int(1);
  for_each("rms_norm_forward", x.extent(0), [=](std::int64_t n) {
    const Storage* const in = &x(n, 0);
    const float mean = sum_terms(width, [=](int c) { return in[c] * in[c]; }) / float(width);
    rstd(n) = 1.0f / std::sqrt(mean + eps);
    apply_row(in, gain.data(), rstd(n), width, &y(n, 0));
  });
}

template <class Storage>
void rms_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, ConstVector rstd,
                    MatrixOf<Storage> y) {
  promise_norm("rms_norm_apply", x, gain, y, rstd);
  const int width = x.extent_int(1);
  for_each("rms_norm_apply", x.extent(0),
           [=](std::int64_t n) { apply_row(&x(n, 0), gain.data(), rstd(n), width, &y(n, 0)); });
}

template <class Storage>
void rms_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                       ConstVectorOf<Storage> gain, ConstVector rstd,
                       ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                       Vector dgain) {
  promise_norm("rms_norm_backward", x, gain, dy, rstd);
  promise_norm("rms_norm_backward", x, dgain, dx, rstd);
  promise_residual("rms_norm_backward", x, residual);
  if (write == Write::replace) std::fill_n(dgain.data(), dgain.extent(0), 0.0f);
  const int width = x.extent_int(1);
  // dx may overwrite dy, so the sums come first; in blocks that stay in L2 between the two passes.
  const std::int64_t tokens = x.extent(0);
  const std::int64_t block = std::max(1, 32768 * omp_get_max_threads() / std::max(1, width));
  for (std::int64_t first = 0; first < tokens; first += block) {
    const std::int64_t last = std::min(tokens, first + block);
    add_column_sums<Storage>(dy, x, rstd, first, last, dgain);
    for_each("rms_norm_backward", last - first, [=](std::int64_t i) {
      const std::int64_t n = first + i;
      write_dx_row(&dy(n, 0), &x(n, 0), gain.data(), rstd(n),
                   residual.data() == nullptr ? nullptr : &residual(n, 0), width, &dx(n, 0));
    });
  }
}

}  // namespace brume::kernels

#include "kernels/instances/rms_norm.hpp"
