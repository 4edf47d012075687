/// @file SwiGLU, GeGLU, the exact GELU and soft caps.
#include "reference/activations.hpp"

#include <gtest/gtest.h>

#include "kernels/gelu_erf.hpp"
#include "kernels/soft_cap.hpp"
#include "kernels/swiglu.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

struct Shape {
  int N, F, gap;
};
const Shape shapes[] = {{1, 1, 0}, {3, 7, 2}, {40, 64, 0}, {5, 191, 3}};

TEST(Swiglu, EqualsItsTwin) {
  for (const Shape& s : shapes) {
    Array u = random_array(s.N, 2 * s.F, 1, 3.0f, s.gap), a(s.N, s.F, s.gap);
    Array da = random_array(s.N, s.F, 2, 1.0f, s.gap), du(s.N, 2 * s.F, s.gap);
    swiglu_forward(u.matrix(), a.matrix());
    EXPECT_LT(reference::relative_error(a.values(), reference::swiglu_forward(u.doubles(), s.F)),
              1e-6);
    swiglu_backward(u.matrix(), da.matrix(), du.matrix());
    const auto expected = reference::swiglu_backward(u.doubles(), da.doubles(), s.F);
    EXPECT_LT(reference::relative_error(du.values(), expected), 1e-6);
    EXPECT_TRUE(a.gaps_untouched() && du.gaps_untouched());
    swiglu_backward(u.matrix(), da.matrix(), u.matrix());
    EXPECT_TRUE(reference::same_bits(u.values(), du.values())) << "du is u";
  }
}

TEST(Swiglu, BackwardIsTheSlopeOfTheTwin) {
  Array u = random_array(3, 10, 1, 2.0f), da = random_array(3, 5, 2), du(3, 10);
  swiglu_backward(u.matrix(), da.matrix(), du.matrix());
  const auto slope = reference::slope_of(
      [&](auto& at) { return reference::dot(da.doubles(), reference::swiglu_forward(at, 5)); },
      u.doubles());
  EXPECT_LT(reference::relative_error(du.values(), slope), 1e-6);
}

TEST(Swiglu, GatesScaleRowsAndHaveTheirOwnSlope) {
  for (const Shape& s : shapes) {
    Array u = random_array(s.N, 2 * s.F, 1, 3.0f, s.gap), a(s.N, s.F, s.gap);
    Array da = random_array(s.N, s.F, 2, 1.0f, s.gap), du(s.N, 2 * s.F, s.gap);
    Array gates = random_array(1, s.N, 3), d_gates(1, s.N), ones(1, s.N);
    for (int n = 0; n < s.N; ++n) ones(0, n) = 1.0f;
    const reference::Doubles plain = reference::swiglu_forward(u.doubles(), s.F);
    reference::Doubles scaled_a = plain, scaled_da = da.doubles(), expected(std::size_t(s.N), 0.0);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const int n = int(i) / s.F;
      expected[std::size_t(n)] += scaled_da[i] * plain[i];
      scaled_a[i] *= gates(0, n), scaled_da[i] *= gates(0, n);
    }
    swiglu_forward(u.matrix(), a.matrix(), gates.vector());
    EXPECT_LT(reference::relative_error(a.values(), scaled_a), 1e-6);
    swiglu_backward(u.matrix(), da.matrix(), du.matrix(), gates.vector(), d_gates.vector());
    EXPECT_LT(reference::relative_error(du.values(),
                                        reference::swiglu_backward(u.doubles(), scaled_da, s.F)),
              1e-6);
    EXPECT_LT(reference::relative_error(d_gates.values(), expected), 2e-6);
    EXPECT_TRUE(a.gaps_untouched() && du.gaps_untouched());

    Array in_place = u, d_gates_again(1, s.N);
    swiglu_backward(in_place.matrix(), da.matrix(), in_place.matrix(), gates.vector(),
                    d_gates_again.vector());
    EXPECT_TRUE(reference::same_bits(in_place.values(), du.values())) << "du is u";
    EXPECT_TRUE(reference::same_bits(d_gates_again.values(), d_gates.values())) << "du is u";

    Array with_ones(s.N, s.F), without(s.N, s.F);
    swiglu_forward(u.matrix(), with_ones.matrix(), ones.vector());
    swiglu_forward(u.matrix(), without.matrix());
    EXPECT_TRUE(reference::same_bits(with_ones.values(), without.values()));
  }
}

