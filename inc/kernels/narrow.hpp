/// @file What this processor can do with the storage formats of 16 bits.
#pragma once

namespace brume::kernels {

/// Whether it multiplies bf16, or fp16, by instructions of its own, without converting to fp32
/// first.
bool has_bfloat16_instructions();
bool has_float16_instructions();

}  // namespace brume::kernels
