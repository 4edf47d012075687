/// @file bf16 as a storage format of kernels.
#pragma once

#include "base/bfloat16.hpp"

namespace brume::kernels {

using brume::bfloat16;

/// Whether this processor has bf16 matrix products; kernels::linear_* throw Error(resource) if not.
bool has_bfloat16_products();

/// Whether it multiplies bf16 by instructions of its own, without converting to fp32 first.
bool has_bfloat16_instructions();

}  // namespace brume::kernels
