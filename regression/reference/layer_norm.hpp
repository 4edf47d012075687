/// @file Plain layer normalisation.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

struct LayerNorm {
  Doubles y, mean, rstd;
};

inline LayerNorm layer_norm_forward(const Doubles& x, const Doubles& gain, const Doubles& bias,
                                    double eps) {
  const std::size_t C = gain.size();
  const std::size_t N = x.size() / C;
  LayerNorm out{Doubles(N * C), Doubles(N, 0.0), Doubles(N, 0.0)};
  for (std::size_t n = 0; n < N; ++n) {
    double variance = 0.0;
    for (std::size_t c = 0; c < C; ++c) out.mean[n] += x[n * C + c] / double(C);
    for (std::size_t c = 0; c < C; ++c)
      variance += std::pow(x[n * C + c] - out.mean[n], 2) / double(C);
    out.rstd[n] = 1.0 / std::sqrt(variance + eps);
    for (std::size_t c = 0; c < C; ++c)
      out.y[n * C + c] = gain[c] * (x[n * C + c] - out.mean[n]) * out.rstd[n] + bias[c];
  }
  return out;
}

struct LayerNormGradient {
  Doubles dx, dgain, dbias;
};

inline LayerNormGradient layer_norm_backward(const Doubles& dy, const Doubles& x,
                                             const Doubles& gain, const LayerNorm& forward) {
  const std::size_t C = gain.size();
  const std::size_t N = x.size() / C;
  LayerNormGradient out{Doubles(N * C), Doubles(C, 0.0), Doubles(C, 0.0)};
  for (std::size_t n = 0; n < N; ++n) {
    double mean_g = 0.0;
    double mean_gx = 0.0;
    const auto xhat = [&](std::size_t c) {
      return (x[n * C + c] - forward.mean[n]) * forward.rstd[n];
    };
    for (std::size_t c = 0; c < C; ++c) {
      mean_g += dy[n * C + c] * gain[c] / double(C);
      mean_gx += dy[n * C + c] * gain[c] * xhat(c) / double(C);
      out.dgain[c] += dy[n * C + c] * xhat(c);
      out.dbias[c] += dy[n * C + c];
    }
    for (std::size_t c = 0; c < C; ++c)
      out.dx[n * C + c] = forward.rstd[n] * (dy[n * C + c] * gain[c] - mean_g - xhat(c) * mean_gx);
  }
  return out;
}

}  // namespace brume::reference
