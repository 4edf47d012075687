/// @file Channels over CUDA streams: order within and between channels, copies both ways at once.
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "base/error.hpp"
#include "device/channels.hpp"
#include "gpu.hpp"
#include "refusal.hpp"

namespace brume::device {
namespace {

std::vector<std::unique_ptr<Stream>> streams(int count) {
  std::vector<std::unique_ptr<Stream>> all;
  for (int i = 0; i < count; ++i) all.push_back(make_stream());
  return all;
}

/// Loading all kernels of all libraries takes seconds, which only ranks with peers have to spend.
TEST(Streams, KernelsAreLoadedAtOnceForRanksWithPeersOnly) {
  BRUME_NEEDS_GPU();
  const auto loading = [] { return std::getenv("CUDA_MODULE_LOADING"); };
  ::unsetenv("CUDA_MODULE_LOADING");
  set_environment(false);
  EXPECT_EQ(loading(), nullptr);
  set_environment(true);
  EXPECT_STREQ(loading(), "EAGER");
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  set_environment(true);
  EXPECT_STREQ(loading(), "LAZY");  // somebody's own choice stays
}

/// With one queue, as scripts for Megatron-LM ask for, transfers wait for each other in the order
/// of their launches, which no two ranks need to have alike.
TEST(Streams, TooFewQueuesAreRefusedWherePeersWait) {
  BRUME_NEEDS_GPU();
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  EXPECT_NO_THROW(use_device(0, 1));
  const std::string what = test::refusal([] { use_device(0, 2); });
  EXPECT_NE(what.find("CUDA_DEVICE_MAX_CONNECTIONS"), std::string::npos) << what;
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  set_environment(true);
  EXPECT_NO_THROW(use_device(0, 2));
}

/// Host -> device -> device -> host on four channels, many times through the same memory: any copy
/// that runs before the one it waits for shows in the values.
TEST(Streams, EventsOrderCopiesOfDifferentChannels) {
  BRUME_NEEDS_GPU();
  constexpr std::int64_t count = 1 << 20, bytes = count * std::int64_t(sizeof(int));
  Memory in(bytes, Tier::host), out(bytes, Tier::host);
  Memory first(bytes), second(bytes);
  Channels channels({"h2d", "compute", "d2h", "host"}, {}, [] {
    auto all = streams(3);
    all.push_back(nullptr);  // checks on the host
    return all;
  }());
  int wrong = 0;

  for (int round = 0; round < 50; ++round) {
    channels.enqueue(3, [&, round] {
      int* values = reinterpret_cast<int*>(in.data());
      std::iota(values, values + count, round);
    });
    channels.wait(0, channels.record(3));
    channels.enqueue(0, [&] { device::copy(first.data(), in.data(), bytes); });
    channels.wait(1, channels.record(0));
    channels.enqueue(1, [&] { device::copy(second.data(), first.data(), bytes); });
    channels.wait(2, channels.record(1));
    channels.enqueue(2, [&] { device::copy(out.data(), second.data(), bytes); });
    channels.wait(3, channels.record(2));
    channels.enqueue(3, [&, round] {
      const int* values = reinterpret_cast<const int*>(out.data());
      for (std::int64_t i = 0; i < count; ++i) wrong += values[i] != round + int(i);
    });
  }
  channels.synchronize();
  EXPECT_EQ(wrong, 0);
}

/// Times of events: fills of a large block take about as long each time, one after the other, and
/// what waits for them begins afterwards.
TEST(Streams, SpansAreThoseOfTheDevice) {
  BRUME_NEEDS_GPU();
  const Memory block(std::int64_t{1} << 28);
  Channels channels({"first", "second"}, {}, streams(2));
  std::array<Span, 3> spans;
  const auto work = [&] { fill(block.data(), std::byte{1}, block.bytes()); };
  channels.enqueue(0, work);  // the first one makes the device ready
  channels.synchronize();
  channels.start_clock();
  channels.enqueue(0, work, &spans[0]);
  channels.enqueue(0, work, &spans[1]);
  channels.wait(1, channels.record(0));
  channels.enqueue(1, work, &spans[2]);
  channels.synchronize();
  double before_s = 0.0;
  for (const Span& span : spans) {
    EXPECT_GE(span.start_s, before_s);
    EXPECT_GT(span.end_s, span.start_s);
    before_s = span.end_s;
  }
}

TEST(Streams, TooMuchMemoryIsAnErrorThatNamesTheBytes) {
  BRUME_NEEDS_GPU();
  try {
    Memory memory(std::int64_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::resource);
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos);
  }
}

}  // namespace
}  // namespace brume::device
