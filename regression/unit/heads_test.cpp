/// @file Columns of heads in parts, against their definition.
#include "kernels/heads.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "reference/arrays.hpp"
#include "reference/formats.hpp"

namespace brume::kernels {
namespace {

template <class Storage>
class Heads : public ::testing::Test {};

using Formats = ::testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(Heads, Formats, reference::StorageName);

/// Small whole numbers, of which sums are exact in every format.
template <class Storage>
std::vector<Storage> numbers(std::size_t count) {
  std::vector<Storage> values;
  for (std::size_t i = 0; i < count; ++i) values.emplace_back(float(i * 37 % 64));
  return values;
}

/// The column of x that stands in a column of a part, and its block.
struct Source {
  int column, block;
};
Source source(const HeadBlocks& heads, int part, int column) {
  int first = 0;
  for (int b = 0;; ++b) {
    const HeadBlocks::Block& block = heads.blocks.at(std::size_t(b));
    if (column < block.width())
      return {first + part * block.ranges / heads.parts * block.width() + column, b};
    column -= block.width();
    first += block.columns;
  }
}

const std::vector<HeadBlocks> cases{
    {{{{6, 1}}}, 1},                   // nothing to cut
    {{{{8, 2}, {4, 2}, {4, 2}}}, 2},   // queries, keys and values
    {{{{24, 4}, {6, 2}, {6, 2}}}, 4},  // two ranks share a key head
    {{{{40, 8}, {5, 1}, {5, 1}}}, 8},  // all do
    {{{{12, 3}}}, 3},                  // attended heads
};

TYPED_TEST(Heads, EachPartHasItsRangeOfEachBlock) {
  for (const HeadBlocks& heads : cases) {
    constexpr int tokens = 5;
    const int columns = heads.columns(), width = heads.width();
    std::vector<TypeParam> x = numbers<TypeParam>(std::size_t(tokens * columns));
    std::vector<TypeParam> y(std::size_t(heads.parts * tokens * width));
    cut_heads<TypeParam>(ConstMatrixOf<TypeParam>(x.data(), tokens, std::size_t(columns)), heads,
                         MatrixOf<TypeParam>(y.data(), tokens, y.size() / tokens));
    for (int p = 0; p < heads.parts; ++p)
      for (int n = 0; n < tokens; ++n)
        for (int c = 0; c < width; ++c)
          ASSERT_EQ(float(y[std::size_t((p * tokens + n) * width + c)]),
                    float(x[std::size_t(n * columns + source(heads, p, c).column)]))
              << heads.parts << " parts, part " << p << ", token " << n << ", column " << c;
  }
}

TYPED_TEST(Heads, SharedRangesAreAddedUp) {
  for (const HeadBlocks& heads : cases) {
    constexpr int tokens = 5;
    const int columns = heads.columns(), width = heads.width();
    std::vector<TypeParam> y = numbers<TypeParam>(std::size_t(heads.parts * tokens * width));
    std::vector<TypeParam> x(std::size_t(tokens * columns), TypeParam(-1.0f));
    join_heads<TypeParam>(ConstMatrixOf<TypeParam>(y.data(), tokens, y.size() / tokens), heads,
                          MatrixOf<TypeParam>(x.data(), tokens, std::size_t(columns)));
    std::vector<float> expected(x.size(), 0.0f);
    for (int p = 0; p < heads.parts; ++p)
      for (int n = 0; n < tokens; ++n)
        for (int c = 0; c < width; ++c)
          expected[std::size_t(n * columns + source(heads, p, c).column)] +=
              float(y[std::size_t((p * tokens + n) * width + c)]);
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(float(x[i]), expected[i]) << heads.parts << " parts, element " << i;
  }
}

TEST(HeadPromises, NameBlocksThatDoNotFit) {
  std::vector<float> x(12), y(12);
  const auto cut = [&](const HeadBlocks& heads) {
    cut_heads<>(ConstMatrix(x.data(), 2, 6), heads, Matrix(y.data(), 2, 6));
  };
  EXPECT_NO_THROW(cut({{{{4, 2}, {2, 2}}}, 2}));
  EXPECT_THROW(cut({{{{6, 4}}}, 4}), Error);          // ranges do not divide the columns
  EXPECT_THROW(cut({{{{6, 3}}}, 2}), Error);          // nor the parts
  EXPECT_THROW(cut({{{{4, 2}}}, 2}), Error);          // fewer columns than x has
  EXPECT_THROW(cut({{{{4, 2}, {2, 1}}}, 2}), Error);  // the parts have more than y has room for
}

}  // namespace
}  // namespace brume::kernels
