/// @file This processor's abilities in formats with fewer bits than fp32.
#pragma once

namespace brume::kernels {

/// Whether the processor multiplies bf16, or fp16, by instructions of its own, without converting
/// to fp32 first.
bool has_bfloat16_instructions();
bool has_float16_instructions();

/// Whether it multiplies factors of 8 bits so: NVIDIA devices since Ada and Hopper do.
bool has_float8_instructions();

/// Whether the processor multiplies fp32 faster when factors may round to TF32, 10 bits of
/// mantissa.
bool has_tf32_instructions();

/// Lets products of fp32 do so where the processor can, in the whole process from now on.
void allow_tf32(bool allowed);
bool tf32_allowed();

}  // namespace brume::kernels
