#include "kernels/pointwise.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "reference/pointwise.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

struct Shape {
  int N, C, gap;
};
const Shape shapes[] = {{1, 1, 0}, {3, 7, 2}, {5, 64, 0}, {6, 100, 1}, {33, 191, 0}, {9, 2500, 5}};

TEST(Pointwise, BiasEqualsItsTwin) {
  for (const auto& [N, C, gap] : shapes) {
    Array x = random_array(N, C, 1, 1.0f, gap), bias = random_array(1, C, 2), y(N, C, gap);
    const auto expected = reference::add_bias(x.doubles(), bias.doubles());
    add_bias(x.matrix(), bias.vector(), y.matrix());
    EXPECT_LT(reference::relative_error(y.values(), expected), 1e-7);
    EXPECT_TRUE(y.gaps_untouched());
    add_bias(x.matrix(), bias.vector(), x.matrix());
    EXPECT_TRUE(reference::same_bits(x.values(), y.values())) << "in place";
  }
}

TEST(Pointwise, BiasBackwardEqualsItsTwin) {
  for (const auto& [N, C, gap] : shapes) {
    Array dy = random_array(N, C, 1, 1.0f, gap), replaced(1, C), added = random_array(1, C, 2);
    const auto expected = reference::bias_backward(dy.doubles(), C);
    const auto before = added.doubles();
    bias_backward(dy.matrix(), Write::replace, replaced.vector());
    bias_backward(dy.matrix(), Write::accumulate, added.vector());
    EXPECT_LT(reference::relative_error(replaced.values(), expected), 1e-6);
    EXPECT_LT(reference::relative_error(added.values(), reference::sum(before, expected)), 1e-6);
  }
}

TEST(Pointwise, GeluEqualsItsTwin) {
  for (const auto& [N, C, gap] : shapes) {
    Array u = random_array(N, C, 1, 2.0f, gap), bias = random_array(1, C, 2), a(N, C, gap);
    const auto expected = reference::gelu_forward(u.doubles(), bias.doubles());
    gelu_forward(u.matrix(), bias.vector(), a.matrix());
    EXPECT_LT(reference::relative_error(a.values(), expected), 1e-6);
    EXPECT_TRUE(a.gaps_untouched());
    gelu_forward(u.matrix(), bias.vector(), u.matrix());
    EXPECT_TRUE(reference::same_bits(u.values(), a.values())) << "in place";
  }
}

TEST(Pointwise, GeluBackwardEqualsItsTwin) {
  for (const auto& [N, C, gap] : shapes) {
    Array u = random_array(N, C, 1, 2.0f, gap), bias = random_array(1, C, 2),
          da = random_array(N, C, 3, 1.0f, gap), du(N, C, gap);
    const auto expected = reference::gelu_backward(u.doubles(), bias.doubles(), da.doubles());
    gelu_backward(u.matrix(), bias.vector(), da.matrix(), du.matrix());
    EXPECT_LT(reference::relative_error(du.values(), expected), 1e-6);
    gelu_backward(u.matrix(), bias.vector(), da.matrix(), da.matrix());
    EXPECT_TRUE(reference::same_bits(da.values(), du.values())) << "in place";
  }
}

// Each value by itself: what the error beside the largest would hide. In the tail one rounding of
// the exponent, which grows like |z|^3, moves gelu(z) by as many roundings.
TEST(Pointwise, GeluIsAccurateElementByElement) {
  constexpr int count = 4001;
  Array u(1, count), bias(1, count), a(1, count), da(1, count), du(1, count);
  fill(0.0f, bias.vector());
  fill(1.0f, da.vector());
  for (int i = 0; i < count; ++i) u(0, i) = -5.0f + 0.005f * float(i);
  gelu_forward(u.matrix(), bias.vector(), a.matrix());
  gelu_backward(u.matrix(), bias.vector(), da.matrix(), du.matrix());
  for (int i = 0; i < count; ++i) {
    const double z = u(0, i);
    const double tail = 1.0 - std::pow(std::min(z, 0.0), 3);
    EXPECT_NEAR(a(0, i), reference::gelu(z), 3e-7 * tail * std::abs(reference::gelu(z)) + 1e-30)
        << z;
    EXPECT_NEAR(du(0, i), reference::gelu_slope(z), 1e-6) << z;
  }
}

