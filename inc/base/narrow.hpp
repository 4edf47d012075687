/// @file The formats of 16 bits that weights and activations may be stored in.
#pragma once

#include <concepts>

#include "base/bfloat16.hpp"
#include "base/float16.hpp"

namespace brume {

/// Stores a float rounded once; sums of such values are made in fp32.
template <class T>
concept Narrow = std::same_as<T, bfloat16> || std::same_as<T, float16>;

}  // namespace brume
