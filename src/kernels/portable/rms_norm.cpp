#include "kernels/rms_norm.hpp"

#include <cmath>

#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

/// A part of a row: the i-th of all rows, of `width` columns.
struct Part {
  int n, first;

  KOKKOS_INLINE_FUNCTION Part(std::int64_t i, int in_row, int width)
      : n(int(i / in_row)), first(int(i % in_row) * width) {}
};

template <class Storage>
std::int64_t parts_of(const ConstMatrixOf<Storage>& x, int in_row) {
  return std::int64_t(x.extent(0)) * in_row;
}

}  // namespace

template <class Storage>
void rms_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, float eps,
                      MatrixOf<Storage> y, Vector rstd, float base,
                      ConstMatrixOf<Storage> residual) {
  promise_rms_norm("rms_norm_forward", x, gain, y, rstd);
  promise_residual("rms_norm_forward", x, residual);
  const int width = gain.extent_int(0), in_row = x.extent_int(1) / width;
  for_each_row(
      "rms_norm_forward", parts_of<Storage>(x, in_row), KOKKOS_LAMBDA(const Team& team) {
        const int i = team.league_rank();
        const Part at(i, in_row, width);
        const Storage* const in = &x(at.n, at.first);
        Storage* const out = &y(at.n, at.first);
        const float mean =
            sum_along(team, width, [&](int c) { return in[c] * in[c]; }) / float(width);
        const float scale = 1.0f / std::sqrt(mean + eps);
        Kokkos::single(Kokkos::PerTeam(team), [&]() { rstd(i) = scale; });
        const Storage* const added =
            residual.data() != nullptr ? &residual(at.n, at.first) : nullptr;
        along(
            team, width,
            [&](int c) { return optional(added, in, c) + (base + gain(c)) * (in[c] * scale); },
            [&](int c, float value) { out[c] = value; });
      });
}

template <class Storage>
void rms_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, ConstVector rstd,
                    MatrixOf<Storage> y, float base) {
  promise_rms_norm("rms_norm_apply", x, gain, y, rstd);
  const int width = gain.extent_int(0), in_row = x.extent_int(1) / width;
  for_each_row(
      "rms_norm_apply", parts_of<Storage>(x, in_row), KOKKOS_LAMBDA(const Team& team) {
        const int i = team.league_rank();
        const Part at(i, in_row, width);
        const Storage* const in = &x(at.n, at.first);
        Storage* const out = &y(at.n, at.first);
        const float scale = rstd(i);
        along(
            team, width, [&](int c) { return (base + gain(c)) * (in[c] * scale); },
            [&](int c, float value) { out[c] = value; });
      });
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
  const int width = gain.extent_int(0), in_row = x.extent_int(1) / width;
  // dx may overwrite dy, so the sums come first.
  if (dgain.data() != nullptr)
    sum_columns<1>(
        "rms_norm_backward_sums", parts_of<Storage>(x, in_row), width, write, {dgain.data()},
        KOKKOS_LAMBDA(std::int64_t i, std::int64_t c, float* sum) {
          const Part at(i, in_row, width);
          sum[0] += dy(at.n, at.first + c) * (x(at.n, at.first + c) * rstd(i));
        });
  for_each_row(
      "rms_norm_backward", parts_of<Storage>(x, in_row), KOKKOS_LAMBDA(const Team& team) {
        const int i = team.league_rank();
        const Part at(i, in_row, width);
        const Storage* const in = &x(at.n, at.first);
        const Storage* const grad = &dy(at.n, at.first);
        Storage* const out = &dx(at.n, at.first);
        const float scale = rstd(i);
        const float mean_gx =
            sum_along(team, width,
                      [&](int c) { return grad[c] * (base + gain(c)) * (in[c] * scale); }) /
            float(width);
        const Storage* const passed =
            residual.data() != nullptr ? &residual(at.n, at.first) : nullptr;
        along(
            team, width,
            [&](int c) {
              const float value = scale * (grad[c] * (base + gain(c)) - in[c] * scale * mean_gx);
              return optional(passed, in, c) + value;
            },
            [&](int c, float value) { out[c] = value; });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/rms_norm.hpp"
