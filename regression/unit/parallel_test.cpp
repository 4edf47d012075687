// Loops on several threads.
#include "base/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace brume {
namespace {

TEST(ParallelFor, EachPassRunsOnceOnAThreadOfItsOwn) {
  constexpr std::size_t count = 1000;
  for (const int threads : {0, 1, 3, 8}) {
    std::vector<int> runs(count, 0);
    std::atomic<int> strangers = 0;
    parallel_for(count, threads, [&](std::size_t i, std::size_t thread) {
      ++runs[i];
      strangers += int(thread) >= std::max(1, threads);
    });
    EXPECT_EQ(runs, std::vector<int>(count, 1)) << threads;
    EXPECT_EQ(strangers, 0);
  }
  parallel_for(0, 4, [](std::size_t, std::size_t) { FAIL(); });
}

TEST(ParallelFor, TheLeastFailureIsThrownWhenAllHaveEnded) {
  for (int trial = 0; trial < 50; ++trial) {
    std::atomic<int> running = 0;
    try {
      parallel_for(64, 4, [&](std::size_t i, std::size_t) {
        ++running;
        const bool fails = i >= 7;
        --running;
        if (fails) throw std::runtime_error(std::to_string(i));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(running, 0);
      EXPECT_STREQ(error.what(), "7");  // those below it end well, so it always begins
    }
  }
}

}  // namespace
}  // namespace brume
