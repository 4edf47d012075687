#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/float8.hpp"
#include "kernels/float8.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"
#include "reference/arrays.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;
constexpr Factors fp8 = Factors::fp8;

// So that devices multiply in pieces.
[[maybe_unused]] const std::int64_t room = float8_room_bytes = 192 << 10;

/// Values of bf16 [rows, columns].
class Values {
 public:
  explicit Values(Array wide) : rows_(wide.matrix().extent_int(0)) {
    for (const float value : wide.values()) stored_.emplace_back(value);
  }
  Values(int rows, int columns, unsigned seed, float scale = 1.0f)
      : Values(random_array(rows, columns, seed, scale)) {}

  MatrixOf<bfloat16> matrix() {
    return MatrixOf<bfloat16>(stored_.data(), std::size_t(rows_),
                              stored_.size() / std::size_t(rows_));
  }
  MatrixOf<bfloat16> rows(int first, int count) {
    const std::size_t width = stored_.size() / std::size_t(rows_);
    return MatrixOf<bfloat16>(stored_.data() + std::size_t(first) * width, std::size_t(count),
                              width);
  }
  std::vector<bfloat16>& stored() { return stored_; }

  /// In fp32, rounded to the numbers of `Format` times the power of two that Factors::fp8 names.
  template <class Format>
  Array rounded(int binade) {
    float largest = 0.0f;
    for (const float value : stored_) largest = std::max(largest, std::abs(value));
    const float scale = largest > 0.0f ? std::ldexp(1.0f, binade - std::ilogb(largest)) : 1.0f;
    Array array(rows_, int(stored_.size()) / rows_);
    for (std::size_t i = 0; i < stored_.size(); ++i)
      array.matrix().data()[i] = float(Format(float(stored_[i]) * scale)) / scale;
    return array;
  }
  Array as_value() { return rounded<float8_e4m3>(7); }
  Array as_gradient() { return rounded<float8_e5m2>(14); }

 private:
  int rows_;
  std::vector<bfloat16> stored_;
};

void expect_rounded(Values& found, const Array& expected) {
  const std::vector<float> wanted = expected.values();
  float largest = 0.0f;
  for (const float value : wanted) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 0.0f);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    ASSERT_NEAR(float(found.stored()[i]), wanted[i],
                std::abs(wanted[i]) * 0x1p-8f + 1e-5f * largest)
        << i;
}

Array widened(Values& values) {
  Array array(values.matrix().extent_int(0), values.matrix().extent_int(1));
  for (std::size_t i = 0; i < values.stored().size(); ++i)
    array.matrix().data()[i] = values.stored()[i];
  return array;
}

struct Sizes {
  int tokens, inputs, outputs;
};

class Float8Products : public ::testing::TestWithParam<Sizes> {};

