#include "base/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace brume {
namespace {

TEST(Median, IsTheMiddleValueWhateverTheOrder) {
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({7.0}), 7.0);
}

TEST(Median, OfTwoMiddleValuesIsTheLarger) { EXPECT_EQ(median({4.0, 1.0, 3.0, 2.0}), 3.0); }

TEST(LargestDifference, IsRelativeToTheSecond) {
  EXPECT_DOUBLE_EQ(largest_difference({1.0, 3.0, -8.0}, {1.0, 2.0, -10.0}), 0.5);
  EXPECT_EQ(largest_difference({1.0, 2.0}, {1.0, 2.0}), 0.0);
}

TEST(LargestDifference, OfWhatIsNoNumberOrMissingIsInfinite) {
  EXPECT_EQ(largest_difference({1.0, NAN, 2.0}, {1.0, 2.0, 2.0}), INFINITY);
  EXPECT_EQ(largest_difference({1.0, 2.0}, {1.0, NAN}), INFINITY);
  EXPECT_EQ(largest_difference({1.0}, {1.0, 2.0}), INFINITY);
}

}  // namespace
}  // namespace brume
