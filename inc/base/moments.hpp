/// @file Number formats of an optimizer's moments.
#pragma once

namespace brume {

/// fp8: blocks of float8 and ufloat8 where rows are whole blocks, fp32 elsewhere.
enum class Moments { fp32, bf16, fp8 };

constexpr const char* name(Moments moments) {
  constexpr const char* names[] = {"fp32", "bf16", "fp8"};
  return names[int(moments)];
}

}  // namespace brume
