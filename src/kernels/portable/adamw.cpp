#include "kernels/adamw.hpp"

#include <cmath>

#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

/// What the gradient is multiplied by, in memory: one thread calculates it for all, in double
/// precision.
const float* grad_scale(const AdamW& step, const double* squares) {
  float* const scale = workspace_of<float>(1);
  const double clip_norm = step.clip_norm, loss_scale = step.loss_scale;
  for_each(
      "adamw_clip", 1, KOKKOS_LAMBDA(std::int64_t) {
        const double share =
            clip_norm > 0.0 ? clip_norm / (std::sqrt(*squares) / loss_scale + 1e-6) : 1.0;
        *scale = float((share < 1.0 ? share : 1.0) / loss_scale);
      });
  return scale;
}

/// @param rounded  null, or where each new weight goes too
template <class Rounded>
void update(const AdamW& step, const double* squares, const ConstVector& grad, const Vector& weight,
            const Vector& m, const Vector& v, Rounded* rounded) {
  promise_adamw(grad, weight, m, v);
  const float* const scale = grad_scale(step, squares);
  const float kept = 1.0f - step.lr * step.weight_decay;
  const float length = step.lr / step.bias_correction1;
  const float spread = 1.0f / step.bias_correction2;
  const float beta1 = float(step.beta1), beta2 = float(step.beta2);
  const float share1 = float(1.0 - step.beta1), share2 = float(1.0 - step.beta2);
  for_each(
      "adamw_step", grad.size(), KOKKOS_LAMBDA(std::int64_t i) {
        const float g = *scale * grad(i);
        const float first = beta1 * m(i) + share1 * g;
        const float second = beta2 * v(i) + share2 * g * g;
        const float w = kept * weight(i) - length * first / (std::sqrt(spread * second) + step.eps);
        m(i) = first, v(i) = second, weight(i) = w;
        if (rounded != nullptr) rounded[i] = w;
      });
}

}  // namespace

void adamw_step(const AdamW& step, const double* squares, ConstVector grad, Vector weight, Vector m,
                Vector v) {
  update<float>(step, squares, grad, weight, m, v, nullptr);
}

template <Narrow Storage>
void adamw_step(const AdamW& step, const double* squares, ConstVector grad, Vector master, Vector m,
                Vector v, VectorOf<Storage> weight) {
  promise(weight.size() == master.size(), "adamw_step", "weight must be as long as its master");
  update(step, squares, grad, master, m, v, weight.data());
}

}  // namespace brume::kernels

#include "kernels/instances/adamw.hpp"
