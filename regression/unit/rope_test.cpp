#include "kernels/rope.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "base/error.hpp"
#include "reference/rope.hpp"

namespace brume::kernels {
namespace {

using reference::Array;
using reference::random_array;

struct Shape {
  int sequences, T, heads, head_dim, gap;
};
const Shape shapes[] = {{1, 1, 1, 2, 0}, {2, 9, 3, 6, 5}, {3, 40, 2, 64, 0}, {1, 17, 5, 34, 1}};

struct Case {
  explicit Case(const Shape& s)
      : shape{s}, x{random_array(s.sequences * s.T, s.heads * s.head_dim, 1, 1.0f, s.gap)} {
    for (int i = 0; i < s.head_dim / 2; ++i)
      frequencies.push_back(std::pow(10000.0, -2.0 * i / s.head_dim));
    floats = rope_table(frequencies, s.T);
  }
  ConstMatrix table() const {
    return ConstMatrix(floats.data(), std::size_t(shape.T), std::size_t(shape.head_dim));
  }
  reference::Doubles twin(const reference::Doubles& of, double direction) const {
    return reference::rope(of, frequencies, shape.T, shape.heads * shape.head_dim, direction);
  }
  Shape shape;
  Array x;
  std::vector<double> frequencies;
  std::vector<float> floats;
};

TEST(Rope, EqualsItsTwinInBothDirections) {
  for (const Shape& shape : shapes) {
    for (const double direction : {1.0, -1.0}) {
      Case c(shape);
      const auto expected = c.twin(c.x.doubles(), direction);
      (direction > 0.0 ? rope_forward<float> : rope_backward<float>)(c.table(), c.shape.head_dim,
                                                                     c.x.matrix(), {});
      EXPECT_LT(reference::relative_error(c.x.values(), expected), 1e-6);
      EXPECT_TRUE(c.x.gaps_untouched());
    }
  }
}

// Two sequences of nine, the first of documents of 4, 1 and 4 tokens: each has the bits that it has
// alone.
TEST(Rope, PositionsBeginWithADocument) {
  const std::vector<std::int32_t> begins{0, 0, 0, 0, 4, 5, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const Case c({2, 9, 3, 6, 0});
  Array all = c.x;
  rope_forward(c.table(), c.shape.head_dim, all.matrix(), {begins.data()});
  for (int first = 0, end = 0; first < 18; first = end) {
    while (end < 18 && end / 9 == first / 9 &&
           begins[std::size_t(end)] == begins[std::size_t(first)])
      ++end;
    Array alone(end - first, 18);
    for (int n = first; n < end; ++n)
      for (int i = 0; i < 18; ++i) alone(n - first, i) = c.x(n, i);
    rope_forward(c.table(), c.shape.head_dim, alone.matrix());
    for (int n = first; n < end; ++n)
      for (int i = 0; i < 18; ++i) EXPECT_EQ(all(n, i), alone(n - first, i)) << n;
  }
  rope_backward(c.table(), c.shape.head_dim, all.matrix(), {begins.data()});
  EXPECT_LT(reference::relative_error(all.values(), c.x.doubles()), 1e-6);
}

// A sequence in parts of a rank each has the bits of the whole one, with documents and without.
TEST(Rope, PositionsGoOnInTheNextPartOfASequence) {
  const std::vector<std::int32_t> begins{0, 0, 2, 2, 2, 2, 2, 7, 7};
  const Case c({1, 9, 3, 6, 0});
  for (const bool isolated : {false, true}) {
    Array all = c.x;
    rope_forward(c.table(), c.shape.head_dim, all.matrix(), {isolated ? begins.data() : nullptr});
    for (const int first : {0, 3, 6}) {
      Array part(3, 18);
      for (int n = 0; n < 3; ++n)
        for (int i = 0; i < 18; ++i) part(n, i) = c.x(first + n, i);
      rope_forward(c.table(), c.shape.head_dim, part.matrix(),
                   {.begins = isolated ? begins.data() + first : nullptr, .first = first});
      for (int n = 0; n < 3; ++n)
        for (int i = 0; i < 18; ++i) EXPECT_EQ(part(n, i), all(first + n, i)) << first + n;
    }
  }
}

TEST(Rope, BackwardIsTheSlopeOfTheTwin) {
  Case c({2, 3, 2, 4, 0});
  const reference::Doubles x = random_array(6, 8, 7).doubles(), dy = c.x.doubles();
  const auto slope =
      reference::slope_of([&](auto& at) { return reference::dot(dy, c.twin(at, 1.0)); }, x);
  rope_backward(c.table(), c.shape.head_dim, c.x.matrix());
  EXPECT_LT(reference::relative_error(c.x.values(), slope), 1e-6);
}

TEST(Rope, LeavesTheRestOfAHeadAlone) {
  Case c({2, 9, 3, 6, 0});
  const reference::Doubles part = c.x.doubles();
  Array x = random_array(18, 3 * 10, 2, 1.0f, 4);
  Array before = x;
  for (int n = 0; n < 18; ++n)
    for (int i = 0; i < 18; ++i) x(n, i / 6 * 10 + i % 6) = c.x(n, i);
  rope_forward(c.table(), 10, x.matrix());
  const reference::Doubles turned = c.twin(part, 1.0);
  for (int n = 0; n < 18; ++n)
    for (int i = 0; i < 30; ++i) {
      if (i % 10 < 6)
        EXPECT_NEAR(x(n, i), turned[std::size_t(n * 18 + i / 10 * 6 + i % 10)], 1e-6);
      else
        EXPECT_EQ(x(n, i), before(n, i));
    }
  EXPECT_TRUE(x.gaps_untouched());
}

// What makes the positions relative: q at t and k at u give a score that only t - u decides.
TEST(Rope, ScoresDependOnDistanceOnly) {
  Case c({1, 12, 1, 16, 0});
  for (int n = 1; n < 12; ++n)
    for (int i = 0; i < 16; ++i) c.x(n, i) = c.x(0, i);
  rope_forward(c.table(), c.shape.head_dim, c.x.matrix());
  const auto score = [&](int t, int u) {
    double sum = 0.0;
    for (int i = 0; i < 16; ++i) sum += double(c.x(t, i)) * c.x(u, i);
    return sum;
  };
  EXPECT_NEAR(score(11, 8), score(3, 0), 1e-5);
  EXPECT_GT(std::abs(score(11, 8) - score(11, 0)), 1e-2);
}

TEST(Rope, AnOddHeadBreaksAPromise) {
  Array x(2, 6);
  const std::vector<float> floats(6, 0.0f);
  EXPECT_THROW(rope_forward(ConstMatrix(floats.data(), 2, 3), 3, x.matrix()), Error);
}

}  // namespace
}  // namespace brume::kernels
