#include "base/statistics.hpp"

#include <gtest/gtest.h>

namespace brume {
namespace {

TEST(Median, IsTheMiddleValueWhateverTheOrder) {
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({7.0}), 7.0);
}

TEST(Median, OfTwoMiddleValuesIsTheLarger) { EXPECT_EQ(median({4.0, 1.0, 3.0, 2.0}), 3.0); }

}  // namespace
}  // namespace brume
