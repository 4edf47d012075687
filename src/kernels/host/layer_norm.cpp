#include "kernels/layer_norm.hpp"

#include <array>
#include <cmath>

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

/// Some rows of one backward call.
template <class Storage>
struct Rows {
  ConstMatrixOf<Storage> dy, x;
  ConstVectorOf<Storage> gain;
  ConstVector mean, rstd;
  std::int64_t first, last;
};

template <class Storage>
inline void apply_row(const Storage* x, const Storage* gain, const Storage* bias, float mean,
                      float rstd, int width, Storage* y) {
#pragma omp simd
  for (int c = 0; c < width; ++c) y[c] = gain[c] * ((x[c] - mean) * rstd) + bias[c];
}

/// dgain += sum_n dy xhat, dbias += sum_n dy over the rows, in their order. What is not wanted is
/// added up beside: one loop for both reads less than one each.
template <class Storage>
void add_column_sums(const Rows<Storage>& rows, const Vector& dgain, const Vector& dbias) {
  if (dgain.data() == nullptr && dbias.data() == nullptr) return;
  for_each_columns("layer_norm_backward_sums", rows.x.extent(1),
                   [=](std::int64_t begin, std::int64_t end) {
                     std::array<float, most_columns> unwanted{};
                     const auto sums = [&](const Vector& of) {
                       return of.data() != nullptr ? &of(begin) : unwanted.data();
                     };
                     float* const gain_sum = sums(dgain);
                     float* const bias_sum = sums(dbias);
                     for (std::int64_t n = rows.first; n < rows.last; ++n) {
                       const Storage* const grad = &rows.dy(n, begin);
                       const Storage* const in = &rows.x(n, begin);
                       const float mean = rows.mean(n);
                       const float rstd = rows.rstd(n);
#pragma omp simd
                       for (std::int64_t c = 0; c < end - begin; ++c) {
                         gain_sum[c] += grad[c] * ((in[c] - mean) * rstd);
                         bias_sum[c] += grad[c];
                       }
                     }
                   });
}

template <class Storage>
void write_dx(const Rows<Storage>& rows, const ConstMatrixOf<Storage>& residual,
              const MatrixOf<Storage>& dx) {
  const int width = rows.x.extent_int(1);
  for_each("layer_norm_backward", rows.last - rows.first, [=](std::int64_t i) {
    const std::int64_t n = rows.first + i;
    const Storage* const grad = &rows.dy(n, 0);
    const Storage* const in = &rows.x(n, 0);
    const Storage* const gain = rows.gain.data();
    Storage* const out = &dx(n, 0);
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
      const Storage* const passed = &residual(n, 0);
#pragma omp simd
      for (int c = 0; c < width; ++c) out[c] = passed[c] + value(c);
    }
  });
}

}  // namespace

template <class Storage>
void layer_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                        ConstVectorOf<Storage> bias, float eps, MatrixOf<Storage> y, Vector mean,
                        Vector rstd) {
  promise_norm("layer_norm_forward", x, gain, y, rstd);
  promise_norm("layer_norm_forward", x, bias, y, mean);
  const int width = x.extent_int(1);
  for_each("layer_norm_forward", x.extent(0), [=](std::int64_t n) {
    const Storage* const in = &x(n, 0);
    const float middle = sum_terms(width, [=](int c) { return in[c]; }) / float(width);
    const float variance =
        sum_terms(width, [=](int c) { return (in[c] - middle) * (in[c] - middle); }) / float(width);
    mean(n) = middle;
    rstd(n) = 1.0f / std::sqrt(variance + eps);
    apply_row(in, gain.data(), bias.data(), middle, rstd(n), width, &y(n, 0));
  });
}

template <class Storage>
void layer_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                      ConstVectorOf<Storage> bias, ConstVector mean, ConstVector rstd,
                      MatrixOf<Storage> y) {
  promise_norm("layer_norm_apply", x, gain, y, rstd);
  promise_norm("layer_norm_apply", x, bias, y, mean);
  const int width = x.extent_int(1);
  for_each("layer_norm_apply", x.extent(0), [=](std::int64_t n) {
    apply_row(&x(n, 0), gain.data(), bias.data(), mean(n), rstd(n), width, &y(n, 0));
  });
}

template <class Storage>
void layer_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                         ConstVectorOf<Storage> gain, ConstVector mean, ConstVector rstd,
                         ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                         Vector dgain, Vector dbias) {
  promise_norm("layer_norm_backward", x, gain, dy, rstd);
  promise_norm("layer_norm_backward", x, gain, dx, mean);
  promise_gradient("layer_norm_backward", dgain, gain);
  promise_gradient("layer_norm_backward", dbias, gain);
  promise_residual("layer_norm_backward", x, residual);
  if (write == Write::replace) {
    std::fill_n(dgain.data(), dgain.extent(0), 0.0f);
    std::fill_n(dbias.data(), dbias.extent(0), 0.0f);
  }
  // dx may overwrite dy, so the sums come first; in blocks that stay in L2 between the two passes.
  const std::int64_t tokens = x.extent(0);
  const std::int64_t block = std::max<std::int64_t>(
      1, 32768 * omp_get_max_threads() / std::max<std::int64_t>(1, x.extent(1)));
  for (std::int64_t first = 0; first < tokens; first += block) {
    const Rows<Storage> rows{dy, x, gain, mean, rstd, first, std::min(tokens, first + block)};
    add_column_sums(rows, dgain, dbias);
    write_dx(rows, residual, dx);
  }
}

}  // namespace brume::kernels

#include "kernels/instances/layer_norm.hpp"
