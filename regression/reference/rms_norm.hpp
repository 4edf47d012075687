/// @file Plain root-mean-square normalisation.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

struct RmsNorm {
  Doubles y, rstd;
};

inline RmsNorm rms_norm_forward(const Doubles& x, const Doubles& gain, double eps) {
  const std::size_t C = gain.size(), N = x.size() / C;
  RmsNorm out{Doubles(N * C), Doubles(N, 0.0)};
  for (std::size_t n = 0; n < N; ++n) {
    double mean = 0.0;
    for (std::size_t c = 0; c < C; ++c) mean += x[n * C + c] * x[n * C + c] / double(C);
    out.rstd[n] = 1.0 / std::sqrt(mean + eps);
    for (std::size_t c = 0; c < C; ++c) out.y[n * C + c] = gain[c] * x[n * C + c] * out.rstd[n];
  }
  return out;
}

struct RmsNormGradient {
  Doubles dx, dgain;
};

inline RmsNormGradient rms_norm_backward(const Doubles& dy, const Doubles& x, const Doubles& gain,
                                         const RmsNorm& forward) {
  const std::size_t C = gain.size(), N = x.size() / C;
  RmsNormGradient out{Doubles(N * C), Doubles(C, 0.0)};
  for (std::size_t n = 0; n < N; ++n) {
    const double rstd = forward.rstd[n];
    double mean_gx = 0.0;
    for (std::size_t c = 0; c < C; ++c) {
      const double xhat = x[n * C + c] * rstd;
      mean_gx += dy[n * C + c] * gain[c] * xhat / double(C);
      out.dgain[c] += dy[n * C + c] * xhat;
    }
    for (std::size_t c = 0; c < C; ++c)
      out.dx[n * C + c] = rstd * (dy[n * C + c] * gain[c] - x[n * C + c] * rstd * mean_gx);
  }
  return out;
}

}  // namespace brume::reference
