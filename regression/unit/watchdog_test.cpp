#include "comm/watchdog.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <thread>

#include "base/error.hpp"

namespace brume::comm {
namespace {

using std::chrono::milliseconds;

TEST(Watchdog, SilenceIsToldOnceWithItsLength) {
  std::atomic<int> told = 0;
  std::promise<double> silence_s;
  Watchdog watchdog(0.05, [&](double silence) {
    if (++told == 1) silence_s.set_value(silence);
  });
  const double silence = silence_s.get_future().get();
  std::this_thread::sleep_for(milliseconds(120));
  watchdog.beat();
  std::this_thread::sleep_for(milliseconds(120));
  EXPECT_GE(silence, 0.05);
  EXPECT_LE(silence, 2.0);
  EXPECT_EQ(told, 1);
}

TEST(Watchdog, BeatsFromAnyThreadKeepItQuiet) {
  std::atomic<int> told = 0;
  Watchdog watchdog(2.0, [&](double) { ++told; });
  std::atomic<bool> ending = false;
  const auto beat = [&] {
    while (!ending) {
      watchdog.beat();
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  std::thread first(beat);
  std::thread second(beat);
  std::this_thread::sleep_for(milliseconds(2200));
  ending = true;
  first.join();
  second.join();
  EXPECT_EQ(told, 0);
}

// Whoever was busy for longer than anybody thought may have to wait as long for others who do the
// same.
TEST(Watchdog, WhatWasBusyForLongMayRestAsLong) {
  std::promise<double> silence_s;
  Watchdog watchdog(1.0, [&](double silence) { silence_s.set_value(silence); });
  for (int i = 0; i < 160; ++i) {
    watchdog.beat();
    std::this_thread::sleep_for(milliseconds(10));
  }
  const double silence = silence_s.get_future().get();
  EXPECT_GE(silence, 1.5);
  EXPECT_LE(silence, 4.0);
}

TEST(Watchdog, TheDeadlineMayMoveBothWays) {
  std::promise<double> silence_s;
  const auto begin = std::chrono::steady_clock::now();
  Watchdog watchdog(20, [&](double silence) { silence_s.set_value(silence); });
  watchdog.set_deadline(1000);
  auto silence = silence_s.get_future();
  EXPECT_EQ(silence.wait_for(milliseconds(300)), std::future_status::timeout);
  watchdog.set_deadline(0.2);
  EXPECT_GE(silence.get(), 0.3);  // counted from the start, not from the new deadline
  EXPECT_LE(std::chrono::steady_clock::now() - begin, milliseconds(3000));
}

TEST(Watchdog, EndsAtOnceWhateverItsDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> told = 0;
  for (const double deadline_s : {60.0, 1e12, std::numeric_limits<double>::infinity()}) {
    const Watchdog watchdog(deadline_s, [&](double) { ++told; });
  }
  EXPECT_LE(std::chrono::steady_clock::now() - begin, milliseconds(3000));
  EXPECT_EQ(told, 0);
}

TEST(Watchdog, ItMayBeUsedByWhatItCalls) {
  std::promise<void> done;
  Watchdog* self = nullptr;
  std::promise<void> known;
  Watchdog watchdog(0.02, [&, ready = known.get_future().share()](double) {
    ready.wait();
    self->beat();
    self->set_deadline(5);
    done.set_value();
  });
  self = &watchdog;
  known.set_value();
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(Watchdog, ADeadlineIsPositive) {
  EXPECT_THROW(Watchdog(0, [](double) {}), Error);
  Watchdog watchdog(10, [](double) {});
  EXPECT_THROW(watchdog.set_deadline(-1), Error);
}

}  // namespace
}  // namespace brume::comm
