#include "kernels/cross_entropy.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "reference/cross_entropy.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

std::vector<std::int32_t> some_targets(int N, int V) {
  std::vector<std::int32_t> targets;
  for (int n = 0; n < N; ++n) targets.push_back(n % 5 == 3 ? -1 : n * 7 % V);
  return targets;
}

struct Shape {
  int N, V, gap;
};
const Shape shapes[] = {{1, 1, 0},   {3, 7, 2},     {70, 64, 0},
                        {9, 257, 1}, {3, 50304, 0}, {2, 9001, 5}};

TEST(CrossEntropy, EqualsItsTwin) {
  for (const auto& [N, V, gap] : shapes) {
    SCOPED_TRACE(testing::Message() << N << " x " << V);
    Array logits = random_array(N, V, 1, 3.0f, gap);
    const auto targets = some_targets(N, V);
    reference::Doubles gradient;
    const double expected = reference::cross_entropy(logits.doubles(), targets, 0.25, &gradient);
    const std::vector<float> before = logits.values();
    EXPECT_NEAR(cross_entropy(logits.matrix(), reference::view(targets), 0.25f, false), expected,
                1e-6 * std::abs(expected) + 1e-9);
    EXPECT_TRUE(reference::same_bits(logits.values(), before)) << "without gradient they stay";
    EXPECT_NEAR(cross_entropy(logits.matrix(), reference::view(targets), 0.25f, true), expected,
                1e-6 * std::abs(expected) + 1e-9);
    EXPECT_LT(reference::relative_error(logits.values(), gradient), V == 1 ? 1e30 : 1e-6);
    EXPECT_TRUE(logits.gaps_untouched());
  }
}

TEST(CrossEntropy, GradientIsTheSlopeOfTheTwin) {
  Array logits = random_array(4, 6, 1);
  const auto targets = some_targets(4, 6);
  const auto slope = reference::slope_of(
      [&](auto& at) { return reference::cross_entropy(at, targets, 0.5); }, logits.doubles());
  cross_entropy(logits.matrix(), reference::view(targets), 0.5f, true);
  EXPECT_LT(reference::relative_error(logits.values(), slope), 1e-6);
}

// ln V for equal logits; the gradient is scale (1/V - [v = target]).
TEST(CrossEntropy, EqualLogitsCostLogV) {
  Array logits(1, 8);
  for (int v = 0; v < 8; ++v) logits(0, v) = 5.0f;
  const std::vector<std::int32_t> targets{2};
  EXPECT_NEAR(cross_entropy(logits.matrix(), reference::view(targets), 1.0f, true), std::log(8.0),
              1e-7);
  for (int v = 0; v < 8; ++v) EXPECT_FLOAT_EQ(logits(0, v), v == 2 ? -0.875f : 0.125f);
}

TEST(CrossEntropy, IgnoredTokensCostNothingAndPushNothing) {
  Array logits = random_array(3, 9, 1);
  const std::vector<std::int32_t> targets{-1, -1, -100};
  EXPECT_EQ(cross_entropy(logits.matrix(), reference::view(targets), 1.0f, true), 0.0);
  EXPECT_EQ(logits.values(), std::vector<float>(27, 0.0f));
}

TEST(CrossEntropy, LargeLogitsStayFiniteAndNaNShows) {
  Array logits(1, 3);
  logits(0, 0) = 1e4f, logits(0, 1) = -1e4f, logits(0, 2) = 0.0f;
  const std::vector<std::int32_t> targets{1};
  EXPECT_DOUBLE_EQ(cross_entropy(logits.matrix(), reference::view(targets), 1.0f, false), 2e4);
  logits(0, 2) = NAN;
  EXPECT_TRUE(std::isnan(cross_entropy(logits.matrix(), reference::view(targets), 1.0f, false)));
}

TEST(CrossEntropy, ATargetOutsideTheVocabularyBreaksAPromise) {
  Array logits = random_array(1, 4, 1);
  const std::vector<std::int32_t> targets{4};
  EXPECT_THROW(cross_entropy(logits.matrix(), reference::view(targets), 1.0f, true), Error);
}

TEST(CrossEntropy, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits([] {
    Array logits = random_array(70, 513, 1);
    const auto targets = some_targets(70, 513);
    const double loss = cross_entropy(logits.matrix(), reference::view(targets), 0.1f, true);
    std::vector<float> out = logits.values();
    out.push_back(float(loss));
    return out;
  });
}

}  // namespace
}  // namespace brume::kernels
