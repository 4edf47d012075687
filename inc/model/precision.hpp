/// @file Number formats, and the bytes of an element by its use.
#pragma once

#include <string_view>

namespace brume::model {

/// Number format of weights and activations. Gradients are summed in fp32 in all of them. fp8: they
/// are bf16, and products of linear layers in blocks, not those of attention and the head, take
/// their factors in 8 bits.
enum class Precision { fp32, bf16, fp16, fp8 };

/// Name in a deck.
const char* name(Precision precision);
/// @throws Error(input) where no precision is called so
Precision precision(std::string_view name);

/// Bytes of an element, by what it belongs to.
inline constexpr int token_bytes = 4;
inline constexpr int grad_bytes = 4;
inline constexpr int statistic_bytes = 4;  ///< mean and 1 / deviation of a norm, attention's sums
constexpr int weight_bytes(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }
constexpr int activation_bytes(Precision precision) { return weight_bytes(precision); }

}  // namespace brume::model
