#include "base/deadline.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace brume {
namespace {

TEST(Deadline, WithoutATimeItNeverPasses) {
  const Deadline never;
  EXPECT_TRUE(std::isinf(never.left_s()));
  EXPECT_NO_THROW(never.check());
}

TEST(Deadline, WhatIsLeftShrinksToZeroAndThenThrows) {
  const Deadline soon(0.02);
  const double left_s = soon.left_s();
  EXPECT_GT(left_s, 0.0);
  EXPECT_LE(left_s, 0.02);
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_EQ(soon.left_s(), 0.0);
  EXPECT_THROW(soon.check(), OutOfTime);
}

TEST(Deadline, ANegativeTimeHasPassed) { EXPECT_THROW(Deadline(-1.0).check(), OutOfTime); }

// Clocks count in 64 bits: more seconds than they hold must not wrap around into the past.
TEST(Deadline, AHugeTimeIsFarAway) {
  for (const double left_s : {1e12, 1e300, HUGE_VAL}) {
    EXPECT_GT(Deadline(left_s).left_s(), 9e8);
    EXPECT_NO_THROW(Deadline(left_s).check());
  }
}

TEST(Deadline, SomebodyMayEndItEarly) {
  std::atomic<bool> stop = false;
  const Deadline deadline(100.0, &stop);
  EXPECT_NO_THROW(deadline.check());
  stop = true;
  EXPECT_TRUE(deadline.stopped());
  EXPECT_EQ(deadline.left_s(), 0.0);
  EXPECT_THROW(deadline.check(), OutOfTime);
}

TEST(Deadline, ItCanBeSetAnew) {
  Deadline deadline(-1.0);
  deadline.set(100.0);
  EXPECT_NO_THROW(deadline.check());
  EXPECT_GT(deadline.left_s(), 50.0);
}

// Callers that know nothing of time see a search without a result.
TEST(Deadline, ItsErrorIsThatNothingWasFound) {
  EXPECT_EQ(OutOfTime().failure(), Failure::infeasible);
}

}  // namespace
}  // namespace brume
