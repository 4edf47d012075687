/// @file Plain AdamW.
#pragma once

#include "kernels/adamw.hpp"
#include "reference/arrays.hpp"

namespace brume::reference {

inline void adamw_step(const kernels::AdamW& step, double grad_scale, const Doubles& grad,
                       Doubles& w, Doubles& m, Doubles& v) {
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = grad_scale * grad[i];
    m[i] = step.beta1 * m[i] + (1.0 - step.beta1) * g;
    v[i] = step.beta2 * v[i] + (1.0 - step.beta2) * g * g;
    w[i] -= double(step.lr) * double(step.weight_decay) * w[i];
    w[i] -= double(step.lr) * (m[i] / double(step.bias_correction1)) /
            (std::sqrt(v[i] / double(step.bias_correction2)) + double(step.eps));
  }
}

}  // namespace brume::reference
