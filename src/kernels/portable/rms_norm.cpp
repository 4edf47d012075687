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
        along(team, width, [&](int c) { y(n, c) = gain(c) * (x(n, c) * scale); });
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
        along(team, x.extent_int(1), [&](int c) { y(n, c) = gain(c) * (x(n, c) * scale); });
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
  const bool passes = residual.data() != nullptr;
  for_each_row(
      "rms_norm_backward", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = x.extent_int(1);
        const float scale = rstd(n);
        const float mean_gx =
            sum_along(team, width, [&](int c) { return dy(n, c) * gain(c) * (x(n, c) * scale); }) /
            float(width);
        along(team, width, [&](int c) {
          const float value = scale * (dy(n, c) * gain(c) - x(n, c) * scale * mean_gx);
          dx(n, c) = (passes ? float(residual(n, c)) : 0.0f) + value;
        });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/rms_norm.hpp"
