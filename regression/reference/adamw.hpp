/// @file Plain AdamW.
#pragma once

#include <cmath>

#include "kernels/optimizers.hpp"
#include "reference/arrays.hpp"

namespace brume::reference {

inline void adamw_step(const kernels::Update& step, double grad_scale, const Doubles& grad,
                       Doubles& w, Doubles& m, Doubles& v) {
  const double correction1 = float(1.0 - std::pow(step.beta1, step.t));
  const double correction2 = float(1.0 - std::pow(step.beta2, step.t));
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = grad_scale * grad[i];
    m[i] = step.beta1 * m[i] + (1.0 - step.beta1) * g;
    v[i] = step.beta2 * v[i] + (1.0 - step.beta2) * g * g;
    w[i] -= double(step.lr) * double(step.weight_decay) * w[i];
    w[i] -=
        double(step.lr) * (m[i] / correction1) / (std::sqrt(v[i] / correction2) + double(step.eps));
  }
}

}  // namespace brume::reference
