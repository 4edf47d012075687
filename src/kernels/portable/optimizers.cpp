#include "kernels/portable/launch.hpp"
#include "kernels/update_rules.hpp"

namespace brume::kernels {
namespace {

/// The gradient's factor, in memory: one thread calculates it for all, in double precision.
const float* grad_scale_of(const Update& update, const double* squares) {
  float* const scale = workspace_of<float>(1);
  const double clip_norm = update.clip_norm, loss_scale = update.loss_scale;
  for_each(
      "clip", 1,
      KOKKOS_LAMBDA(std::int64_t) { *scale = grad_scale(clip_norm, loss_scale, squares); });
  return scale;
}

/// @param rounded  null, or where each new weight goes too
template <class Rule, class Rounded>
void update_elements(const Update& update, const double* squares, const UpdatedElements& elements,
                     Rounded* rounded) {
  const Rule rule = Rule::make(update, elements);
  const ElementNumbers numbers = elements.numbers;
  const float* const scale = grad_scale_of(update, squares);
  const float* const grad = elements.grad;
  float* const weight = elements.weight;
  for_each(
      Rule::name, elements.count, KOKKOS_LAMBDA(std::int64_t i) {
        const float w = rule(i, numbers(i), *scale * grad[i], weight[i]);
        weight[i] = w;
        if (rounded != nullptr) rounded[i] = w;
      });
}

// --- moments in blocks --------------------------------------------------------------------------

/// Elements of a block that a lane has: one in unit_lanes of them.
inline constexpr int lane_values = quantized_block / unit_lanes;

template <class Rule, class Rounded>
void update_blocks(const Update& update, const double* squares, const UpdatedElements& elements,
                   Rounded* rounded) {
  constexpr int count = Rule::fields;
  Kokkos::Array<BlockedField, count> fields;
  for (int f = 0; f < count; ++f)
    fields[f] = BlockedField::make(update, elements, std::uint32_t(f));
  const Rule rule = Rule::make(update, elements);
  const float* const factor = grad_scale_of(update, squares);
  const float* const grad = elements.grad;
  float* const weight = elements.weight;
  const std::int64_t blocks = elements.count / quantized_block;
  const ElementNumbers numbers = elements.numbers;
  for_each_unit(
      Rule::name, blocks, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t first = unit_of(team) * quantized_block;
        if (unit_of(team) >= blocks) return;
        const int lane = lane_of(team);
        float values[count][lane_values];
        for (int f = 0; f < count; ++f) {
          const std::byte* const block = fields[f].block(first);
          const float scale = *reinterpret_cast<const float*>(block);
          for (int k = 0; k < lane_values; ++k)
            values[f][k] = scale * unscaled_value(fields[f].format, block + sizeof scale,
                                                  k * unit_lanes + lane);
        }
        const Rule of_lane = rule.on(values);
        for (int k = 0; k < lane_values; ++k) {
          const std::int64_t i = first + k * unit_lanes + lane;
          const float w = of_lane(k, 0, *factor * grad[i], weight[i]);
          weight[i] = w;
          if (rounded != nullptr) rounded[i] = w;
        }
        for (int f = 0; f < count; ++f) {
          float scale = 0.0f, nothing = 0.0f;  // NaN where one is not finite
          for (int k = 0; k < lane_values; ++k) {
            const float magnitude = std::fabs(values[f][k]);
            scale = magnitude > scale ? magnitude : scale;
            nothing += values[f][k] - values[f][k];
          }
          scale = largest_of_lanes(team, scale) + sum_of_lanes(team, nothing);
          std::byte* const block = fields[f].block(first);
          if (lane == 0) *reinterpret_cast<float*>(block) = scale;
          const std::int64_t number = numbers(first);
          for (int k = 0; k < lane_values; ++k) {
            const int i = k * unit_lanes + lane;
            block[sizeof scale + i] =
                std::byte(float8_code(fields[f].format, values[f][k], block_divisor(scale),
                                      drawn(number + i, fields[f].key)));
          }
        }
      });
}

struct Launch {
  template <class Rule>
  static void elements(const auto&... arguments) {
    update_elements<Rule>(arguments...);
  }
  template <class Rule>
  static void blocks(const auto&... arguments) {
    update_blocks<Rule>(arguments...);
  }
};

template <class Rule>
void make_direction(const Rule& rule, const UpdatedElements& elements, const float* scale) {
  const ElementNumbers numbers = elements.numbers;
  for_each(
      "momentum", elements.count, KOKKOS_LAMBDA(std::int64_t i) { rule(i, numbers(i), *scale); });
}

}  // namespace

void momentum_direction(const Update& update, const double* squares,
                        const UpdatedElements& elements, Moments moments, float* d) {
  const float* const scale = grad_scale_of(update, squares);
  if (moments == Moments::bf16)
    make_direction(Momentum<bfloat16>::make(update, elements, d), elements, scale);
  else
    make_direction(Momentum<float>::make(update, elements, d), elements, scale);
}

UpdateKernel update_kernel(std::string_view optimizer, Moments moments) {
  return AllUpdateRules::find<Launch>(optimizer, moments);
}

}  // namespace brume::kernels
