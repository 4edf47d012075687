#include "kernels/cross_entropy.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>

#include "kernels/types.hpp"
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

/// What the kernel writes.
template <class Storage = float>
double loss_of(MatrixOf<Storage> logits, const std::vector<std::int32_t>& targets, float scale,
               bool with_gradient) {
  const auto loss = std::make_unique<double>(NAN);  // replacing must not read
  cross_entropy<Storage>(logits, reference::view(targets), scale, with_gradient, Write::replace,
                         loss.get());
  return *loss;
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
    EXPECT_NEAR(loss_of(logits.matrix(), targets, 0.25f, false), expected,
                1e-6 * std::abs(expected) + 1e-9);
    EXPECT_TRUE(reference::same_bits(logits.values(), before)) << "without gradient they stay";
    EXPECT_NEAR(loss_of(logits.matrix(), targets, 0.25f, true), expected,
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
  loss_of(logits.matrix(), targets, 0.5f, true);
  EXPECT_LT(reference::relative_error(logits.values(), slope), 1e-6);
}

// ln V for equal logits; the gradient is scale (1/V - [v = target]).
TEST(CrossEntropy, EqualLogitsCostLogV) {
  Array logits(1, 8);
  for (int v = 0; v < 8; ++v) logits(0, v) = 5.0f;
  const std::vector<std::int32_t> targets{2};
  EXPECT_NEAR(loss_of(logits.matrix(), targets, 1.0f, true), std::log(8.0), 1e-7);
  for (int v = 0; v < 8; ++v) EXPECT_FLOAT_EQ(logits(0, v), v == 2 ? -0.875f : 0.125f);
}

TEST(CrossEntropy, IgnoredTokensCostNothingAndPushNothing) {
  Array logits = random_array(3, 9, 1);
  const std::vector<std::int32_t> targets{-1, -1, -100};
  EXPECT_EQ(loss_of(logits.matrix(), targets, 1.0f, true), 0.0);
  EXPECT_EQ(logits.values(), std::vector<float>(27, 0.0f));
}

TEST(CrossEntropy, LargeLogitsStayFiniteAndNaNShows) {
  Array logits(1, 3);
  logits(0, 0) = 1e4f, logits(0, 1) = -1e4f, logits(0, 2) = 0.0f;
  const std::vector<std::int32_t> targets{1};
  EXPECT_DOUBLE_EQ(loss_of(logits.matrix(), targets, 1.0f, false), 2e4);
  logits(0, 2) = NAN;
  EXPECT_TRUE(std::isnan(loss_of(logits.matrix(), targets, 1.0f, false)));
}

TEST(CrossEntropy, CountsTargetsThatAreLessLikelyThanAnother) {
  const std::vector<float> logits{1, 3, 2, 3, /**/ 5, 4, 3, 2, /**/ 0, 0, 0, 1, /**/ 7, 8, 9, 6};
  const auto sums = std::make_unique<std::array<double, 2>>();
  const auto misses_of = [&](const std::vector<std::int32_t>& targets, bool with_gradient,
                             Write write) {
    std::vector<float> rows = logits;
    cross_entropy(Matrix(rows.data(), 4, 4), reference::view(targets), 1.0f, with_gradient, write,
                  &(*sums)[0], 0.0f, &(*sums)[1]);
    return (*sums)[1];
  };
  for (const bool with_gradient : {false, true}) {
    EXPECT_EQ(misses_of({1, 0, 3, 2}, with_gradient, Write::replace), 0.0);
    EXPECT_EQ(misses_of({3, 1, 3, 3}, with_gradient, Write::replace), 2.0) << "the largest twice";
    EXPECT_EQ(misses_of({0, -1, -1, 0}, with_gradient, Write::accumulate), 4.0) << "two ignored";
  }
  // The first part has columns 0 to 2, the second one column 3.
  Array statistics(2, num_statistics * 4);
  std::vector<float> parts[] = {{1, 3, 2, 5, 4, 3, 0, 0, 0, 7, 8, 9}, {3, 2, 1, 6}};
  const std::vector<std::int32_t> targets{3, 1, 3, 2};
  const VocabularyPart cuts[] = {{0, 4}, {3, 4}};
  const std::size_t columns[] = {3, 1};
  const auto part = [&](std::size_t p) { return Matrix(parts[p].data(), 4, columns[p]); };
  for (std::size_t p = 0; p < 2; ++p)
    cross_entropy_part(part(p), reference::view(targets), cuts[p],
                       Matrix(&statistics(p, 0), 4, num_statistics));
  for (std::size_t p = 0; p < 2; ++p) {
    *sums = {NAN, NAN};
    cross_entropy_combine(part(p), reference::view(targets), cuts[p], statistics.matrix(), int(p),
                          1.0f, Write::replace, &(*sums)[0], 0.0f, &(*sums)[1]);
    EXPECT_EQ((*sums)[1], 1.0) << "part " << p;
  }
}

TEST(CrossEntropy, ATargetOutsideTheVocabularyShows) {
  Array logits = random_array(1, 4, 1);
  EXPECT_TRUE(std::isnan(loss_of(logits.matrix(), {4}, 1.0f, true)));
}

TEST(CrossEntropy, PiecesAddUp) {
  Array logits = random_array(5, 9, 1);
  const auto targets = some_targets(5, 9);
  const double whole = loss_of(logits.matrix(), targets, 1.0f, false);
  const auto loss = std::make_unique<double>(
      loss_of(Matrix(&logits(0, 0), 2, 9), {targets.begin(), targets.begin() + 2}, 1.0f, false));
  cross_entropy(Matrix(&logits(2, 0), 3, 9), ConstTokens(&targets[2], 3), 1.0f, false,
                Write::accumulate, loss.get());
  EXPECT_NEAR(*loss, whole, 1e-12 * whole);
}

// --- logits in parts -----------------------------------------------------------------------------

/// Loss and gradient of logits [N, V] cut by columns as ranks hold them: parts of ceil(V / P).
struct InParts {
  double loss;
  std::vector<float> gradient;  ///< [N, V]
};

template <class Storage = float>
InParts in_parts(const std::vector<Storage>& logits, const std::vector<std::int32_t>& targets,
                 int parts, float scale) {
  const int N = int(targets.size()), V = int(logits.size()) / N, each = (V + parts - 1) / parts;
  Array statistics(parts, num_statistics * N);
  std::vector<std::vector<Storage>> own;
  std::vector<VocabularyPart> cuts;
  const auto matrix_of = [&](int p) {
    return MatrixOf<Storage>(own[std::size_t(p)].data(), std::size_t(N),
                             own[std::size_t(p)].size() / std::size_t(N));
  };
  for (int p = 0; p < parts; ++p) {
    const int first = std::min(p * each, V), end = std::min(first + each, V);
    cuts.push_back({first, V});
    std::vector<Storage>& mine = own.emplace_back();
    for (int n = 0; n < N; ++n)
      mine.insert(mine.end(), &logits[std::size_t(n * V)] + first,
                  &logits[std::size_t(n * V)] + end);
    cross_entropy_part<Storage>(matrix_of(p), reference::view(targets), cuts.back(),
                                Matrix(&statistics(p, 0), std::size_t(N), num_statistics));
  }
  InParts all{0.0, std::vector<float>(logits.size())};
  for (int p = 0; p < parts; ++p) {
    const auto sum = std::make_unique<double>(NAN);
    cross_entropy_combine<Storage>(matrix_of(p), reference::view(targets), cuts[std::size_t(p)],
                                   statistics.matrix(), p, scale, Write::replace, sum.get());
    const double loss = *sum;
    EXPECT_TRUE(p == 0 || loss == all.loss || std::isnan(loss))
        << "the loss is the same on all ranks";
    all.loss = loss;
    const auto columns = int(matrix_of(p).extent(1));
    for (int n = 0; n < N; ++n)
      for (int v = 0; v < columns; ++v)
        all.gradient[std::size_t(n * V + cuts[std::size_t(p)].first + v)] =
            float(own[std::size_t(p)][std::size_t(n * columns + v)]);
  }
  return all;
}

// Most targets are of another part; with five parts of three tokens two have none at all.
TEST(CrossEntropyParts, EqualTheTwinOfTheWhole) {
  for (const auto& [N, V] : {std::pair(3, 7), {9, 257}, {70, 64}, {2, 9001}, {4, 3}})
    for (const int parts : {1, 2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << N << " x " << V << " in " << parts);
      Array logits = random_array(N, V, 1, 3.0f);
      const auto targets = some_targets(N, V);
      reference::Doubles gradient;
      const double expected = reference::cross_entropy(logits.doubles(), targets, 0.25, &gradient);
      const InParts found = in_parts(logits.values(), targets, parts, 0.25f);
      EXPECT_NEAR(found.loss, expected, 1e-6 * std::abs(expected) + 1e-9);
      EXPECT_LT(reference::relative_error(found.gradient, gradient), 1e-6);
    }
}

TEST(CrossEntropyParts, LargeLogitsStayFiniteAndNaNShows) {
  std::vector<float> logits{1e4f, -1e4f, 0.0f, -1e4f, -1e4f, 9990.0f};
  const std::vector<std::int32_t> targets{3};
  reference::Doubles gradient;
  const double expected =
      reference::cross_entropy({logits.begin(), logits.end()}, targets, 1.0, &gradient);
  for (const int parts : {2, 3, 6}) {
    const InParts found = in_parts(logits, targets, parts, 1.0f);
    EXPECT_NEAR(found.loss, expected, 1e-6 * expected);
    EXPECT_LT(reference::relative_error(found.gradient, gradient), 1e-6);
  }
  logits[4] = NAN;
  EXPECT_TRUE(std::isnan(in_parts(logits, targets, 3, 1.0f).loss));
}

TEST(CrossEntropyParts, NarrowLogitsGiveTheirGradientRounded) {
  const std::vector<float> wide = random_array(5, 501, 1, 3.0f).values();
  const std::vector<bfloat16> logits(wide.begin(), wide.end());
  const std::vector<float> same(logits.begin(), logits.end());
  const auto targets = some_targets(5, 501);
  const InParts found = in_parts(logits, targets, 3, 0.2f),
                expected = in_parts(same, targets, 3, 0.2f);
  EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss);
  for (std::size_t i = 0; i < same.size(); ++i)
    EXPECT_NEAR(found.gradient[i], expected.gradient[i], 0x1p-8 * std::abs(expected.gradient[i]));
}