// Against products in fp32 of factors rounded here.
TEST_P(Float8Products, AreThoseOfRoundedFactors) {
  const auto [tokens, inputs, outputs] = GetParam();
  for (const Write write : {Write::replace, Write::accumulate}) {
    Values x(tokens, inputs, 1, 3e-3f), w(outputs, inputs, 2, 40.0f), dy(tokens, outputs, 3, 1e-6f);
    Array x8 = x.as_value(), w8 = w.as_value(), dy8 = dy.as_gradient();

    Values y(tokens, outputs, 4, 0.1f);
    Array expected_y = widened(y);
    linear_forward<bfloat16>(x.matrix(), w.matrix(), write, y.matrix(), fp8);
    linear_forward(x8.matrix(), w8.matrix(), write, expected_y.matrix());
    expect_rounded(y, expected_y);

    Values dx(tokens, inputs, 5, 1e-5f);
    Array expected_dx = widened(dx);
    linear_backward_input<bfloat16>(dy.matrix(), w.matrix(), write, dx.matrix(), fp8);
    linear_backward_input(dy8.matrix(), w8.matrix(), write, expected_dx.matrix());
    expect_rounded(dx, expected_dx);

    Array dw = random_array(outputs, inputs, 6, 1e-8f);
    Array expected_dw = dw;
    linear_backward_weight<bfloat16>(dy.matrix(), x.matrix(), write, dw.matrix(), fp8);
    linear_backward_weight(dy8.matrix(), x8.matrix(), write, expected_dw.matrix());
    EXPECT_LT(reference::relative_error(dw.values(), expected_dw.doubles()), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Float8Products,
                         ::testing::Values(Sizes{70, 48, 33}, Sizes{1, 1, 1}, Sizes{16, 1030, 40},
                                           Sizes{1030, 17, 1041}, Sizes{64, 48, 32},
                                           Sizes{272, 1040, 144}, Sizes{160, 32, 2064}));

// Bias, residual and gelu come after, in bf16 and fp32.
TEST(Float8Layers, AddTheirBiasAndResidual) {
  Values x(20, 24, 1), w(12, 24, 2), bias(1, 12, 3), residual(20, 12, 4), y(20, 12, 5);
  Array x8 = x.as_value(), w8 = w.as_value(), wide_bias = widened(bias),
        expected = widened(residual);
  affine_forward<bfloat16>(x.matrix(), w.matrix(),
                           ConstVectorOf<bfloat16>(bias.stored().data(), 12), residual.matrix(),
                           y.matrix(), fp8);
  affine_forward(x8.matrix(), w8.matrix(), wide_bias.vector(), expected.matrix(),
                 expected.matrix());
  float largest = 0.0f;
  const std::vector<float> wanted = expected.values();
  for (const float value : wanted) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 0.0f);
  for (std::size_t i = 0; i < wanted.size(); ++i)  // rounded after the bias too
    EXPECT_NEAR(float(y.stored()[i]), wanted[i], 0x1p-7f * largest) << i;
}

// Columns of a wider matrix, as queries are of what attention reads.
TEST(Float8Layers, ReadAndWriteColumns) {
  constexpr int tokens = 48, inputs = 64, outputs = 32, width = 80;
  Values x(tokens, inputs, 1), w(outputs, inputs, 2), wide(tokens, width, 3), dx(tokens, inputs, 4);
  const std::vector<bfloat16> before = wide.stored();
  Array x8 = x.as_value(), w8 = w.as_value(), expected(tokens, outputs);
  const MatrixOf<bfloat16> part = columns<bfloat16>(wide.matrix(), 16, outputs);
  linear_forward<bfloat16>(x.matrix(), w.matrix(), Write::replace, part, fp8);
  linear_forward(x8.matrix(), w8.matrix(), Write::replace, expected.matrix());
  Values found(tokens, outputs, 5), gradient(tokens, outputs, 6);
  for (int n = 0; n < tokens; ++n)
    for (int c = 0; c < width; ++c) {
      const bfloat16 value = wide.stored()[std::size_t(n * width + c)];
      if (c >= 16 && c < 16 + outputs)
        found.stored()[std::size_t(n * outputs + c - 16)] = value;
      else
        ASSERT_EQ(value.bits, before[std::size_t(n * width + c)].bits);
    }
  expect_rounded(found, expected);

  for (int n = 0; n < tokens; ++n)
    for (int c = 0; c < outputs; ++c) part(n, c) = gradient.matrix()(n, c);
  Array gradient8 = gradient.as_gradient(), expected_dx(tokens, inputs), dw(outputs, inputs),
        expected_dw(outputs, inputs);
  linear_backward_input<bfloat16>(part, w.matrix(), Write::replace, dx.matrix(), fp8);
  linear_backward_input(gradient8.matrix(), w8.matrix(), Write::replace, expected_dx.matrix());
  expect_rounded(dx, expected_dx);
  linear_backward_weight<bfloat16>(part, x.matrix(), Write::replace, dw.matrix(), fp8);
  linear_backward_weight(gradient8.matrix(), x8.matrix(), Write::replace, expected_dw.matrix());
  EXPECT_LT(reference::relative_error(dw.values(), expected_dw.doubles()), 1e-5);
}

// Between two products gelu is of what the first one made, and its slope of the second one's.
TEST(Float8Layers, HaveGeluBetweenThem) {
  constexpr int tokens = 32, inputs = 48, wide = 64;
  Values x(tokens, inputs, 1), w(wide, inputs, 2), bias(1, wide, 3), u(tokens, wide, 4),
      a(tokens, wide, 5), behind(inputs, wide, 6), dy(tokens, inputs, 7), du(tokens, wide, 8);
  Array x8 = x.as_value(), w8 = w.as_value(), wide_bias = widened(bias), expected_u(tokens, wide),
        expected_a(tokens, wide);
  gelu_affine_forward<bfloat16>(x.matrix(), w.matrix(),
                                ConstVectorOf<bfloat16>(bias.stored().data(), wide), u.matrix(),
                                a.matrix(), fp8);
  gelu_affine_forward(x8.matrix(), w8.matrix(), wide_bias.vector(), expected_u.matrix(),
                      expected_a.matrix());
  const auto near = [](Values& found, const Array& expected) {
    const std::vector<float> wanted = expected.values();
    float largest = 0.0f;
    for (const float value : wanted) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < wanted.size(); ++i)  // rounded before gelu or the bias too
      ASSERT_NEAR(float(found.stored()[i]), wanted[i], 0x1p-7f * largest) << i;
  };
  near(u, expected_u);
  near(a, expected_a);

  Array dy8 = dy.as_gradient(), behind8 = behind.as_value(), kept = widened(u),
        expected_du(tokens, wide);
  gelu_affine_backward<bfloat16>(dy.matrix(), behind.matrix(), u.matrix(), du.matrix(), fp8);
  gelu_affine_backward(dy8.matrix(), behind8.matrix(), kept.matrix(), expected_du.matrix());
  near(du, expected_du);
}

