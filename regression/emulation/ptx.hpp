/// @file What PTX instructions do, as far as Brume's kernels have them.
///
/// A function has the instruction's name, with _ for the dots. Registers are unsigned: a signed
/// instruction takes them as the two's complement. Rounding is to the nearest, and no product is
/// contracted with a sum but by fma: these sources are compiled with -ffp-contract=off.
/// @source  NVIDIA, PTX ISA 9.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/float8.hpp"
#include "base/narrow.hpp"
#include "thread.hpp"

namespace brume::emulation {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

inline float float_of(u32 bits) { return std::bit_cast<float>(bits); }
inline double double_of(u64 bits) { return std::bit_cast<double>(bits); }

#define BRUME_UNARY(name, result, type, value) \
  inline result name(type a) { return value; }
#define BRUME_BINARY(name, result, type, value) \
  inline result name(type a, type b) { return value; }

// ---- integers
BRUME_BINARY(add_s16, u16, u16, u16(a + b))
BRUME_BINARY(add_s32, u32, u32, a + b)
BRUME_BINARY(add_s64, u64, u64, a + b)
BRUME_BINARY(add_u64, u64, u64, a + b)
BRUME_BINARY(sub_s32, u32, u32, a - b)
BRUME_BINARY(sub_s64, u64, u64, a - b)
BRUME_BINARY(mul_lo_s32, u32, u32, a* b)
BRUME_BINARY(mul_lo_s64, u64, u64, a* b)
BRUME_BINARY(mul_wide_s32, u64, s32, u64(s64(a) * b))
BRUME_BINARY(mul_wide_u32, u64, u32, u64(a) * b)
inline u32 mad_lo_s32(u32 a, u32 b, u32 c) { return a * b + c; }
BRUME_BINARY(div_s32, u32, s32, u32(a / b))
BRUME_BINARY(div_u32, u32, u32, a / b)
BRUME_BINARY(div_s64, u64, s64, u64(a / b))
BRUME_BINARY(div_u64, u64, u64, a / b)
BRUME_BINARY(rem_s32, u32, s32, u32(a % b))
BRUME_BINARY(rem_u32, u32, u32, a % b)
BRUME_BINARY(rem_s64, u64, s64, u64(a % b))
BRUME_BINARY(max_s32, u32, s32, u32(std::max(a, b)))
BRUME_BINARY(max_u32, u32, u32, std::max(a, b))
BRUME_BINARY(min_s32, u32, s32, u32(std::min(a, b)))
BRUME_BINARY(max_s64, u64, s64, u64(std::max(a, b)))
BRUME_BINARY(min_s64, u64, s64, u64(std::min(a, b)))
BRUME_UNARY(neg_s32, u32, u32, 0u - a)
BRUME_UNARY(neg_s64, u64, u64, 0u - a)
BRUME_BINARY(and_b16, u16, u16, u16(a& b))
BRUME_BINARY(and_b32, u32, u32, a& b)
BRUME_BINARY(and_b64, u64, u64, a& b)
BRUME_BINARY(or_b32, u32, u32, a | b)
BRUME_BINARY(or_b64, u64, u64, a | b)
BRUME_BINARY(xor_b32, u32, u32, a ^ b)
BRUME_UNARY(not_b32, u32, u32, ~a)
BRUME_UNARY(not_b64, u64, u64, ~a)
// Shifts by more bits than there are leave none, or the sign.
inline u32 shl_b32(u32 a, u32 by) { return by < 32 ? a << by : 0; }
inline u64 shl_b64(u64 a, u32 by) { return by < 64 ? a << by : 0; }
inline u32 shr_u32(u32 a, u32 by) { return by < 32 ? a >> by : 0; }
inline u64 shr_u64(u64 a, u32 by) { return by < 64 ? a >> by : 0; }
inline u32 shr_s32(s32 a, u32 by) { return u32(a >> std::min(by, 31u)); }
inline u64 shr_s64(std::int64_t a, u32 by) { return u64(a >> std::min(by, 63u)); }
/// b with `count` bits from `first` on replaced by the lowest ones of a.
inline u64 bfi_b64(u64 a, u64 b, u32 first, u32 count) {
  const u64 mask =
      first >= 64 || count == 0 ? 0 : (~u64{0} >> (64 - std::min(count, 64 - first))) << first;
  return (b & ~mask) | (first < 64 ? a << first & mask : 0);
}

/// Four of the eight bytes of a and b, which b's are the upper ones of: each by a digit of `which`.
inline u32 prmt_b32(u32 a, u32 b, u32 which) {
  if ((which & 0x8888u) != 0) report("prmt that repeats a sign is not emulated");
  const u64 both = u64(b) << 32 | a;
  u32 made = 0;
  for (int i = 0; i < 4; ++i) made |= u32(both >> (which >> (4 * i) & 7u) * 8 & 0xffu) << (8 * i);
  return made;
}

// ---- floating point
BRUME_BINARY(add_f32, float, float, a + b)
BRUME_BINARY(sub_f32, float, float, a - b)
BRUME_BINARY(mul_f32, float, float, a* b)
// PTX names the rounding where nvcc may not contract.
BRUME_BINARY(add_rn_f32, float, float, a + b)
BRUME_BINARY(sub_rn_f32, float, float, a - b)
BRUME_BINARY(mul_rn_f32, float, float, a* b)
BRUME_BINARY(div_rn_f32, float, float, a / b)
BRUME_BINARY(max_f32, float, float, std::fmax(a, b))
BRUME_UNARY(neg_f32, float, float, -a)
BRUME_UNARY(abs_f32, float, float, std::fabs(a))
BRUME_UNARY(rcp_rn_f32, float, float, 1.0f / a)
BRUME_UNARY(sqrt_rn_f32, float, float, std::sqrt(a))
inline float fma_rn_f32(float a, float b, float c) { return std::fma(a, b, c); }
inline float flushed(float a) { return std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }
BRUME_UNARY(ex2_approx_ftz_f32, float, float, flushed(std::exp2(flushed(a))))
BRUME_BINARY(add_f64, double, double, a + b)
BRUME_BINARY(add_rn_f64, double, double, a + b)
BRUME_BINARY(sub_f64, double, double, a - b)
BRUME_BINARY(mul_f64, double, double, a* b)
BRUME_BINARY(div_rn_f64, double, double, a / b)
BRUME_BINARY(min_f64, double, double, std::fmin(a, b))
BRUME_UNARY(neg_f64, double, double, -a)
BRUME_UNARY(rcp_rn_f64, double, double, 1.0 / a)
BRUME_UNARY(sqrt_rn_f64, double, double, std::sqrt(a))
inline double fma_rn_f64(double a, double b, double c) { return std::fma(a, b, c); }
/// The upper half of the bits; the lower half is zero.
BRUME_UNARY(rcp_approx_ftz_f64, double, double, double_of(std::bit_cast<u64>(1.0 / a) >> 32 << 32))

// ---- comparisons; those with u at the end hold for NaN too
#define BRUME_COMPARISONS(suffix, type)              \
  BRUME_BINARY(setp_eq_##suffix, bool, type, a == b) \
  BRUME_BINARY(setp_ne_##suffix, bool, type, a != b) \
  BRUME_BINARY(setp_lt_##suffix, bool, type, a < b)  \
  BRUME_BINARY(setp_le_##suffix, bool, type, a <= b) \
  BRUME_BINARY(setp_gt_##suffix, bool, type, a > b)  \
  BRUME_BINARY(setp_ge_##suffix, bool, type, a >= b)
BRUME_COMPARISONS(s16, std::int16_t)
BRUME_COMPARISONS(u16, u16)
BRUME_COMPARISONS(u32, u32)
BRUME_COMPARISONS(s32, s32)
BRUME_COMPARISONS(u64, u64)
BRUME_COMPARISONS(s64, s64)
BRUME_COMPARISONS(f32, float)
BRUME_COMPARISONS(f64, double)
BRUME_BINARY(setp_eq_b64, bool, u64, a == b)
BRUME_BINARY(setp_leu_f32, bool, float, !(a > b))
BRUME_BINARY(setp_geu_f32, bool, float, !(a < b))
BRUME_BINARY(setp_neu_f32, bool, float, a != b)
BRUME_BINARY(setp_num_f32, bool, float, a == a && b == b)
BRUME_UNARY(not_pred, bool, bool, !a)
BRUME_BINARY(and_pred, bool, bool, a&& b)
BRUME_BINARY(or_pred, bool, bool, a || b)
BRUME_BINARY(xor_pred, bool, bool, a != b)
inline u16 selp_u16(u16 a, u16 b, bool first) { return first ? a : b; }
inline u32 selp_b32(u32 a, u32 b, bool first) { return first ? a : b; }
inline u32 selp_u32(u32 a, u32 b, bool first) { return first ? a : b; }
inline u64 selp_u64(u64 a, u64 b, bool first) { return first ? a : b; }
inline u64 selp_s64(s64 a, s64 b, bool first) { return u64(first ? a : b); }
inline u64 selp_b64(u64 a, u64 b, bool first) { return first ? a : b; }
inline float selp_f32(float a, float b, bool first) { return first ? a : b; }
inline double selp_f64(double a, double b, bool first) { return first ? a : b; }

// ---- conversions
BRUME_UNARY(cvt_s64_s32, u64, s32, u64(s64(a)))
BRUME_UNARY(cvt_u64_u32, u64, u32, a)
BRUME_UNARY(cvt_u32_u64, u32, u64, u32(a))
BRUME_UNARY(cvt_u32_u16, u32, u16, a)
BRUME_UNARY(cvt_rn_f32_s16, float, std::int16_t, float(a))
BRUME_UNARY(cvt_rn_f32_s32, float, s32, float(a))
/// Towards zero; the nearest integer that there is, 0 for a NaN.
inline u32 cvt_rzi_s32_f32(float a) {
  if (std::isnan(a)) return 0;
  return u32(s32(std::clamp(double(a), -2147483648.0, 2147483647.0)));
}
BRUME_UNARY(cvt_f64_f32, double, float, a)
BRUME_UNARY(cvt_rn_f32_f64, float, double, float(a))
BRUME_UNARY(cvt_f32_f16, float, u16, float(std::bit_cast<float16>(a)))
BRUME_UNARY(cvt_rn_f16_f32, u16, float, std::bit_cast<u16>(float16(a)))
BRUME_UNARY(cvt_rn_bf16_f32, u16, float, std::bit_cast<u16>(bfloat16(a)))
/// The first operand is the upper byte; a NaN has no sign.
template <class Format>
u16 pair_of(float high, float low) {
  const auto code = [](float a) { return u16(std::isnan(a) ? 0x7f : Format(a).bits); };
  return u16(code(high) << 8 | code(low));
}
BRUME_BINARY(cvt_rn_satfinite_e4m3x2_f32, u16, float, pair_of<float8_e4m3>(a, b))
BRUME_BINARY(cvt_rn_satfinite_e5m2x2_f32, u16, float, pair_of<float8_e5m2>(a, b))
BRUME_UNARY(cvta_to_global_u64, u64, u64, a)  // addresses say themselves where they lie
/// The same bits, whatever the registers' types.
template <class To, class From>
void mov(To& to, const From& from) {
  if constexpr (std::is_integral_v<To> && std::is_integral_v<From>)
    to = To(from);
  else
    to = std::bit_cast<To>(from);
}
template <class To, class Half>
void pack(To& to, Half low, Half high) {
  const Half halves[2] = {low, high};
  static_assert(sizeof halves == sizeof to);
  std::memcpy(&to, halves, sizeof to);
}
template <class Half, class From>
void unpack(Half& low, Half& high, const From& from) {
  Half halves[2];
  static_assert(sizeof halves == sizeof from);
  std::memcpy(halves, &from, sizeof from);
  low = halves[0], high = halves[1];
}

// ---- memory: the alignment is that of the whole vector, and of the element behind its first
template <class T>
T ld_global(Thread& t, u32 site, u64 at, u32 alignment = sizeof(T)) {
  T value;
  std::memcpy(&value, t.launch->touch(site, at, sizeof(T), alignment, Access::read), sizeof(T));
  return value;
}
template <class T>
void st_global(Thread& t, u32 site, u64 at, T value, u32 alignment = sizeof(T)) {
  std::memcpy(t.launch->touch(site, at, sizeof(T), alignment, Access::write), &value, sizeof(T));
}
template <class T>
T ld_shared(Thread& t, u64 at, u32 alignment = sizeof(T)) {
  T value;
  std::memcpy(&value, shared(t, at, sizeof(T), alignment, Access::read), sizeof(T));
  return value;
}
template <class T>
void st_shared(Thread& t, u64 at, T value, u32 alignment = sizeof(T)) {
  std::memcpy(shared(t, at, sizeof(T), alignment, Access::write), &value, sizeof(T));
}
// What a thread alone has, and a kernel's parameters.
template <class T>
T part(const std::byte* whole, std::size_t bytes, u64 at) {
  if (at > bytes || bytes - at < sizeof(T))
    report("a kernel reads beyond its parameters or its own memory");
  T value;
  std::memcpy(&value, whole + at, sizeof(T));
  return value;
}
template <class T>
T ld_param(Thread& t, u64 at, u32 = 0) {
  return part<T>(t.launch->parameters().data(), t.launch->parameters().size(), at);
}
template <class T>
T ld_local(Thread& t, u64 at, u32 = 0) {
  return part<T>(t.local, t.launch->kernel().local_bytes, at);
}
template <class T>
void st_local(Thread& t, u64 at, T value, u32 = 0) {
  part<T>(t.local, t.launch->kernel().local_bytes, at);
  std::memcpy(t.local + at, &value, sizeof(T));
}

// ---- other threads
inline bool bar_sync(Thread& t) { return arrive_at_barrier(t); }
inline bool shfl_sync_bfly_b32(Thread& t, int line, u32 value, u32 distance, u32 clamp, u32 mask) {
  t.shuffle = {line, value, distance, clamp, mask, false};
  return arrive_at_shuffle(t);
}
inline void take(const Thread& t, u32& to, bool& other) {
  to = t.shuffle.value;
  other = t.shuffle.other;
}

}  // namespace brume::emulation
