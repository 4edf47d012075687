#include "kernels/adamw.hpp"

#include <cmath>

#include "kernels/host.hpp"

namespace brume::kernels {

namespace {

/// Sees each new weight with its index.
template <class See>
void update(const AdamW& step, const ConstVector& grad, const Vector& weight, const Vector& m,
            const Vector& v, See see) {
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
      see(i, w[i]);
    }
  });
}

}  // namespace

void adamw_step(const AdamW& step, ConstVector grad, Vector weight, Vector m, Vector v) {
  update(step, grad, weight, m, v, [](std::int64_t, float) {});
}

void adamw_step(const AdamW& step, ConstVector grad, Vector master, Vector m, Vector v,
                VectorOf<bfloat16> weight) {
  promise(weight.extent(0) == master.extent(0), "adamw_step",
          "weight must be as long as its master");
  bfloat16* const rounded = weight.data();
  update(step, grad, master, m, v, [=](std::int64_t i, float w) { rounded[i] = w; });
}

}  // namespace brume::kernels