TEST(CrossEntropyParts, ATargetOutsideTheVocabularyShows) {
  EXPECT_TRUE(std::isnan(in_parts(random_array(1, 4, 1).values(), {4}, 2, 1.0f).loss));
}

TEST(CrossEntropy, RepeatsBitwiseAlsoAmongThreads) {
  reference::expect_same_bits([] {
    Array logits = random_array(70, 513, 1);
    const auto targets = some_targets(70, 513);
    const double loss = loss_of(logits.matrix(), targets, 0.1f, true);
    std::vector<float> out = logits.values();
    out.push_back(float(loss));
    return out;
  });
}

// Whole and in two parts, for which the slope of the cap is that of the twin.
TEST(CrossEntropy, CapsLogits) {
  const float cap = 2.0f;
  const std::vector<std::int32_t> targets{3, -1, 8, 0};
  const Array logits = random_array(4, 9, 1, 4.0f);
  const auto loss_of = [&](const reference::Doubles& at) {
    reference::Doubles capped;
    for (const double x : at) capped.push_back(cap * std::tanh(x / cap));
    return reference::cross_entropy(capped, targets, 0.5);
  };
  const auto slope = reference::slope_of(loss_of, logits.doubles());
  Array whole = logits;
  const auto loss = std::make_unique<double>(0.0);
  cross_entropy(whole.matrix(), reference::view(targets), 0.5f, true, Write::replace, loss.get(),
                cap);
  EXPECT_NEAR(*loss, loss_of(logits.doubles()), 1e-6);
  EXPECT_LT(reference::relative_error(whole.values(), slope), 5e-6);

  Array parts = logits, statistics(2, 4 * num_statistics);
  std::vector<double> losses(2);
  const auto part = [&](int p) { return columns(parts.matrix(), 5 * p, p == 0 ? 5 : 4); };
  for (const int p : {0, 1})
    cross_entropy_part(part(p), reference::view(targets), {5 * p, 9},
                       Matrix(&statistics(p, 0), 4, num_statistics), cap);
  for (const int p : {0, 1})
    cross_entropy_combine(part(p), reference::view(targets), {5 * p, 9}, statistics.matrix(), p,
                          0.5f, Write::replace, &losses[std::size_t(p)], cap);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_NEAR(losses[0], *loss, 1e-6);
  EXPECT_LT(reference::relative_error(parts.values(), slope), 5e-6);
}

}  // namespace
}  // namespace brume::kernels
