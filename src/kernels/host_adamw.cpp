/// @file AdamW by the processor, in every build: where ranks compute on it, and beside devices.
#include "kernels/adamw.hpp"

#include <cmath>

#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

float grad_scale(const AdamW& step, const double* squares) {
  const double share =
      step.clip_norm > 0.0 ? step.clip_norm / (std::sqrt(*squares) / step.loss_scale + 1e-6) : 1.0;
  return float(std::min(1.0, share) / step.loss_scale);
}

/// Sees each new weight with its index.
template <class See>
void update(const AdamW& step, const double* squares, const ConstVector& grad, const Vector& weight,
            const Vector& m, const Vector& v, See see) {
  promise_adamw(grad, weight, m, v);
  const float kept = 1.0f - step.lr * step.weight_decay;
  const float scale = grad_scale(step, squares);
  const float length = step.lr / step.bias_correction1;
  const float spread = 1.0f / step.bias_correction2;
  const float beta1 = float(step.beta1), beta2 = float(step.beta2);
  const float share1 = float(1.0 - step.beta1), share2 = float(1.0 - step.beta2);
  for_each_piece("adamw_step", grad.extent(0), 4096, [=](std::int64_t begin, std::int64_t end) {
    const float* const grad_in = grad.data();
    float* const w = weight.data();
    float* const first = m.data();
    float* const second = v.data();
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = scale * grad_in[i];
      first[i] = beta1 * first[i] + share1 * g;
      second[i] = beta2 * second[i] + share2 * g * g;
      w[i] = kept * w[i] - length * first[i] / (std::sqrt(spread * second[i]) + step.eps);
      see(i, w[i]);
    }
  });
}

}  // namespace

void adamw_step_on_host(const AdamW& step, const double* squares, ConstVector grad, Vector weight,
                        Vector m, Vector v) {
  update(step, squares, grad, weight, m, v, [](std::int64_t, float) {});
}

template <Narrow Storage>
void adamw_step_on_host(const AdamW& step, const double* squares, ConstVector grad, Vector master,
                        Vector m, Vector v, VectorOf<Storage> weight) {
  promise(weight.extent(0) == master.extent(0), "adamw_step",
          "weight must be as long as its master");
  Storage* const rounded = weight.data();
  update(step, squares, grad, master, m, v, [=](std::int64_t i, float w) { rounded[i] = w; });
}

template void adamw_step_on_host<bfloat16>(const AdamW&, const double*, ConstVector, Vector, Vector,
                                           Vector, VectorOf<bfloat16>);
template void adamw_step_on_host<float16>(const AdamW&, const double*, ConstVector, Vector, Vector,
                                          Vector, VectorOf<float16>);

}  // namespace brume::kernels
