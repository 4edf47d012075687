#include "kernels/host/loops.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <new>
#include <vector>

#include "base/error.hpp"
#include "kernels/types.hpp"
#include "refusal.hpp"

namespace brume::kernels {
namespace {

/// Two threads, for as long as a test runs.
struct TwoThreads {
  TwoThreads() { use_threads(2); }
  ~TwoThreads() { use_threads(1); }
};

TEST(Loops, CallTheBodyOnceForEveryIndex) {
  const TwoThreads team;
  for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<int> calls(std::size_t(count), 0);
    for_each("test", count, [&](std::int64_t i) { ++calls[std::size_t(i)]; });
    EXPECT_EQ(calls, std::vector<int>(std::size_t(count), 1));
  }
}

// What leaves a thread of a team other than by its end ends the process.
TEST(Loops, AnErrorOfAnyThreadReachesTheCaller) {
  const TwoThreads team;
  for (const std::int64_t failing : {0, 1, 98, 99}) {
    const auto body = [=](std::int64_t i) {
      require(i != failing, Failure::bug, "index {} fails", i);
    };
    EXPECT_EQ(test::refusal([&] { for_each("test", 100, body); }, Failure::bug),
              fmt::format("index {} fails", failing));
  }
  std::atomic<int> calls = 0;
  for_each("test", 100, [&](std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 100) << "the team works on afterwards";
}

TEST(Loops, WhenAllThreadsFailOneErrorIsThrown) {
  const TwoThreads team;
  const auto body = [](std::int64_t i) { throw Error(Failure::bug, "index {}", i); };
  EXPECT_THROW(for_each("test", 2, body), Error);
}

// The same from one thread and from several.
TEST(Loops, ALackOfMemoryIsAnErrorOfResources) {
  for (const int threads : {1, 2}) {
    use_threads(threads);
    const std::string what = test::refusal(
        [] { for_each("attention_forward", 4, [](std::int64_t) { throw std::bad_alloc(); }); },
        Failure::resource);
    EXPECT_TRUE(what.starts_with("attention_forward: memory ran out: ")) << what;
    EXPECT_NE(what.find("lower cluster"), std::string::npos) << what;
  }
  use_threads(1);
}

}  // namespace
}  // namespace brume::kernels