TEST(Swiglu, SameBitsOnEveryRun) {
  reference::expect_same_bits([] {
    Array u = random_array(40, 130, 1), da = random_array(40, 65, 2),
          gates = random_array(1, 40, 3);
    Array d_gates(1, 40);
    swiglu_backward(u.matrix(), da.matrix(), u.matrix(), gates.vector(), d_gates.vector());
    std::vector<float> all = u.values();
    for (const float value : d_gates.values()) all.push_back(value);
    return all;
  });
}

TEST(Geglu, EqualsItsTwinWhoseSlopeItsBackwardIs) {
  for (const Shape& s : shapes) {
    Array u = random_array(s.N, 2 * s.F, 1, 3.0f, s.gap), a(s.N, s.F, s.gap);
    Array da = random_array(s.N, s.F, 2, 1.0f, s.gap), du(s.N, 2 * s.F, s.gap);
    geglu_forward(u.matrix(), a.matrix());
    EXPECT_LT(reference::relative_error(a.values(), reference::geglu_forward(u.doubles(), s.F)),
              1e-6);
    geglu_backward(u.matrix(), da.matrix(), du.matrix());
    EXPECT_TRUE(a.gaps_untouched() && du.gaps_untouched());
    if (s.N > 5) continue;
    const auto slope = reference::slope_of(
        [&](auto& at) { return reference::dot(da.doubles(), reference::geglu_forward(at, s.F)); },
        u.doubles());
    EXPECT_LT(reference::relative_error(du.values(), slope), 1e-6);
    geglu_backward(u.matrix(), da.matrix(), u.matrix());
    EXPECT_TRUE(reference::same_bits(u.values(), du.values())) << "du is u";
  }
}

// Numbers of a spread of 8 are bounded on all sides; none is so near a bound that the slope has a
// corner there.
TEST(ClampedSwiglu, EqualsItsTwinWhoseSlopeItsBackwardIs) {
  for (const Shape& s : shapes) {
    Array u = random_array(s.N, 2 * s.F, 1, 8.0f, s.gap), a(s.N, s.F, s.gap);
    Array da = random_array(s.N, s.F, 2, 1.0f, s.gap), du(s.N, 2 * s.F, s.gap);
    Array gates = random_array(1, s.N, 3), d_gates = random_array(1, s.N, 4), added = d_gates;
    const reference::Doubles plain = reference::clamped_swiglu_forward(u.doubles(), s.F);
    reference::Doubles scaled = plain, scaled_da = da.doubles(), expected(std::size_t(s.N), 0.0);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const int n = int(i) / s.F;
      expected[std::size_t(n)] += scaled_da[i] * plain[i];
      scaled[i] *= gates(0, n), scaled_da[i] *= gates(0, n);
    }
    clamped_swiglu_forward(u.matrix(), a.matrix());
    EXPECT_LT(reference::relative_error(a.values(), plain), 1e-6);
    clamped_swiglu_forward(u.matrix(), a.matrix(), gates.vector());
    EXPECT_LT(reference::relative_error(a.values(), scaled), 1e-6);
    clamped_swiglu_backward(u.matrix(), da.matrix(), du.matrix(), gates.vector(), d_gates.vector());
    EXPECT_LT(reference::relative_error(d_gates.values(), expected), 2e-6);
    EXPECT_TRUE(a.gaps_untouched() && du.gaps_untouched());
    const reference::Doubles before = added.doubles();
    Array in_place = u;
    clamped_swiglu_backward(in_place.matrix(), da.matrix(), in_place.matrix(), gates.vector(),
                            added.vector(), Write::accumulate);
    EXPECT_LT(reference::relative_error(added.values(), reference::sum(before, expected)), 2e-6);
    EXPECT_TRUE(reference::same_bits(in_place.values(), du.values())) << "du is u";
    if (s.N > 5) continue;
    const auto slope = reference::slope_of(
        [&](auto& at) {
          return reference::dot(scaled_da, reference::clamped_swiglu_forward(at, s.F));
        },
        u.doubles());
    EXPECT_LT(reference::relative_error(du.values(), slope), 1e-6);
  }
}