// A bias's gradient is the sum of gradients as they are.
TEST(Float8Layers, SumGradientsOfBiasesUnrounded) {
  constexpr int tokens = 64, inputs = 16, outputs = 32;
  Values x(tokens, inputs, 1), dy(tokens, outputs, 2);
  Array wide_dy = widened(dy), dw(outputs, inputs), db(1, outputs), expected_dw(outputs, inputs),
        expected_db(1, outputs), x8 = x.as_value(), dy8 = dy.as_gradient();
  affine_backward_parameters<bfloat16>(dy.matrix(), x.matrix(), Write::replace, dw.matrix(),
                                       db.vector(), fp8);
  linear_backward_weight(dy8.matrix(), x8.matrix(), Write::replace, expected_dw.matrix());
  bias_backward(wide_dy.matrix(), Write::replace, expected_db.vector());
  EXPECT_LT(reference::relative_error(dw.values(), expected_dw.doubles()), 1e-5);
  EXPECT_LT(reference::relative_error(db.values(), expected_db.doubles()), 1e-6);
}

// Without a scale gradients are below what 8 bits hold.
TEST(Float8Scales, KeepWhatWouldBeLostWithoutThem) {
  constexpr int tokens = 64, inputs = 32, outputs = 48;
  Values dy(tokens, outputs, 1, 1e-5f), w(outputs, inputs, 2, 0.02f), dx(tokens, inputs, 3);
  linear_backward_input<bfloat16>(dy.matrix(), w.matrix(), Write::replace, dx.matrix(), fp8);
  Array exact(tokens, inputs), unscaled(tokens, inputs),
      plain_dy = widened(dy), plain_w = widened(w), coarse_dy = widened(dy), coarse_w = widened(w);
  linear_backward_input(plain_dy.matrix(), plain_w.matrix(), Write::replace, exact.matrix());
  for (int i = 0; i < tokens * outputs; ++i) {
    float& value = coarse_dy.matrix().data()[i];
    value = float(float8_e5m2(value));
  }
  for (int i = 0; i < outputs * inputs; ++i) {
    float& value = coarse_w.matrix().data()[i];
    value = float(float8_e4m3(value));
  }
  linear_backward_input(coarse_dy.matrix(), coarse_w.matrix(), Write::replace, unscaled.matrix());
  const double with = reference::relative_error(widened(dx).values(), exact.doubles());
  const double without = reference::relative_error(unscaled.values(), exact.doubles());
  EXPECT_LT(with, 0.1);
  EXPECT_GT(without, 3.0 * with);
}

