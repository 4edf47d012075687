#include "kernels/float8.hpp"

#include <type_traits>

#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

/// The code of value's nearest number in Format; a NaN's sign may be lost.
template <class Format>
KOKKOS_INLINE_FUNCTION std::uint8_t code(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;  // of a zero and the value
  if constexpr (std::is_same_v<Format, float8_e4m3>)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return std::uint8_t(pair);
#else
  return Format(value).bits;
#endif
}

template <class Format, class Out>
KOKKOS_INLINE_FUNCTION Out rounded(float value, const Float8Scale& scale) {
  const std::uint8_t bits = code<Format>(value * scale.up);
  if constexpr (std::is_same_v<Out, bfloat16>)
    return bfloat16(float(Format::from_bits(bits)) * scale.down);
  else
    return bits;
}

/// Bits of magnitudes have the same order as these, and a NaN's are above an infinity's.
struct Larger {
  constexpr std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return b > a ? b : a;
  }
};

/// 16 values that are stored at once.
template <class Out>
struct alignas(16) Run {
  Out values[16];
};

}  // namespace

template <class Format>
void find_float8_scale(ConstMatrixOf<bfloat16> x, std::uint32_t* parts, Float8Scale* scale) {
  const int rows = x.extent_int(0), count = std::min(rows, most_float8_parts);
  for_each_row(
      "float8_largest", count, KOKKOS_LAMBDA(const Team& team) {
        std::uint32_t mine = 0;
        for (int r = team.league_rank(); r < rows; r += count)
          along(
              team, x.extent_int(1), [&](int c) { return std::uint32_t(x(r, c).bits & 0x7fffu); },
              [&](int, std::uint32_t bits) { mine = Larger()(mine, bits); });
        mine = of_row(team, mine, Larger());
        Kokkos::single(Kokkos::PerTeam(team), [&]() { parts[team.league_rank()] = mine; });
      });
  for_each_row(
      "float8_scale", 1, KOKKOS_LAMBDA(const Team& team) {
        const std::uint32_t bits = join_along(
            team, count, std::uint32_t(0), [&](int i) { return parts[i]; }, Larger());
        Kokkos::single(Kokkos::PerTeam(team), [&]() {
          bfloat16 largest;
          largest.bits = std::uint16_t(bits);
          scale->up = float8_scale<Format>(float(largest));
          scale->down = 1.0f / scale->up;
        });
      });
}

template <class Format, class Out>
void round_to_float8(ConstMatrixOf<bfloat16> x, const Float8Scale* scale, MatrixView<Out> out) {
  promise(x.extent(0) == out.extent(0) && x.extent(1) <= out.extent(1), "round_to_float8",
          "x [R, C] and out [R, at least C] must fit");
  for_each_row(
      "round_to_float8", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int r = team.league_rank(), width = x.extent_int(1);
        const Float8Scale by = *scale;
        along(
            team, out.extent_int(1), [&](int c) { return c < width ? float(x(r, c)) : 0.0f; },
            [&](int c, float value) { out(r, c) = rounded<Format, Out>(value, by); });
      });
}

// A thread has a column's next rows: it reads them beside its neighbours' and writes a run.
template <class Format, class Out>
void round_to_float8_transposed(ConstMatrixOf<bfloat16> x, const Float8Scale* scale,
                                MatrixView<Out> out) {
  constexpr int run = 16, runs = 2;  // 32 bytes of codes, as memory has them
  promise(x.extent(1) == out.extent(0) && x.extent(0) <= out.extent(1) && out.extent(1) % run == 0,
          "round_to_float8_transposed", "x [R, C] and out [C, R and up to a run] must fit");
  const std::int64_t columns = x.extent(1), rows = x.extent(0), padded = out.extent(1);
  const std::int64_t pieces = (padded + runs * run - 1) / (runs * run);
  for_each(
      "round_to_float8_transposed", pieces * columns, KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t c = i % columns, first = i / columns * (runs * run);
        const Float8Scale by = *scale;
        float values[runs * run];
        for (int k = 0; k < runs * run; ++k)
          values[k] = first + k < rows ? float(x(first + k, c)) : 0.0f;
        for (int j = 0; j < runs; ++j) {
          if (first + j * run >= padded) return;
          Run<Out> made;
          for (int k = 0; k < run; ++k)
            made.values[k] = rounded<Format, Out>(values[j * run + k], by);
          *reinterpret_cast<Run<Out>*>(&out(c, first + j * run)) = made;
        }
      });
}

#define BRUME_FLOAT8(Format)                                                                      \
  template void find_float8_scale<Format>(ConstMatrixOf<bfloat16>, std::uint32_t*, Float8Scale*); \
  template void round_to_float8<Format>(ConstMatrixOf<bfloat16>, const Float8Scale*,              \
                                        MatrixView<std::uint8_t>);                                \
  template void round_to_float8<Format>(ConstMatrixOf<bfloat16>, const Float8Scale*,              \
                                        MatrixView<bfloat16>);                                    \
  template void round_to_float8_transposed<Format>(ConstMatrixOf<bfloat16>, const Float8Scale*,   \
                                                   MatrixView<std::uint8_t>);                     \
  template void round_to_float8_transposed<Format>(ConstMatrixOf<bfloat16>, const Float8Scale*,   \
                                                   MatrixView<bfloat16>)
BRUME_FLOAT8(float8_e4m3);
BRUME_FLOAT8(float8_e5m2);
#undef BRUME_FLOAT8

}  // namespace brume::kernels
