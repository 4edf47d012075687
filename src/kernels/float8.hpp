/// @file Factors of products rounded to 8 bits as Factors::fp8 says, on devices.
#pragma once

#include <cstdint>

#include "base/float8.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

/// 2^s, by which a factor is multiplied before it is rounded, and 2^-s, by which its product is
/// afterwards.
struct Float8Scale {
  float up, down;
};

inline constexpr int most_float8_parts = 1024;

/// What a thread that multiplies factors of 8 bits keeps of its device for them; tests have less.
inline std::int64_t float8_room_bytes = std::int64_t{256} << 20;

/// That of x's largest magnitude, see float8_scale; NaN where x is not finite.
///
/// @param parts  [most_float8_parts] room
/// @param scale  in the device's memory
template <class Format>
void find_float8_scale(ConstMatrixOf<bfloat16> x, std::uint32_t* parts, Float8Scale* scale);

/// out[r, c] = x[r, c] scale.up rounded to Format, as its code; of bfloat16 this number times
/// scale.down. Columns that only `out` has are zero.
///
/// @param out  [R, C rounded up]
template <class Format, class Out>
void round_to_float8(ConstMatrixOf<bfloat16> x, const Float8Scale* scale, MatrixView<Out> out);

/// out[c, r] = x[r, c] likewise
///
/// @param out  [C, R rounded up to a multiple of 16]: rows lie at multiples of 16 bytes
template <class Format, class Out>
void round_to_float8_transposed(ConstMatrixOf<bfloat16> x, const Float8Scale* scale,
                                MatrixView<Out> out);

}  // namespace brume::kernels