// Parts of the tokens have scales of their own: an element that is normal in both has the same
// bits.
TEST(Float8Scales, ChangeNothingButTheSmallest) {
  constexpr int tokens = 64, inputs = 40, outputs = 24, half = tokens / 2;
  Values x(tokens, inputs, 1), w(outputs, inputs, 2), whole(tokens, outputs, 3),
      parts(tokens, outputs, 4);
  for (int i = 0; i < half * inputs; ++i) {
    bfloat16& value = x.stored()[std::size_t(i)];
    value = std::copysign(0x1p-6f + std::abs(float(value)) * 0x1p-5f, float(value));
  }
  linear_forward<bfloat16>(x.matrix(), w.matrix(), Write::replace, whole.matrix(), fp8);
  linear_forward<bfloat16>(x.rows(0, half), w.matrix(), Write::replace, parts.rows(0, half), fp8);
  for (int i = 0; i < half * outputs; ++i)
    EXPECT_NEAR(float(parts.stored()[std::size_t(i)]), float(whole.stored()[std::size_t(i)]), 1e-6f)
        << i;

  // The bound of the smallest: 2^-17 of the largest in each of the row's elements.
  for (int c = 0; c < inputs; ++c) x.stored()[std::size_t(c)] = 0x1p-15f * (1.0f + float(c) / 64);
  linear_forward<bfloat16>(x.matrix(), w.matrix(), Write::replace, whole.matrix(), fp8);
  linear_forward<bfloat16>(x.rows(0, 1), w.matrix(), Write::replace, parts.rows(0, 1), fp8);
  float largest_x = 0.0f;
  for (const float value : x.stored()) largest_x = std::max(largest_x, std::abs(value));
  bool differs = false;
  for (int o = 0; o < outputs; ++o) {
    double bound = 1e-9;
    for (int c = 0; c < inputs; ++c)
      bound += 0x1p-17 * 1.1 * largest_x * std::abs(float(w.stored()[std::size_t(o * inputs + c)]));
    const float a = parts.stored()[std::size_t(o)], b = whole.stored()[std::size_t(o)];
    EXPECT_NEAR(a, b, bound) << o;
    differs = differs || a != b;
  }
  EXPECT_TRUE(differs);  // else the bound was not tried
}

TEST(Float8Scales, HoldForAllMagnitudes) {
  for (const float magnitude : {0x1p-130f, 0x1p-120f, 1e-30f, 1.0f, 1e30f, 0x1.fcp127f}) {
    const float scale = float8_scale<float8_e4m3>(magnitude);
    EXPECT_LT(magnitude * scale, 256.0f);
    if (magnitude > 0x1p-119f) {
      EXPECT_GE(magnitude * scale, 128.0f);
    }
    EXPECT_TRUE(std::isfinite(scale) && std::isfinite(1.0f / scale)) << magnitude;
    EXPECT_LT(magnitude * float8_scale<float8_e5m2>(magnitude), 32768.0f);
  }
}

TEST(Float8Factors, OfZerosAreZerosAndOfNanNan) {
  Values zero(4, 8, 1, 0.0f), w(3, 8, 2), y(4, 3, 3);
  linear_forward<bfloat16>(zero.matrix(), w.matrix(), Write::replace, y.matrix(), fp8);
  for (const float value : y.stored()) EXPECT_EQ(value, 0.0f);
  for (const float odd : {NAN, INFINITY, -INFINITY}) {
    zero.stored()[5] = odd;
    linear_forward<bfloat16>(zero.matrix(), w.matrix(), Write::replace, y.matrix(), fp8);
    for (const float value : y.stored()) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Float8Factors, OfNothingAreZero) {
  Values y(3, 4, 1);
  std::vector<bfloat16> none;
  linear_forward<bfloat16>(MatrixOf<bfloat16>(none.data(), 3, 0),
                           MatrixOf<bfloat16>(none.data(), 4, 0), Write::replace, y.matrix(), fp8);
  for (const float value : y.stored()) EXPECT_EQ(value, 0.0f);
}

}  // namespace
}  // namespace brume::kernels