// To 3e-7 of itself, also near zero.
TEST(SoftCap, IsTheHyperbolicTangent) {
  for (int i = -4000; i <= 4000; ++i) {
    const float x = float(i) / 400.0f;
    EXPECT_NEAR(vector_tanh(x), std::tanh(double(x)), 3e-7 * std::abs(std::tanh(double(x)))) << x;
  }
  EXPECT_EQ(soft_cap(3.0f, 0.0f), 3.0f);
  EXPECT_NEAR(soft_cap(3.0f, 2.0f), 2.0 * std::tanh(1.5), 1e-6);
  EXPECT_EQ(vector_tanh(200.0f), 1.0f);
  EXPECT_EQ(vector_tanh(-200.0f), -1.0f);
}

TEST(GeluErf, EqualsItsTwinWithAndWithoutBias) {
  for (const Shape& s : shapes)
    for (const bool biased : {true, false}) {
      Array u = random_array(s.N, s.F, 1, 2.0f, s.gap), a(s.N, s.F, s.gap);
      Array da = random_array(s.N, s.F, 2, 1.0f, s.gap), bias = random_array(1, s.F, 3);
      const ConstVector given = biased ? ConstVector(bias.vector()) : ConstVector();
      const reference::Doubles used =
          biased ? bias.doubles() : reference::Doubles(std::size_t(s.F), 0.0);
      gelu_erf_forward(u.matrix(), given, a.matrix());
      EXPECT_LT(
          reference::relative_error(a.values(), reference::gelu_erf_forward(u.doubles(), used)),
          1e-6);
      const auto expected = reference::gelu_erf_backward(u.doubles(), used, da.doubles());
      gelu_erf_backward(u.matrix(), given, da.matrix(), da.matrix());
      EXPECT_LT(reference::relative_error(da.values(), expected), 1e-6);
      EXPECT_TRUE(a.gaps_untouched() && da.gaps_untouched());
    }
}

TEST(GeluErf, BackwardIsTheSlopeOfTheTwin) {
  Array u = random_array(3, 5, 1, 2.0f), bias = random_array(1, 5, 3), da = random_array(3, 5, 2);
  const reference::Doubles grad = da.doubles();
  const auto slope = reference::slope_of(
      [&](auto& at) {
        return reference::dot(grad, reference::gelu_erf_forward(at, bias.doubles()));
      },
      u.doubles());
  gelu_erf_backward(u.matrix(), bias.vector(), da.matrix(), da.matrix());
  EXPECT_LT(reference::relative_error(da.values(), slope), 1e-6);
}

// Every value alone to 1e-5 of itself, also far out on the left, where it is tiny: 4e-6 of that is
// the rounding of z^2 in the exponent.
TEST(GeluErf, KeepsItsDigitsForNegativeNumbers) {
  for (int i = -120; i <= 120; ++i) {
    Array u(1, 1), a(1, 1);
    u(0, 0) = float(i) / 10.0f;
    gelu_erf_forward(u.matrix(), {}, a.matrix());
    const double expected = reference::gelu_erf(double(u(0, 0)));
    EXPECT_NEAR(a(0, 0), expected, 1e-5 * std::abs(expected)) << u(0, 0);
  }
}

}  // namespace
}  // namespace brume::kernels
