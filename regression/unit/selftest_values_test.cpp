#include "app/selftest_values.hpp"

#include <gtest/gtest.h>

#include <set>

namespace brume::app {
namespace {

// As fp32 adds them up, from the first rank on and from the last one on.
TEST(SelftestValues, SumsAreExactForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 12, 13, 14, 1606, 5000, 100'003, 1'000'000})
    for (std::size_t i = 0; i < 13; ++i) {
      float rising = 0.0f, falling = 0.0f;
      for (int rank = 0; rank < ranks; ++rank)
        rising += term(rank, i), falling += term(ranks - 1 - rank, i);
      EXPECT_EQ(rising, sum_of_terms(ranks, i)) << ranks << " ranks, value " << i;
      EXPECT_EQ(falling, sum_of_terms(ranks, i)) << ranks << " ranks, value " << i;
    }
}

// A rank that is left out, or another one's value in its place, shows.
TEST(SelftestValues, EachRankCounts) {
  for (std::size_t i = 0; i < 13; ++i) EXPECT_GE(term(int(i), i), 1.0f);
  std::set<float> marks;
  for (int rank = 0; rank < 10'000; ++rank) marks.insert(mark(rank, 7));
  EXPECT_EQ(marks.size(), 10'000u);
}

}  // namespace
}  // namespace brume::app
