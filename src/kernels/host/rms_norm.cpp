#include "kernels/rms_norm.hpp"

#include <cmath>

#include "kernels/host/loops.hpp"

namespace brume::kernels {

/// The parts of all rows, counted through.
template <class View>
class Parts {
 public:
  Parts(const View& matrix, std::size_t width)
      : matrix_(matrix), width_(std::int64_t(width)), in_row_(matrix.extent_int(1) / width_) {}
  std::int64_t count() const { return std::int64_t(matrix_.extent(0)) * in_row_; }
  auto* operator[](std::int64_t i) const { return &matrix_(i / in_row_, i % in_row_ * width_); }

 private:
  View matrix_;
  std::int64_t width_, in_row_;
};

namespace {

template <class Storage>
inline void apply_part(const Storage* x, const Storage* gain, float base, float rstd, int width,
                       Storage* y) {
#pragma omp simd
  for (int c = 0; c < width; ++c) y[c] = (base + gain[c]) * (x[c] * rstd);
}

/// dgain += sum_i dy xhat over parts [first, last), in their order.
template <class Storage>
void add_column_sums(const Parts<ConstMatrixOf<Storage>>& dy,
                     const Parts<ConstMatrixOf<Storage>>& x, const ConstVector& rstd,
                     std::int64_t first, std::int64_t last, const Vector& dgain) {
  for_each_columns("rms_norm_backward_sums", dgain.extent(0),
                   [=](std::int64_t begin, std::int64_t end) {
                     float* const sum = dgain.data();
                     for (std::int64_t i = first; i < last; ++i) {
                       const Storage* const grad = dy[i];
                       const Storage* const in = x[i];
                       const float scale = rstd(i);
#pragma omp simd
                       for (std::int64_t c = begin; c < end; ++c)
                         sum[c] += grad[c] * (in[c] * scale);
                     }
                   });
}

template <class Storage>
inline void write_dx_part(const Storage* grad, const Storage* x, const Storage* gain, float base,
                          float rstd, const Storage* residual, int width, Storage* dx) {
  const float mean_gx =
      sum_terms(width, [=](int c) { return grad[c] * (base + gain[c]) * (x[c] * rstd); }) /
      float(width);
  const auto value = [=](int c) {
    return rstd * (grad[c] * (base + gain[c]) - x[c] * rstd * mean_gx);
  };
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
                      MatrixOf<Storage> y, Vector rstd, float base,
                      ConstMatrixOf<Storage> residual) {
  promise_rms_norm("rms_norm_forward", x, gain, y, rstd);
  promise_residual("rms_norm_forward", x, residual);
  const Parts in(x, gain.size());
  const Parts out(y, gain.size());
  const Parts added(residual, gain.size());
  const bool adds = residual.data() != nullptr;
  const int width = gain.extent_int(0);
  for_each("rms_norm_forward", in.count(), [=](std::int64_t i) {
    const Storage* const part = in[i];
    const float mean = sum_terms(width, [=](int c) { return part[c] * part[c]; }) / float(width);
    rstd(i) = 1.0f / std::sqrt(mean + eps);
    if (!adds) return apply_part(part, gain.data(), base, rstd(i), width, out[i]);
    const Storage *const before = added[i], *const gains = gain.data();
    Storage* const to = out[i];
    const float scale = rstd(i);
#pragma omp simd
    for (int c = 0; c < width; ++c) to[c] = before[c] + (base + gains[c]) * (part[c] * scale);
  });
}

template <class Storage>
void rms_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, ConstVector rstd,
                    MatrixOf<Storage> y, float base) {
  promise_rms_norm("rms_norm_apply", x, gain, y, rstd);
  const Parts in(x, gain.size());
  const Parts out(y, gain.size());
  const int width = gain.extent_int(0);
  for_each("rms_norm_apply", in.count(),
           [=](std::int64_t i) { apply_part(in[i], gain.data(), base, rstd(i), width, out[i]); });
}

template <class Storage>
void rms_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                       ConstVectorOf<Storage> gain, ConstVector rstd,
                       ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                       Vector dgain, float base) {
  promise_rms_norm("rms_norm_backward", x, gain, dy, rstd);
  promise_rms_norm("rms_norm_backward", x, gain, dx, rstd);
  promise_gradient("rms_norm_backward", dgain, gain);
  promise_residual("rms_norm_backward", x, residual);
  if (write == Write::replace) std::fill_n(dgain.data(), dgain.extent(0), 0.0f);
  const int width = gain.extent_int(0);
  const Parts in(x, gain.size()), grad(dy, gain.size()), added(residual, gain.size());
  const Parts out(dx, gain.size());
  const bool adds = residual.data() != nullptr;
  // dx may overwrite dy, so the sums come first; in blocks that stay in L2 between the two passes.
  const std::int64_t count = in.count();
  const std::int64_t block = std::max(1, 32768 * omp_get_max_threads() / std::max(1, width));
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t last = std::min(count, first + block);
    if (dgain.data() != nullptr) add_column_sums<Storage>(grad, in, rstd, first, last, dgain);
    for_each("rms_norm_backward", last - first, [=](std::int64_t i) {
      const std::int64_t part = first + i;
      write_dx_part(grad[part], in[part], gain.data(), base, rstd(part),
                    adds ? added[part] : nullptr, width, out[part]);
    });
  }
}

}  // namespace brume::kernels

#include "kernels/instances/rms_norm.hpp"