TEST(Pointwise, GeluSurvivesExtremesAndShowsNaN) {
  Array u(1, 4), bias(1, 4), a(1, 4), da(1, 4), du(1, 4);
  fill(0.0f, bias.vector());
  fill(1.0f, da.vector());
  const float extremes[] = {1e4f, -1e4f, 0.0f, NAN};
  for (int i = 0; i < 4; ++i) u(0, i) = extremes[i];
  gelu_forward(u.matrix(), bias.vector(), a.matrix());
  gelu_backward(u.matrix(), bias.vector(), da.matrix(), du.matrix());
  EXPECT_EQ(a(0, 0), 1e4f);
  EXPECT_NEAR(a(0, 1), 0.0f, 1e-30);
  EXPECT_EQ(a(0, 2), 0.0f);
  EXPECT_TRUE(std::isnan(a(0, 3)));
  EXPECT_EQ(du(0, 0), 1.0f);
  EXPECT_NEAR(du(0, 1), 0.0f, 1e-25);
  EXPECT_EQ(du(0, 2), 0.5f);
  EXPECT_TRUE(std::isnan(du(0, 3)));
}

TEST(Pointwise, GeluGradientIsTheSlopeOfTheTwin) {
  Array u = random_array(3, 5, 1), bias = random_array(1, 5, 2), da = random_array(3, 5, 3),
        du(3, 5);
  gelu_backward(u.matrix(), bias.vector(), da.matrix(), du.matrix());
  const auto slope = reference::slope_of(
      [&](auto& at) {
        return reference::dot(da.doubles(), reference::gelu_forward(at, bias.doubles()));
      },
      u.doubles());
  EXPECT_LT(reference::relative_error(du.values(), slope), 1e-6);
}

TEST(Pointwise, AddFillAndSumSquares) {
  for (const int count : {0, 1, 15, 4097, 300001}) {
    Array x = random_array(1, count, 1), y = random_array(1, count, 2);
    const auto expected = reference::sum(x.doubles(), y.doubles());
    const double squares = reference::dot(x.doubles(), x.doubles());
    const auto sum = std::make_unique<double>(NAN);  // replacing must not read
    sum_squares(x.vector(), Write::replace, sum.get());
    EXPECT_NEAR(*sum, squares, 1e-11 * count);
    sum_squares(x.vector(), Write::accumulate, sum.get());
    EXPECT_NEAR(*sum, 2.0 * squares, 2e-11 * count);
    add(x.vector(), y.vector());
    EXPECT_LT(reference::relative_error(y.values(), expected), 1e-7);
    fill(3.5f, y.vector());
    EXPECT_EQ(y.values(), std::vector<float>(count, 3.5f));
  }
}

TEST(Pointwise, AResidualIsAddedToEachElement) {
  for (const int rows : {1, 7, 300}) {
    Array x = random_array(rows, 33, 1), y = random_array(rows, 33, 2);
    const auto expected = reference::sum(x.doubles(), y.doubles());
    add_residual<float>(x.matrix(), y.matrix());
    EXPECT_LT(reference::relative_error(y.values(), expected), 1e-7);
  }
}

TEST(Pointwise, ScaleMultipliesEachElement) {
  for (const auto& [N, C, gap] : shapes) {
    Array y = random_array(N, C, 2, 1.0f, gap);
    const std::vector<float> before = y.values();
    scale(0.7f, y.matrix());
    for (int i = 0; i < N * C; ++i) ASSERT_EQ(y.values()[i], 0.7f * before[i]) << i;
    EXPECT_TRUE(y.gaps_untouched());
  }
}

TEST(Pointwise, CopyKeepsTheBits) {
  Array x = random_array(1, 5000, 1), y(1, 5000);
  copy(x.vector(), y.vector());
  EXPECT_TRUE(reference::same_bits(x.values(), y.values()));
}

TEST(Pointwise, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits([] {
    Array u = random_array(37, 301, 1), bias = random_array(1, 301, 2),
          da = random_array(37, 301, 3);
    Array db(1, 301);
    gelu_backward(u.matrix(), bias.vector(), da.matrix(), da.matrix());
    gelu_forward(u.matrix(), bias.vector(), u.matrix());
    add_bias(u.matrix(), bias.vector(), u.matrix());
    add(da.vector(), u.vector());
    bias_backward(u.matrix(), Write::replace, db.vector());
    std::vector<float> out = db.values();
    const auto sum = std::make_unique<double>();
    sum_squares(u.vector(), Write::replace, sum.get());
    out.push_back(float(*sum));
    return out;
  });
}

}  // namespace
}  // namespace brume::kernels
