#include "kernels/layer_norm.hpp"

#include <cmath>

#include "kernels/portable/launch.hpp"

namespace brume::kernels {

template <class Storage>
void layer_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                        ConstVectorOf<Storage> bias, float eps, MatrixOf<Storage> y, Vector mean,
                        Vector rstd) {
  promise_norm("layer_norm_forward", x, gain, y, rstd);
  promise_norm("layer_norm_forward", x, bias, y, mean);
  for_each_row(
      "layer_norm_forward", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = x.extent_int(1);
        const float middle =
            sum_along(team, width, [&](int c) { return float(x(n, c)); }) / float(width);
        const float variance = sum_along(team, width,
                                         [&](int c) {
                                           const float off = x(n, c) - middle;
                                           return off * off;
                                         }) /
                               float(width);
        const float scale = 1.0f / std::sqrt(variance + eps);
        Kokkos::single(Kokkos::PerTeam(team), [&]() { mean(n) = middle, rstd(n) = scale; });
        along(
            team, width, [&](int c) { return gain(c) * ((x(n, c) - middle) * scale) + bias(c); },
            [&](int c, float value) { y(n, c) = value; });
      });
}

template <class Storage>
void layer_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                      ConstVectorOf<Storage> bias, ConstVector mean, ConstVector rstd,
                      MatrixOf<Storage> y) {
  promise_norm("layer_norm_apply", x, gain, y, rstd);
  promise_norm("layer_norm_apply", x, bias, y, mean);
  for_each_row(
      "layer_norm_apply", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        const float middle = mean(n), scale = rstd(n);
        along(
            team, x.extent_int(1),
            [&](int c) { return gain(c) * ((x(n, c) - middle) * scale) + bias(c); },
            [&](int c, float value) { y(n, c) = value; });
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
  // dx may overwrite dy, so the sums come first.
  if (dgain.data() != nullptr || dbias.data() != nullptr)
    sum_columns<2>(
        "layer_norm_backward_sums", x.extent(0), x.extent(1), write, {dgain.data(), dbias.data()},
        KOKKOS_LAMBDA(std::int64_t n, std::int64_t c, float* sum) {
          sum[0] += dy(n, c) * ((x(n, c) - mean(n)) * rstd(n));
          sum[1] += dy(n, c);
        });
  for_each_row(
      "layer_norm_backward", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), width = x.extent_int(1);
        const float middle = mean(n), scale = rstd(n);
        const auto g = [&](int c) { return dy(n, c) * gain(c); };
        const auto normed = [&](int c) { return (x(n, c) - middle) * scale; };
        const float mean_g = sum_along(team, width, g) / float(width);
        const float mean_gx =
            sum_along(team, width, [&](int c) { return g(c) * normed(c); }) / float(width);
        const Storage* const passed = residual.data() != nullptr ? &residual(n, 0) : nullptr;
        along(
            team, width,
            [&](int c) {
              const float value = scale * (g(c) - mean_g - normed(c) * mean_gx);
              return optional(passed, &x(n, 0), c) + value;
            },
            [&](int c, float value) { dx(n, c) = value; });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/layer_norm.hpp"
