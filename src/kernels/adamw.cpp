#include "kernels/adamw.hpp"

#include <cmath>

#include "kernels/host.hpp"

namespace brume::kernels {

void adamw_step(const AdamW& step, ConstVector grad, Vector weight, Vector m, Vector v) {
  promise(grad.extent(0) == weight.extent(0) && m.extent(0) == weight.extent(0) &&
              v.extent(0) == weight.extent(0),
          "adamw_step", "grad, weight, m and v must have one length");
  const float kept = 1.0f - step.lr * step.weight_decay;
  const float length = step.lr / step.bias_correction1;
  const float spread = 1.0f / step.bias_correction2;
  for_each_piece("adamw_step", grad.extent(0), 4096, [=](std::int64_t begin, std::int64_t end) {
    const float* const grad_in = grad.data();
    float* const w = weight.data();
    float* const first = m.data();
    float* const second = v.data();
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = step.grad_scale * grad_in[i];
      first[i] = step.beta1 * first[i] + (1.0f - step.beta1) * g;
      second[i] = step.beta2 * second[i] + (1.0f - step.beta2) * g * g;
      w[i] = kept * w[i] - length * first[i] / (std::sqrt(spread * second[i]) + step.eps);
    }
  });
}

}  // namespace brume::kernels
