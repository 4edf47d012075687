/// @file The optimizers' formulas, for one element, and their list. Constexpr, so that code on
/// devices may call them.
#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string_view>
#include <variant>

#include "kernels/muon.hpp"
#include "kernels/promises.hpp"

namespace brume::kernels {

/// A number that looks drawn, of 32 bits.
///
/// @source  constants of the mixer of 32 bits by Wellons 2018
constexpr std::uint32_t drawn(std::int64_t number, std::uint32_t key) {
  std::uint32_t x = std::uint32_t(number) ^ key;
  x += std::uint32_t(std::uint64_t(number) >> 32) * 0x9E3779B9u;
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

/// Key of the draws for an update of a field of state.
constexpr std::uint32_t field_key(const Update& update, std::uint32_t index) {
  return drawn(std::int64_t(update.t) * most_state_fields + index, 0);
}

/// One field of elements' state, rounded by chance where it has 16 bits.
template <class Moment>
struct Field {
  Moment* values;
  std::uint32_t key;

  static Field make(const Update& update, const UpdatedElements& elements, std::uint32_t index) {
    return {elements.field<Moment>(index), field_key(update, index)};
  }

  constexpr float operator[](std::int64_t i) const { return float(values[i]); }
  /// @param number  of element i in the model
  constexpr void set(std::int64_t i, [[maybe_unused]] std::int64_t number, float value) const {
    if constexpr (std::same_as<Moment, bfloat16>) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
      const bool finite = (bits & 0x7F800000u) != 0x7F800000u;
      const std::uint32_t up = finite ? bits + (drawn(number, key) >> 16) : bits;
      values[i].bits = std::uint16_t(up >> 16);  // vector units take no structs
    } else {
      values[i] = value;
    }
  }
};

/// See update_kernels.
template <class Moment>
struct AdamW {
  static constexpr const char* name = "adamw";
  static constexpr int fields = 2;

  Field<Moment> m, v;
  float kept, length, spread, beta1, beta2, share1, share2, eps;

  static AdamW make(const Update& update, const UpdatedElements& elements) {
    return {.m = Field<Moment>::make(update, elements, 0),
            .v = Field<Moment>::make(update, elements, 1),
            .kept = 1.0f - update.lr * update.weight_decay,
            .length = update.lr / float(1.0 - std::pow(update.beta1, update.t)),
            .spread = 1.0f / float(1.0 - std::pow(update.beta2, update.t)),
            .beta1 = float(update.beta1),
            .beta2 = float(update.beta2),
            .share1 = float(1.0 - update.beta1),
            .share2 = float(1.0 - update.beta2),
            .eps = update.eps};
  }

  /// The rule for elements whose fields lie here.
  template <std::size_t count>
  constexpr AdamW on(Moment (&values)[fields][count]) const {
    AdamW rule = *this;
    rule.m.values = values[0], rule.v.values = values[1];
    return rule;
  }

  /// Updates the state of element i, which has this number, by gradient g. @return its new weight
  constexpr float operator()(std::int64_t i, std::int64_t number, float g, float w) const {
    const float first = beta1 * m[i] + share1 * g;
    const float second = beta2 * v[i] + share2 * g * g;
    m.set(i, number, first), v.set(i, number, second);
    return kept * w - length * first / (std::sqrt(spread * second) + eps);
  }
};

/// See update_kernels.
template <class Moment>
struct Lion {
  static constexpr const char* name = "lion";
  static constexpr int fields = 1;

  Field<Moment> m;
  float kept, lr, beta1, beta2, share1, share2;

  static Lion make(const Update& update, const UpdatedElements& elements) {
    return {.m = Field<Moment>::make(update, elements, 0),
            .kept = 1.0f - update.lr * update.weight_decay,
            .lr = update.lr,
            .beta1 = float(update.beta1),
            .beta2 = float(update.beta2),
            .share1 = float(1.0 - update.beta1),
            .share2 = float(1.0 - update.beta2)};
  }

  /// See AdamW::on.
  template <std::size_t count>
  constexpr Lion on(Moment (&values)[fields][count]) const {
    Lion rule = *this;
    rule.m.values = values[0];
    return rule;
  }

