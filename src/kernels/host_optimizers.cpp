/// @file Updates by the processor, in every build: where ranks compute on it, and beside devices.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/update_rules.hpp"

namespace brume::kernels {
namespace {

template <class Rule, class Rounded>
void update_elements(const Update& update, const double* squares, const UpdatedElements& elements,
                     Rounded* rounded) {
  const Rule rule = Rule::make(update, elements);
  const float scale = grad_scale(update.clip_norm, update.loss_scale, squares);
  const float* const grad = elements.grad;
  float* const weight = elements.weight;
  for_each_numbered_piece(Rule::name, elements.count, elements.numbers,
                          [=](std::int64_t begin, std::int64_t end, std::int64_t number) {
#pragma omp simd
                            for (std::int64_t i = begin; i < end; ++i) {
                              weight[i] = rule(i, number + i - begin, scale * grad[i], weight[i]);
                              if constexpr (Narrow<Rounded>) rounded[i] = weight[i];
                            }
                          });
}

// --- moments in blocks --------------------------------------------------------------------------

// Vector units take bytes as integers.
template <Quantization format>
void load_block(const std::byte* block, float* values) {
  const float scale = block_scale(block);
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(block + sizeof scale);
#pragma omp simd
  for (int i = 0; i < quantized_block; ++i) values[i] = scale * float8_value(format, codes[i]);
}

/// Rounds by chance, from the number of the block's first element.
template <Quantization format>
void store_block(const float* values, std::int64_t number, std::uint32_t key, std::byte* block) {
  float scale = 0.0f, nothing = 0.0f;  // NaN where one is not finite
#pragma omp simd reduction(max : scale) reduction(+ : nothing)
  for (int i = 0; i < quantized_block; ++i) {
    scale = std::max(scale, std::fabs(values[i]));
    nothing += values[i] - values[i];
  }
  scale += nothing;
  std::memcpy(block, &scale, sizeof scale);
  const float divisor = block_divisor(scale);
  std::int32_t codes[quantized_block];
#pragma omp simd
  for (int i = 0; i < quantized_block; ++i)
    codes[i] = float8_code(format, values[i], divisor, drawn(number + i, key));
  auto* const bytes = reinterpret_cast<std::uint8_t*>(block + sizeof scale);
#pragma omp simd
  for (int i = 0; i < quantized_block; ++i) bytes[i] = std::uint8_t(codes[i]);
}

template <class Rule, class Rounded>
void update_blocks(const Update& update, const double* squares, const UpdatedElements& elements,
                   Rounded* rounded) {
  std::array<BlockedField, Rule::fields> fields;
  for (std::uint32_t f = 0; f < fields.size(); ++f)
    fields[f] = BlockedField::make(update, elements, f);
  const Rule rule = Rule::make(update, elements);
  const float scale = grad_scale(update.clip_norm, update.loss_scale, squares);
  const float* const grad = elements.grad;
  float* const weight = elements.weight;
  const ElementNumbers numbers = elements.numbers;
  for_each_piece(Rule::name, elements.count, 4096, [=](std::int64_t begin, std::int64_t end) {
    float values[Rule::fields][quantized_block];
    const Rule of_block = rule.on(values);
    for (std::int64_t first = begin; first < end; first += quantized_block) {
      for (std::size_t f = 0; f < fields.size(); ++f)
        fields[f].format == Quantization::float8
            ? load_block<Quantization::float8>(fields[f].block(first), values[f])
            : load_block<Quantization::ufloat8>(fields[f].block(first), values[f]);
      const float* const g = grad + first;
      float* const w = weight + first;
#pragma omp simd
      for (int i = 0; i < quantized_block; ++i) {
        w[i] = of_block(i, 0, scale * g[i], w[i]);
        if constexpr (Narrow<Rounded>) rounded[first + i] = w[i];
      }
      const std::int64_t number = numbers(first);
      for (std::size_t f = 0; f < fields.size(); ++f) {
        fields[f].format == Quantization::float8
            ? store_block<Quantization::float8>(values[f], number, fields[f].key,
                                                fields[f].block(first))
            : store_block<Quantization::ufloat8>(values[f], number, fields[f].key,
                                                 fields[f].block(first));
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

}  // namespace

UpdateKernel host_update_kernel(std::string_view optimizer, Moments moments) {
  return AllUpdateRules::find<Launch>(optimizer, moments);
}

UpdateKernels update_kernels(std::string_view optimizer, Moments moments) {
  const UpdateKernels found{.here = update_kernel(optimizer, moments),
                            .on_host = host_update_kernel(optimizer, moments)};
  require(found.here && found.on_host, Failure::bug, "optimizer '{}' has no kernel", optimizer);
  return found;
}

}  // namespace brume::kernels
