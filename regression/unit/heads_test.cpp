/// @file Columns of heads in parts, against their definition.
#include "kernels/heads.hpp"
#include "kernels/latent.hpp"

#include <gtest/gtest.h>

#include <cmath>
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

/// The place in a row of parts of each column of queries, keys and values; -1: a zero.
///
/// @param apart  keys and values alone, of parts with the turned key apart: it has the last places
std::vector<int> places(const LatentShape& shape, bool apart) {
  std::vector<int> places;
  for (int i = 0; i < shape.columns(); ++i) {
    const int h = i % shape.queries() / shape.head_dim, c = i % shape.head_dim;
    const int pair = shape.queries() + h * shape.pair();
    if (i < shape.queries())
      places.push_back(i);
    else if (i < 2 * shape.queries())
      places.push_back(c < shape.turned ? shape.queries() + shape.heads * shape.pair() + c
                                        : pair + c - shape.turned);
    else
      places.push_back(c < shape.value_dim ? pair + shape.still() + c : -1);
  }
  if (!apart) return places;
  places.erase(places.begin(), places.begin() + shape.queries());
  for (int& place : places)
    if (place >= 0) place -= shape.queries();
  return places;
}

TYPED_TEST(Heads, LatentPartsBecomeQueriesKeysAndValues) {
  constexpr int tokens = 5;
  for (const auto& [shape, apart] : {std::pair(LatentShape{3, 10, 4, 8}, false),
                                     {LatentShape{1, 6, 2, 6}, false},
                                     {LatentShape{3, 10, 4, 8}, true}}) {
    const std::vector<int> from = places(shape, apart);
    const std::size_t columns = from.size(), queries = apart ? std::size_t(shape.queries()) : 0,
                      width = std::size_t(shape.parts()) - queries,
                      pairs = apart ? width - std::size_t(shape.turned) : width;
    const std::vector<TypeParam> x = numbers<TypeParam>(tokens * width);
    std::vector<TypeParam> y(tokens * columns), dx(x.size());
    const auto turned = [&](auto* all) {
      return apart ? MatrixOf<TypeParam>(all + pairs, tokens, width - pairs, width)
                   : MatrixOf<TypeParam>();
    };
    std::vector<TypeParam> copied = x;
    expand_keys<TypeParam>({x.data(), tokens, pairs, width}, shape, {y.data(), tokens, columns},
                           turned(copied.data()));
    const std::vector<TypeParam> dy = numbers<TypeParam>(y.size());
    expand_keys_backward<TypeParam>({dy.data(), tokens, columns}, shape,
                                    {dx.data(), tokens, pairs, width}, turned(dx.data()));
    std::vector<float> sums(x.size());
    for (std::size_t n = 0; n < tokens; ++n)
      for (std::size_t c = 0; c < columns; ++c) {
        const int place = from[c];
        ASSERT_EQ(float(y[n * columns + c]), place < 0 ? 0.0f : float(x[n * width + place]));
        if (place >= 0) sums[n * width + place] += float(dy[n * columns + c]);
      }
    for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(float(dx[i]), sums[i]) << i;
  }
}

// Scores and values of a token that sees latent keys are those by whole keys and values.
TYPED_TEST(Heads, LatentKeysGiveTheScoresOfWholeOnes) {
  constexpr int tokens = 5;
  for (const LatentShape& shape :
       {LatentShape{3, 10, 4, 8, 12}, LatentShape{1, 6, 2, 6, 5}, LatentShape{2, 40, 8, 16, 130}}) {
    const auto width = std::size_t(shape.latent_parts()), kept = std::size_t(shape.kept()),
               columns = std::size_t(shape.latent_columns()), rank = std::size_t(shape.rank),
               up_rows = std::size_t(shape.heads * shape.pair());
    const auto small = [](std::size_t count) {
      std::vector<TypeParam> values = numbers<TypeParam>(count);
      for (TypeParam& value : values) value = TypeParam(float(value) / 32.0f - 1.0f);
      return values;
    };
    const std::vector<TypeParam> x = small(tokens * width), up = small(up_rows * rank);
    std::vector<TypeParam> y(tokens * columns),
        values(tokens * std::size_t(shape.heads * shape.value_dim));
    absorb_queries<TypeParam>({x.data(), tokens, width}, {up.data(), up_rows, rank}, shape,
                              {y.data(), tokens, columns});
    // Each token attends to itself alone.
    std::vector<TypeParam> attended;
    for (std::size_t n = 0; n < tokens; ++n)
      for (int h = 0; h < shape.heads; ++h)
        for (std::size_t c = 0; c < kept; ++c)
          attended.push_back(y[n * columns + std::size_t(shape.heads + 1) * kept + c]);
    expand_values<TypeParam>({attended.data(), tokens, std::size_t(shape.heads) * kept},
                             {up.data(), up_rows, rank}, shape,
                             {values.data(), tokens, std::size_t(shape.heads * shape.value_dim)});
    const double relative = sizeof(TypeParam) == 4 ? 1e-5 : 2e-2;
    for (std::size_t n = 0; n < tokens; ++n) {
      const TypeParam *const latent = &x[n * width], *const queries = latent + kept;
      const auto made = [&](int row) {  // of kv_up
        double sum = 0.0;
        for (std::size_t c = 0; c < rank; ++c)
          sum += double(float(up[std::size_t(row) * rank + c])) * double(float(latent[c]));
        return sum;
      };
      for (int h = 0; h < shape.heads; ++h) {
        double expected = 0.0, size = 1.0, found = 0.0;
        const auto add = [&](double query, double key) {
          expected += query * key, size += std::abs(query * key);
        };
        for (int c = 0; c < shape.turned; ++c)
          add(float(queries[h * shape.head_dim + c]), float(latent[shape.rank + c]));
        for (int c = 0; c < shape.still(); ++c)
          add(float(queries[h * shape.head_dim + shape.turned + c]), made(h * shape.pair() + c));
        for (std::size_t c = 0; c < kept; ++c)
          found += double(float(y[n * columns + std::size_t(h) * kept + c])) *
                   double(float(y[n * columns + std::size_t(shape.heads) * kept + c]));
        ASSERT_NEAR(found, expected, relative * size) << n << ' ' << h;
        for (int c = 0; c < shape.value_dim; ++c) {
          const double value = made(h * shape.pair() + shape.still() + c);
          ASSERT_NEAR(float(values[n * std::size_t(shape.heads * shape.value_dim) +
                                   std::size_t(h * shape.value_dim + c)]),
                      value, relative * (1.0 + std::abs(value)) * std::sqrt(double(rank)));
        }
      }
    }
  }
}

TYPED_TEST(Heads, NarrowHeadsLoseTheColumnsThatWidenedThem) {
  constexpr int tokens = 5;
  const LatentShape shape{3, 10, 4, 8};
  const std::vector<TypeParam> wide = numbers<TypeParam>(tokens * 30);
  std::vector<TypeParam> narrow(tokens * 24), back(wide.size());
  narrow_values<TypeParam>({wide.data(), tokens, 30}, shape, {narrow.data(), tokens, 24});
  narrow_values_backward<TypeParam>({narrow.data(), tokens, 24}, shape, {back.data(), tokens, 30});
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::size_t n = i / 30, h = i % 30 / 10, c = i % 10;
    if (c < 8) {
      ASSERT_EQ(float(narrow[n * 24 + h * 8 + c]), float(wide[i]));
    }
    ASSERT_EQ(float(back[i]), c < 8 ? float(wide[i]) : 0.0f);
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
