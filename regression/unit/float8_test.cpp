#include "base/float8.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace brume {
namespace {

/// A format by its definition.
template <class Number>
struct Definition;
template <>
struct Definition<float8_e4m3> {
  static constexpr int fraction_bits = 3, bias = 7, largest = 0x7e;
  static constexpr bool has_infinity = false;
  static constexpr const char* name = "e4m3";
};
template <>
struct Definition<float8_e5m2> {
  static constexpr int fraction_bits = 2, bias = 15, largest = 0x7b;
  static constexpr bool has_infinity = true;
  static constexpr const char* name = "e5m2";
};

template <class Number>
class Float8Format : public ::testing::Test {
 protected:
  using D = Definition<Number>;

  static double meaning_of(int bits) {
    const int code = bits & 0x7f, exponent = code >> D::fraction_bits,
              fraction = code & ((1 << D::fraction_bits) - 1), whole = 1 << D::fraction_bits;
    const double magnitude =
        code > D::largest ? D::has_infinity && code == D::largest + 1 ? INFINITY : NAN
        : exponent == 0   ? std::ldexp(fraction, 1 - D::bias - D::fraction_bits)
                          : std::ldexp(whole + fraction, exponent - D::bias - D::fraction_bits);
    return bits & 0x80 ? -magnitude : magnitude;
  }

  /// The nearest multiple of the last place, by the processor's own rounding, at most the largest.
  static double nearest(float value) {
    if (value == 0.0f || std::isnan(value)) return value;
    const double most = meaning_of(D::largest);
    if (std::isinf(value)) return std::copysign(most, value);
    const double last_place =
        std::ldexp(1.0, std::max(std::ilogb(value), 1 - D::bias) - D::fraction_bits);
    const double rounded = std::nearbyint(double(value) / last_place) * last_place;
    return std::copysign(std::min(std::abs(rounded), most), value);
  }

  static bool same(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
  }

  static double value(Number number) { return float(number); }
};

struct FormatName {
  template <class Number>
  static std::string GetName(int) {
    return Definition<Number>::name;
  }
};
using Formats = ::testing::Types<float8_e4m3, float8_e5m2>;
TYPED_TEST_SUITE(Float8Format, Formats, FormatName);

TYPED_TEST(Float8Format, HasTheValuesOfItsDefinitionAndKeepsThem) {
  for (int bits = 0; bits < 256; ++bits) {
    const TypeParam number = TypeParam::from_bits(std::uint8_t(bits));
    ASSERT_TRUE(this->same(float(number), this->meaning_of(bits))) << bits;
    if (std::isinf(float(number))) continue;  // it is rounded to the largest number
    ASSERT_TRUE(this->same(float(TypeParam(float(number))), float(number))) << bits;
  }
}

// Each value, halfway to the next one, and the floats on both sides of these.
TYPED_TEST(Float8Format, RoundsToNearestTiesToEven) {
  for (int bits = 0; bits <= Definition<TypeParam>::largest; ++bits) {
    const double here = this->meaning_of(bits);
    const double next = bits == Definition<TypeParam>::largest
                            ? 2 * here - this->meaning_of(bits - 1)
                            : this->meaning_of(bits + 1);
    for (const float middle : {float(here), float((here + next) / 2)})
      for (const float value :
           {std::nextafter(middle, -INFINITY), middle, std::nextafter(middle, INFINITY)})
        for (const float either : {value, -value})
          ASSERT_TRUE(this->same(float(TypeParam(either)), this->nearest(either))) << either;
  }
}

TYPED_TEST(Float8Format, RoundsAnyFloatAsTheProcessorWould) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(std::uint32_t(random()));
    ASSERT_TRUE(this->same(float(TypeParam(value)), this->nearest(value))) << value;
  }
}

TYPED_TEST(Float8Format, SaturatesAndKeepsNan) {
  const float most = TypeParam::largest();
  for (const float value : {most * 1.01f, most * 2, std::numeric_limits<float>::max(), INFINITY}) {
    EXPECT_EQ(float(TypeParam(value)), most);
    EXPECT_EQ(float(TypeParam(-value)), -most);
  }
  EXPECT_TRUE(std::isnan(float(TypeParam(NAN))));
}

TEST(Float8, IsKnownToTheCompiler) {
  static_assert(float8_e4m3::largest() == 448.0f && float8_e5m2::largest() == 57344.0f);
  static_assert(float8_e4m3(1.0f).bits == 0x38 && float8_e4m3(0x1p-9f).bits == 1);
  static_assert(float8_e5m2(1.0f).bits == 0x3c && float8_e5m2(0x1p-16f).bits == 1);
  static_assert(float(float8_e4m3(-1.1f)) == -1.125f && float(float8_e5m2(1.1f)) == 1.0f);
}

}  // namespace
}  // namespace brume
