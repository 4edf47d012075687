#include "kernels/rms_norm.hpp"

#include <cmath>

#include "kernels/portable/launch.hpp"

namespace brume::kernels {

template <class Storage>
void rms_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, float eps,
                      MatrixOf<Storage> y, Vector rstd) {
  promise_norm("rms_norm_forward", x, gain, y, rstd);
  for_each_row(
      "rms_norm_forward", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = x.extent_int(1);
        const float mean =
            sum_along(team, width, [&](int c) { return x(n, c) * x(n, c); }) / float(width);
        const float scale = 1.0f / std::sqrt(mean + eps);
        Kokkos::single(Kokkos::PerTeam(team), [&]() { rstd(n) = scale; });
        along(
            team, width, [&](int c) { return gain(c) * (x(n, c) * scale); },
            [&](int c, float value) { y(n, c) = value; });
      });
}

template <class Storage>
void rms_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, ConstVector rstd,
                    MatrixOf<Storage> y) {
  promise_norm("rms_norm_apply", x, gain, y, rstd);
  for_each_row(
      "rms_norm_apply", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        const float scale = rstd(n);
        along(
            team, x.extent_int(1), [&](int c) { return gain(c) * (x(n, c) * scale); },
            [&](int c, float value) { y(n, c) = value; });
      });
}

template <class Storage>
void rms_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                       ConstVectorOf<Storage> gain, ConstVector rstd,
                       ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                       Vector dgain) {
  promise_norm("rms_norm_backward", x, gain, dy, rstd);
  promise_norm("rms_norm_backward", x, dgain, dx, rstd);
  promise_residual("rms_norm_backward", x, residual);
  // dx may overwrite dy, so the sums come first.
  sum_columns<1>(
      "rms_norm_backward_sums", x.extent(0), x.extent(1), write, {dgain.data()},
      KOKKOS_LAMBDA(std::int64_t n, std::int64_t c, float* sum) {
        sum[0] += dy(n, c) * (x(n, c) * rstd(n));
      });
  for_each_row(
      "rms_norm_backward", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = x.extent_int(1);
        const float scale = rstd(n);
        const float mean_gx =
            sum_along(team, width, [&](int c) { return dy(n, c) * gain(c) * (x(n, c) * scale); }) /
            float(width);
        const Storage* const passed = residual.data() != nullptr ? &residual(n, 0) : nullptr;
        along(
            team, width,
            [&](int c) {
              const float value = scale * (dy(n, c) * gain(c) - x(n, c) * scale * mean_gx);
              return optional(passed, &x(n, 0), c) + value;
            },
            [&](int c, float value) { dx(n, c) = value; });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/rms_norm.hpp"
