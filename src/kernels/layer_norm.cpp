#include "kernels/layer_norm.hpp"

#include <cmath>

#include "kernels/host.hpp"

namespace brume::kernels {
namespace {

/// Some rows of one backward call.
struct Rows {
  ConstMatrix dy, x;
  ConstVector gain, mean, rstd;
  std::int64_t first, last;
};

inline void apply_row(const float* x, const ConstVector& gain, const ConstVector& bias, float mean,
                      float rstd, int width, float* y) {
  const float* const g = gain.data();
  const float* const b = bias.data();
#pragma omp simd
  for (int c = 0; c < width; ++c) y[c] = g[c] * ((x[c] - mean) * rstd) + b[c];
}

/// dgain += sum_n dy xhat, dbias += sum_n dy over the rows, in their order.
void add_column_sums(const Rows& rows, const Vector& dgain, const Vector& dbias) {
  for_each_columns("layer_norm_backward_sums", rows.x.extent(1),
                   [=](std::int64_t begin, std::int64_t end) {
                     float* const gain_sum = dgain.data();
                     float* const bias_sum = dbias.data();
                     for (std::int64_t n = rows.first; n < rows.last; ++n) {
                       const float* const grad = &rows.dy(n, 0);
                       const float* const in = &rows.x(n, 0);
                       const float mean = rows.mean(n);
                       const float rstd = rows.rstd(n);
#pragma omp simd
                       for (std::int64_t c = begin; c < end; ++c) {
                         gain_sum[c] += grad[c] * ((in[c] - mean) * rstd);
                         bias_sum[c] += grad[c];
                       }
                     }
                   });
}

void write_dx(const Rows& rows, const ConstMatrix& residual, const Matrix& dx) {
  const int width = rows.x.extent_int(1);
  for_each("layer_norm_backward", rows.last - rows.first, [=](std::int64_t i) {
    const std::int64_t n = rows.first + i;
    const float* const grad = &rows.dy(n, 0);
    const float* const in = &rows.x(n, 0);
    const float* const gain = rows.gain.data();
    float* const out = &dx(n, 0);
    const float mean = rows.mean(n);
    const float rstd = rows.rstd(n);
    const float mean_g = sum_terms(width, [=](int c) { return grad[c] * gain[c]; }) / float(width);
    const float mean_gx =
        sum_terms(width, [=](int c) { return grad[c] * gain[c] * ((in[c] - mean) * rstd); }) /
        float(width);
    const auto value = [=](int c) {
      return rstd * (grad[c] * gain[c] - mean_g - (in[c] - mean) * rstd * mean_gx);
    };
    if (residual.data() == nullptr) {
#pragma omp simd
      for (int c = 0; c < width; ++c) out[c] = value(c);
    } else {
      const float* const passed = &residual(n, 0);
#pragma omp simd
      for (int c = 0; c < width; ++c) out[c] = passed[c] + value(c);
    }
  });
}

}  // namespace

void layer_norm_forward(ConstMatrix x, ConstVector gain, ConstVector bias, float eps, Matrix y,
                        Vector mean, Vector rstd) {
  promise(same_extents(x, y) && gain.extent(0) == x.extent(1) && bias.extent(0) == x.extent(1) &&
              mean.extent(0) == x.extent(0) && rstd.extent(0) == x.extent(0),
          "layer_norm_forward", "x and y [N, C], gain and bias [C], mean and rstd [N] must fit");
  const int width = x.extent_int(1);
  for_each("layer_norm_forward", x.extent(0), [=](std::int64_t n) {
    const float* const in = &x(n, 0);
    const float middle = sum_terms(width, [=](int c) { return in[c]; }) / float(width);
    const float variance =
        sum_terms(width, [=](int c) { return (in[c] - middle) * (in[c] - middle); }) / float(width);
    mean(n) = middle;
    rstd(n) = 1.0f / std::sqrt(variance + eps);
    apply_row(in, gain, bias, middle, rstd(n), width, &y(n, 0));
  });
}

void layer_norm_apply(ConstMatrix x, ConstVector gain, ConstVector bias, ConstVector mean,
                      ConstVector rstd, Matrix y) {
  promise(same_extents(x, y) && gain.extent(0) == x.extent(1) && bias.extent(0) == x.extent(1) &&
              mean.extent(0) == x.extent(0) && rstd.extent(0) == x.extent(0),
          "layer_norm_apply", "x and y [N, C], gain and bias [C], mean and rstd [N] must fit");
  const int width = x.extent_int(1);
  for_each("layer_norm_apply", x.extent(0), [=](std::int64_t n) {
    apply_row(&x(n, 0), gain, bias, mean(n), rstd(n), width, &y(n, 0));
  });
}

void layer_norm_backward(ConstMatrix dy, ConstMatrix x, ConstVector gain, ConstVector mean,
                         ConstVector rstd, ConstMatrix residual, Matrix dx, Write write,
                         Vector dgain, Vector dbias) {
  promise(same_extents(dy, x) && same_extents(dx, x) && gain.extent(0) == x.extent(1) &&
              dgain.extent(0) == x.extent(1) && dbias.extent(0) == x.extent(1) &&
              mean.extent(0) == x.extent(0) && rstd.extent(0) == x.extent(0),
          "layer_norm_backward", "dy, x and dx [N, C], gain, dgain and dbias [C] must fit");
  promise(residual.data() == nullptr || same_extents(residual, x), "layer_norm_backward",
          "residual must be empty or [N, C]");
  if (write == Write::replace) {
    std::fill_n(dgain.data(), dgain.extent(0), 0.0f);
    std::fill_n(dbias.data(), dbias.extent(0), 0.0f);
  }
  // dx may overwrite dy, so the sums come first; in blocks that stay in L2 between the two passes.
  const std::int64_t tokens = x.extent(0);
  const std::int64_t block = std::max<std::int64_t>(
      1, 32768 * omp_get_max_threads() / std::max<std::int64_t>(1, x.extent(1)));
  for (std::int64_t first = 0; first < tokens; first += block) {
    const Rows rows{dy, x, gain, mean, rstd, first, std::min(tokens, first + block)};
    add_column_sums(rows, dgain, dbias);
    write_dx(rows, residual, dx);
  }
}

}  // namespace brume::kernels
