#include "kernels/rms_norm.hpp"

#include <cmath>

#include "kernels/host.hpp"

namespace brume::kernels {
namespace {

inline void apply_row(const float* x, const float* gain, float rstd, int width, float* y) {
#pragma omp simd
  for (int c = 0; c < width; ++c) y[c] = gain[c] * (x[c] * rstd);
}

/// dgain += sum_n dy xhat over rows [first, last), in their order.
void add_column_sums(const ConstMatrix& dy, const ConstMatrix& x, const ConstVector& rstd,
                     std::int64_t first, std::int64_t last, const Vector& dgain) {
  for_each_columns("rms_norm_backward_sums", x.extent(1),
                   [=](std::int64_t begin, std::int64_t end) {
                     float* const sum = dgain.data();
                     for (std::int64_t n = first; n < last; ++n) {
                       const float* const grad = &dy(n, 0);
                       const float* const in = &x(n, 0);
                       const float scale = rstd(n);
#pragma omp simd
                       for (std::int64_t c = begin; c < end; ++c)
                         sum[c] += grad[c] * (in[c] * scale);
                     }
                   });
}

inline void write_dx_row(const float* grad, const float* x, const float* gain, float rstd,
                         const float* residual, int width, float* dx) {
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

void rms_norm_forward(ConstMatrix x, ConstVector gain, float eps, Matrix y, Vector rstd) {
  promise(same_extents(x, y) && gain.extent(0) == x.extent(1) && rstd.extent(0) == x.extent(0),
          "rms_norm_forward", "x and y [N, C], gain [C] and rstd [N] must fit");
  const int width = x.extent_int(1);
  for_each("rms_norm_forward", x.extent(0), [=](std::int64_t n) {
    const float* const in = &x(n, 0);
    const float mean = sum_terms(width, [=](int c) { return in[c] * in[c]; }) / float(width);
    rstd(n) = 1.0f / std::sqrt(mean + eps);
    apply_row(in, gain.data(), rstd(n), width, &y(n, 0));
  });
}

void rms_norm_apply(ConstMatrix x, ConstVector gain, ConstVector rstd, Matrix y) {
  promise(same_extents(x, y) && gain.extent(0) == x.extent(1) && rstd.extent(0) == x.extent(0),
          "rms_norm_apply", "x and y [N, C], gain [C] and rstd [N] must fit");
  const int width = x.extent_int(1);
  for_each("rms_norm_apply", x.extent(0),
           [=](std::int64_t n) { apply_row(&x(n, 0), gain.data(), rstd(n), width, &y(n, 0)); });
}

void rms_norm_backward(ConstMatrix dy, ConstMatrix x, ConstVector gain, ConstVector rstd,
                       ConstMatrix residual, Matrix dx, Write write, Vector dgain) {
  promise(same_extents(dy, x) && same_extents(dx, x) && gain.extent(0) == x.extent(1) &&
              dgain.extent(0) == x.extent(1) && rstd.extent(0) == x.extent(0),
          "rms_norm_backward", "dy, x and dx [N, C], gain and dgain [C], rstd [N] must fit");
  promise(residual.data() == nullptr || same_extents(residual, x), "rms_norm_backward",
          "residual must be empty or [N, C]");
  if (write == Write::replace) std::fill_n(dgain.data(), dgain.extent(0), 0.0f);
  const int width = x.extent_int(1);
  // dx may overwrite dy, so the sums come first; in blocks that stay in L2 between the two passes.
  const std::int64_t tokens = x.extent(0);
  const std::int64_t block = std::max(1, 32768 * omp_get_max_threads() / std::max(1, width));
  for (std::int64_t first = 0; first < tokens; first += block) {
    const std::int64_t last = std::min(tokens, first + block);
    add_column_sums(dy, x, rstd, first, last, dgain);
    for_each("rms_norm_backward", last - first, [=](std::int64_t i) {
      const std::int64_t n = first + i;
      write_dx_row(&dy(n, 0), &x(n, 0), gain.data(), rstd(n),
                   residual.data() == nullptr ? nullptr : &residual(n, 0), width, &dx(n, 0));
    });
  }
}

}  // namespace brume::kernels
