#include "device/channels.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "late_stream.hpp"

namespace brume::device {
namespace {

using std::chrono::microseconds;

void pause_up_to(std::minstd_rand& random, int longest_us) {
  std::this_thread::sleep_for(microseconds(random() % static_cast<unsigned>(longest_us + 1)));
}

TEST(Channels, WorkOfAChannelRunsInOrder) {
  Channels channels({"a", "b"});
  std::array<std::vector<int>, 2> seen;

  for (int i = 0; i < 1000; ++i) {
    for (int c = 0; c < 2; ++c) {
      channels.enqueue(c, [&seen, c, i] { seen[static_cast<std::size_t>(c)].push_back(i); });
    }
  }
  channels.synchronize();

  for (const std::vector<int>& order : seen) {
    ASSERT_EQ(order.size(), 1000u);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
}

TEST(Channels, ChannelsRunBesideEachOther) {
  Channels channels({"first", "second"});
  std::atomic<bool> second_ran = false;

  // Without concurrency the first channel would wait for the second one for ever.
  channels.enqueue(0, [&] {
    while (!second_ran) std::this_thread::sleep_for(microseconds(50));
  });
  channels.enqueue(1, [&] { second_ran = true; });

  channels.synchronize();
  EXPECT_TRUE(second_ran);
}

// A chain that hops between random channels: plain memory, so a missed wait is a wrong sum here and
// a report of ThreadSanitizer there.
TEST(Channels, WaitsAcrossChannelsAreHonoured) {
  constexpr int num_channels = 4;
  std::minstd_rand random(7);
  for (int round = 0; round < 20; ++round) {
    Channels channels({"a", "b", "c", "d"});
    std::vector<int> order;
    Event last{0, 0};
    for (int i = 0; i < 100; ++i) {
      const int channel = static_cast<int>(random() % num_channels);
      channels.wait(channel, last);
      channels.enqueue(channel, [&order, i, seed = random()] {
        std::minstd_rand delay(seed);
        if (i % 8 == 0) pause_up_to(delay, 100);
        order.push_back(i);
      });
      last = channels.record(channel);
    }
    channels.synchronize();
    ASSERT_EQ(order.size(), 100u);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
}

// Where others keep all cores busy, a channel that waits does not give its core away for a turn of
// theirs, of milliseconds, at each hand-over.
TEST(Channels, HandOversAreShortBesideBusyThreads) {
  std::atomic<bool> done = false;
  std::vector<std::jthread> busy;
  for (unsigned core = 0; core < std::thread::hardware_concurrency(); ++core)
    busy.emplace_back([&done] {
      while (!done) {
      }
    });
  Channels channels({"a", "b"});
  const auto begin = std::chrono::steady_clock::now();
  constexpr int hand_overs = 500;
  for (int i = 0; i < hand_overs; ++i) {
    channels.wait(i % 2, channels.record((i + 1) % 2));
    channels.enqueue(i % 2, [] {});
  }
  channels.synchronize();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  done = true;
  EXPECT_LT(elapsed.count() / hand_overs, 1e-3);
}

// Two buffers filled by one channel and emptied by another, as a prefetch does it.
TEST(Channels, DoubleBufferingMovesEveryValue) {
  Channels channels({"h2d", "compute"});
  std::array<int, 2> buffer{};
  std::array<Event, 2> emptied{Event{1, 0}, Event{1, 0}};
  std::int64_t sum = 0;
  std::minstd_rand random(3);

  for (int i = 1; i <= 500; ++i) {
    const auto slot = static_cast<std::size_t>(i % 2);
    channels.wait(0, emptied[slot]);
    channels.enqueue(0, [&buffer, slot, i] { buffer[slot] = i; });
    channels.wait(1, channels.record(0));
    const bool slow = random() % 16 == 0;
    channels.enqueue(1, [&buffer, &sum, slot, slow] {
      if (slow) std::this_thread::sleep_for(microseconds(100));
      sum += buffer[slot];
    });
    emptied[slot] = channels.record(1);
  }
  channels.synchronize();

  EXPECT_EQ(sum, 500 * 501 / 2);
}

TEST(Channels, WorkFeedsTheNextRoundAfterSynchronize) {
  Channels channels({"a", "b"});
  int value = 0;
  for (int i = 0; i < 200; ++i) {
    channels.enqueue(i % 2, [&value] { ++value; });
    channels.synchronize();
    ASSERT_EQ(value, i + 1);
  }
}

TEST(Channels, ThreadsCarryTheirNames) {
  Channels channels({"collective_tp_and_more"});
  std::array<char, 32> name{};
  channels.enqueue(0, [&] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  channels.synchronize();
  EXPECT_STREQ(name.data(), "collective_tp_a");
}

TEST(Channels, AFailureSkipsWhatFollowsOnEveryChannel) {
  std::atomic<int> told = 0;
  std::atomic<int> ran_after = 0;
  Channels channels({"a", "b", "c"}, [&](std::exception_ptr) { ++told; });

  channels.enqueue(1, [] { throw Error(Failure::network, "peer 3 fell silent"); });
  const Event failed = channels.record(1);
  for (int c = 0; c < 3; ++c) {
    channels.wait(c, failed);
    channels.enqueue(c, [&] { ++ran_after; });
  }

  EXPECT_THROW(channels.synchronize(), Error);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(ran_after, 0);
}

TEST(Channels, TheFirstFailureIsTheOneThatIsKept) {
  std::vector<std::string> told;
  std::atomic<bool> first_failed = false;
  Channels channels({"a", "b"}, [&](std::exception_ptr failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      told.push_back(error.what());
    }
    first_failed = true;
  });
  std::atomic<bool> second_started = false;

  channels.enqueue(1, [&] {
    second_started = true;
    while (!first_failed) std::this_thread::sleep_for(microseconds(50));
    throw std::runtime_error("second");
  });
  channels.enqueue(0, [&] {
    while (!second_started) std::this_thread::sleep_for(microseconds(50));
    throw std::runtime_error("first");
  });

  try {
    channels.synchronize();
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(told, std::vector<std::string>{"first"});
}

// What was given before may refer to what goes when run() is left.
TEST(Channels, WorkHasEndedWhenTheOneWhoGivesItFails) {
  Channels channels({"a"});
  std::atomic<bool> begun = false, ended = false, followed = false;
  EXPECT_THROW(channels.run([&] {
    channels.enqueue(0, [&] {
      begun = true;
      std::this_thread::sleep_for(microseconds(20'000));
      ended = true;
    });
    channels.enqueue(0, [&] { followed = true; });
    while (!begun) std::this_thread::yield();
    throw std::bad_alloc();
  }),
               std::bad_alloc);
  EXPECT_TRUE(ended);
  EXPECT_FALSE(followed);
}

TEST(Channels, AFailedObjectStaysFailed) {
  Channels channels({"a"});
  bool ran = false;
  channels.enqueue(0, [] { throw std::runtime_error("broken"); });
  EXPECT_THROW(channels.synchronize(), std::runtime_error);

  channels.enqueue(0, [&] { ran = true; });
  EXPECT_THROW(channels.synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
}

// As the engine uses it: the failure releases a peer call that hangs on another channel.
TEST(Channels, OnFailureMayReleaseAnotherChannel) {
  std::atomic<bool> released = false;
  Channels channels({"compute", "p2p"}, [&](std::exception_ptr) { released = true; });
  channels.enqueue(1, [&] {
    while (!released) std::this_thread::sleep_for(microseconds(50));
    throw Error(Failure::network, "released");
  });
  channels.enqueue(0, [] { throw Error(Failure::bug, "cause"); });
  try {
    channels.synchronize();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cause");
  }
}

TEST(Channels, DestructionDropsWhatHasNotStarted) {
  std::atomic<bool> started = false, ends = false;
  std::atomic<int> finished = 0;
  {
    Channels channels({"a", "b"});
    channels.enqueue(0, [&] {
      started = true;
      while (!ends) std::this_thread::sleep_for(microseconds(50));
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      ++finished;
    });
    channels.wait(1, channels.record(0));
    for (int i = 0; i < 10; ++i) {
      channels.enqueue(0, [&] { finished += 100; });
      channels.enqueue(1, [&] { finished += 100; });
    }
    while (!started) std::this_thread::sleep_for(microseconds(50));
    ends = true;  // as nearly as a loaded machine lets it be told
  }
  EXPECT_EQ(finished, 1);
}

TEST(Channels, ManyObjectsComeAndGo) {
  for (int i = 0; i < 100; ++i) {
    std::atomic<int> ran = 0;
    Channels channels({"a", "b", "c"});
    for (int c = 0; c < 3; ++c) channels.enqueue(c, [&] { ++ran; });
    if (i % 2 == 0) {
      channels.synchronize();
      EXPECT_EQ(ran, 3);
    }
  }
}

TEST(Channels, WrongNumbersBreakAPromise) {
  Channels channels({"a"});
  EXPECT_THROW(channels.enqueue(1, [] {}), Error);
  EXPECT_THROW(channels.enqueue(0, nullptr), Error);
  EXPECT_THROW(channels.wait(0, {0, 5}), Error);
}

/// Two streams and a host channel hand one number around; each must see what the one before wrote,
/// though a worker is done with its work long before its stream is.
TEST(ChannelStreams, EventsOrderWhatStreamsDoLater) {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<test::LateStream>());
  streams.push_back(std::make_unique<test::LateStream>());
  streams.push_back(nullptr);
  Channels channels({"first", "second", "host"}, {}, std::move(streams));
  int number = 0;
  for (int round = 0; round < 20; ++round) {
    const auto put = [&number, round](int before, int after) {
      return [&number, before, after, round] {
        number = number == 3 * round + before ? 3 * round + after : -1000;
      };
    };
    channels.enqueue(0, [work = put(0, 1)] { test::LateStream::current->put(work); });
    channels.wait(1, channels.record(0));
    channels.enqueue(1, [work = put(1, 2)] { test::LateStream::current->put(work); });
    channels.wait(2, channels.record(1));
    channels.enqueue(2, put(2, 3));
    channels.wait(0, channels.record(2));
  }
  channels.synchronize();
  EXPECT_EQ(number, 60);
}

/// Work of a stream and of the host on one clock: what waits begins when the other has ended, also
/// where the worker was done with it at once.
TEST(ChannelStreams, SpansAreWhenStreamsWorked) {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<test::LateStream>());
  streams.push_back(std::make_unique<test::LateStream>());
  streams.push_back(nullptr);
  Channels channels({"first", "second", "host"}, {}, std::move(streams));
  const auto work = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  for (int round = 0; round < 2; ++round) {
    std::array<Span, 3> spans;
    channels.start_clock();
    channels.enqueue(
        0, [work] { test::LateStream::current->put(work); }, &spans[0]);
    channels.wait(1, channels.record(0));
    channels.enqueue(
        1, [work] { test::LateStream::current->put(work); }, &spans[1]);
    channels.wait(2, channels.record(1));
    channels.enqueue(2, work, &spans[2]);
    channels.synchronize();
    EXPECT_GE(spans[0].start_s, 0.0);
    for (const Span& span : spans) EXPECT_GE(span.end_s, span.start_s + 2e-3);
    EXPECT_GE(spans[1].start_s, spans[0].end_s);
    EXPECT_GE(spans[2].start_s, spans[1].end_s);
  }
}

/// The clock starts in one stream; another that is ready sooner has no times before it.
TEST(ChannelStreams, NoStreamStartsBeforeTheClock) {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<test::LateStream>(std::chrono::milliseconds(5)));
  streams.push_back(std::make_unique<test::LateStream>());
  Channels channels({"slow", "fast"}, {}, std::move(streams));
  Span span;
  channels.start_clock();
  channels.enqueue(
      1, [] {}, &span);
  channels.synchronize();
  EXPECT_GE(span.start_s, 0.0);
  EXPECT_GE(span.end_s, span.start_s);
}

/// A stream's work is in flight until the stream has done it, a worker's until that has.
TEST(ChannelStreams, WhatIsInFlightIsKnown) {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<test::LateStream>());
  streams.push_back(nullptr);
  Channels channels({"late", "host"}, {}, std::move(streams));
  std::atomic<bool> go_on = false;
  const auto work = [&go_on] {
    while (!go_on) std::this_thread::sleep_for(microseconds(50));
  };
  Span first, second, host;
  channels.start_clock();
  channels.enqueue(
      0, [work] { test::LateStream::current->put(work); }, &first);
  channels.enqueue(
      0, [work] { test::LateStream::current->put(work); }, &second);
  channels.enqueue(1, work, &host);
  while (!channels.in_flight(0) || !channels.in_flight(1))
    std::this_thread::sleep_for(microseconds(50));
  EXPECT_EQ(channels.in_flight(0), &first);
  EXPECT_EQ(channels.in_flight(1), &host);
  go_on = true;
  channels.synchronize();
  EXPECT_EQ(channels.in_flight(0), nullptr);
  EXPECT_EQ(channels.in_flight(1), nullptr);
}

TEST(ChannelStreams, SynchronizeWaitsForTheStreams) {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(std::make_unique<test::LateStream>());
  Channels channels({"late"}, {}, std::move(streams));
  bool done = false;
  channels.enqueue(0, [&] { test::LateStream::current->put([&] { done = true; }); });
  channels.synchronize();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace brume::device
