/// @file The optimizers' formulas, for one element, and their list. Constexpr, so that code on
/// devices may call them.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/muon.hpp"

namespace brume::kernels {

/// See update_kernels.
struct AdamW {
  static constexpr const char* name = "adamw";

  float *m, *v;
  float kept, length, spread, beta1, beta2, share1, share2, eps;

  static AdamW make(const Update& update, const UpdatedElements& elements) {
    return {.m = elements.field<float>(0),
            .v = elements.field<float>(1),
            .kept = 1.0f - update.lr * update.weight_decay,
            .length = update.lr / float(1.0 - std::pow(update.beta1, update.t)),
            .spread = 1.0f / float(1.0 - std::pow(update.beta2, update.t)),
            .beta1 = float(update.beta1),
            .beta2 = float(update.beta2),
            .share1 = float(1.0 - update.beta1),
            .share2 = float(1.0 - update.beta2),
            .eps = update.eps};
  }

  /// Updates the state of element i by gradient g. @return its new weight
  constexpr float operator()(std::int64_t i, float g, float w) const {
    const float first = beta1 * m[i] + share1 * g;
    const float second = beta2 * v[i] + share2 * g * g;
    m[i] = first, v[i] = second;
    return kept * w - length * first / (std::sqrt(spread * second) + eps);
  }
};

/// See update_kernels.
struct Lion {
  static constexpr const char* name = "lion";

  float* m;
  float kept, lr, beta1, beta2, share1, share2;

  static Lion make(const Update& update, const UpdatedElements& elements) {
    return {.m = elements.field<float>(0),
            .kept = 1.0f - update.lr * update.weight_decay,
            .lr = update.lr,
            .beta1 = float(update.beta1),
            .beta2 = float(update.beta2),
            .share1 = float(1.0 - update.beta1),
            .share2 = float(1.0 - update.beta2)};
  }

  /// Updates the state of element i by gradient g. @return its new weight
  constexpr float operator()(std::int64_t i, float g, float w) const {
    const float direction = beta1 * m[i] + share1 * g;
    m[i] = beta2 * m[i] + share2 * g;
    const float sign = float(direction > 0.0f) - float(direction < 0.0f);
    return kept * w - lr * sign;
  }
};

/// See update_kernels.
struct Sgd {
  static constexpr const char* name = "sgd";

  float* momentum;
  float lr, beta, decay;

  static Sgd make(const Update& update, const UpdatedElements& elements) {
    return {.momentum = elements.field<float>(0),
            .lr = update.lr,
            .beta = float(update.beta1),
            .decay = update.weight_decay};
  }

  /// Updates the state of element i by gradient g. @return its new weight
  constexpr float operator()(std::int64_t i, float g, float w) const {
    const float sum = g + decay * w;
    momentum[i] = beta * momentum[i] + sum;
    return w - lr * momentum[i];
  }
};

/// See momentum_direction.
struct Momentum {
  float *m, *d;
  const float* grad;
  float beta, share;
  bool nesterov;

  static Momentum make(const Update& update, ConstVector grad, Vector m, Vector d) {
    return {.m = m.data(),
            .d = d.data(),
            .grad = grad.data(),
            .beta = float(update.momentum),
            .share = float(1.0 - update.momentum),
            .nesterov = update.nesterov};
  }

  constexpr void operator()(std::int64_t i, float scale) const {
    const float g = scale * grad[i];
    const float moment = beta * m[i] + share * g;
    m[i] = moment;
    d[i] = nesterov ? beta * moment + share * g : moment;
  }
};

/// See step_along: element k of a part.
template <class Storage>
struct StepAlong {
  ConstMatrixOf<Storage> x;
  bool transposed;
  MatrixPart part;
  int columns;
  float kept, length;

  constexpr float operator()(std::int64_t k, float w) const {
    const std::int64_t row = part.first_row + k / columns, column = part.first_column + k % columns;
    return kept * w - length * float(transposed ? x(column, row) : x(row, column));
  }
};

/// One list of all optimizers that update element by element.
template <class... Rule>
struct UpdateRules {
  /// @return  kernel(std::type_identity<R>()) of the rule R with this name; null if there is none
  template <class Kernel>
  static UpdateKernel find(std::string_view name, Kernel kernel) {
    UpdateKernel found = nullptr;
    ((found = Rule::name == name ? kernel(std::type_identity<Rule>()) : found), ...);
    return found;
  }
};
using AllUpdateRules = UpdateRules<AdamW, Lion, Sgd>;

/// The factor of a gradient: clipping and the loss scale.
constexpr float grad_scale(double clip_norm, double loss_scale, const double* squares) {
  const double share =
      clip_norm > 0.0 ? clip_norm / (std::sqrt(*squares) / loss_scale + 1e-6) : 1.0;
  return float((share < 1.0 ? share : 1.0) / loss_scale);
}

// Both parts of update_kernels; null for an optimizer without kernels.
UpdateKernel update_kernel(std::string_view optimizer);
UpdateKernel host_update_kernel(std::string_view optimizer);

}  // namespace brume::kernels