  /// Updates the state of element i, which has this number, by gradient g. @return its new weight
  constexpr float operator()(std::int64_t i, std::int64_t number, float g, float w) const {
    const float before = m[i], direction = beta1 * before + share1 * g;
    m.set(i, number, beta2 * before + share2 * g);
    const float sign = float(direction > 0.0f) - float(direction < 0.0f);
    return kept * w - lr * sign;
  }
};

/// See update_kernels.
template <class Moment>
struct Sgd {
  static constexpr const char* name = "sgd";
  static constexpr int fields = 1;

  Field<Moment> momentum;
  float lr, beta, decay;

  static Sgd make(const Update& update, const UpdatedElements& elements) {
    return {.momentum = Field<Moment>::make(update, elements, 0),
            .lr = update.lr,
            .beta = float(update.beta1),
            .decay = update.weight_decay};
  }

  /// See AdamW::on.
  template <std::size_t count>
  constexpr Sgd on(Moment (&values)[fields][count]) const {
    Sgd rule = *this;
    rule.momentum.values = values[0];
    return rule;
  }

  /// Updates the state of element i, which has this number, by gradient g. @return its new weight
  constexpr float operator()(std::int64_t i, std::int64_t number, float g, float w) const {
    const float moment = beta * momentum[i] + (g + decay * w);
    momentum.set(i, number, moment);
    return w - lr * moment;
  }
};

/// See momentum_direction.
template <class Moment>
struct Momentum {
  Field<Moment> m;
  float* d;
  const float* grad;
  float beta, share;
  bool nesterov;

  static Momentum make(const Update& update, const UpdatedElements& elements, float* d) {
    return {.m = Field<Moment>::make(update, elements, 0),
            .d = d,
            .grad = elements.grad,
            .beta = float(update.momentum),
            .share = float(1.0 - update.momentum),
            .nesterov = update.nesterov};
  }

  constexpr void operator()(std::int64_t i, std::int64_t number, float scale) const {
    const float g = scale * grad[i];
    const float moment = beta * m[i] + share * g;
    m.set(i, number, moment);
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

/// One field of elements in blocks: see Moments::fp8.
struct BlockedField {
  std::byte* blocks;
  Quantization format;
  std::uint32_t key;

  static BlockedField make(const Update& update, const UpdatedElements& elements,
                           std::uint32_t index) {
    return {elements.field<std::byte>(index), elements.formats[index], field_key(update, index)};
  }

  /// The block of elements from `first` on, a multiple of quantized_block.
  constexpr std::byte* block(std::int64_t first) const {
    return blocks + first / quantized_block * block_bytes(format);
  }
};

/// One list of all optimizers that update element by element.
template <template <class> class... Rule>
struct UpdateRules {
  /// @return  Launch::elements<R<Moment>>(update, squares, elements, rounded) of the rule R with
  /// this
  ///          name, or Launch::blocks<R<float>>; null if there is none
  template <class Launch>
  static UpdateKernel find(std::string_view name, Moments moments) {
    UpdateKernel found = nullptr;
    const auto choose = [&](const char* rule, UpdateKernel kernel) {
      if (rule == name) found = kernel;
    };
    switch (moments) {
      case Moments::fp32:
        (choose(Rule<float>::name, &of_elements<Launch, Rule<float>>), ...);
        break;
      case Moments::bf16:
        (choose(Rule<bfloat16>::name, &of_elements<Launch, Rule<bfloat16>>), ...);
        break;
      case Moments::fp8: (choose(Rule<float>::name, &of_blocks<Launch, Rule<float>>), ...); break;
    }
    return found;
  }

 private:
  template <class Launch, class R>
  static void of_elements(const Update& update, const double* squares,
                          const UpdatedElements& elements) {
    std::visit(
        [&](auto* rounded) { Launch::template elements<R>(update, squares, elements, rounded); },
        elements.rounded);
  }
  template <class Launch, class R>
  static void of_blocks(const Update& update, const double* squares,
                        const UpdatedElements& elements) {
    promise(elements.count % quantized_block == 0, R::name, "elements must be whole blocks");
    std::visit(
        [&](auto* rounded) { Launch::template blocks<R>(update, squares, elements, rounded); },
        elements.rounded);
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
UpdateKernel update_kernel(std::string_view optimizer, Moments moments);
UpdateKernel host_update_kernel(std::string_view optimizer, Moments moments);

}  // namespace brume::kernels
