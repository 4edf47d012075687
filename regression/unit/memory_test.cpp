#include "device/memory.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"

namespace brume::device {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;

TEST(Memory, BlockIsAlignedAndWritableToItsLastByte) {
  const Memory block(3 * 4096 + 1);
  ASSERT_NE(block.data(), nullptr);
  EXPECT_EQ(block.bytes(), 3 * 4096 + 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % (on_device() ? 256 : 4096), 0u);
  std::byte* const last = block.data() + block.bytes() - 1;
  std::byte value{42}, found{0};
  copy_now(last, &value, 1);
  copy_now(&found, last, 1);
  EXPECT_EQ(found, value);
}

TEST(Memory, NoBytesNeedNoBlock) {
  EXPECT_EQ(Memory(0).data(), nullptr);
  EXPECT_EQ(Memory().bytes(), 0);
  EXPECT_THROW(Memory(-1), Error);
}

TEST(Memory, MovingKeepsTheBlockInPlace) {
  Memory block(mib);
  std::byte* const place = block.data();
  const Memory moved = std::move(block);
  EXPECT_EQ(moved.data(), place);
  EXPECT_EQ(moved.bytes(), mib);
}

TEST(Memory, WhatCannotBeHadIsAResourceErrorWithTheBytes) {
  const std::int64_t bytes = std::int64_t{1} << 50;
  try {
    const Memory block(bytes);
    FAIL() << "a pebibyte was granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::resource);
    EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos);
  }
}

// The block is really there at once, and goes when its owner goes.
TEST(Memory, ResidentSetFollowsTheBlock) {
  if (on_device()) GTEST_SKIP() << "a device's memory is in no resident set";
  const std::int64_t before = resident_bytes();
  {
    const Memory block(64 * mib);
    EXPECT_GE(resident_bytes(), before + 62 * mib);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // those add memory and keep it
    EXPECT_LE(resident_bytes(), before + 72 * mib);
  }
  EXPECT_LE(resident_bytes(), before + 8 * mib);
#else
  }
#endif
  EXPECT_GE(peak_resident_bytes(), before + 62 * mib);
}

TEST(Memory, PeakStartsAnewAfterRelease) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  if (on_device()) GTEST_SKIP() << "a device's memory is in no resident set";
  const std::int64_t bytes = 64 << 20;
  { const Memory block(bytes); }
  const std::int64_t with_block = peak_resident_bytes();
  release_unused();
  EXPECT_LE(peak_resident_bytes(), with_block - bytes / 2);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
}

/// All of its threads: a device's driver has some.
void bind_process(const cpu_set_t& cores) {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    ASSERT_EQ(sched_setaffinity(std::stoi(thread.path().filename()), sizeof(cores), &cores), 0);
}

TEST(Processor, CoresFollowTheBinding) {
  const Processor unbound = this_processor();
  EXPECT_FALSE(unbound.name.empty());
  EXPECT_GE(unbound.cores, 1);
  EXPECT_GE(unbound.node_cores, unbound.cores);

  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  bind_process(one);
  const Processor bound = this_processor();
  bind_process(before);

  EXPECT_EQ(bound.cores, 1);
  EXPECT_EQ(bound.node_cores, unbound.node_cores);
  EXPECT_EQ(bound.name, unbound.name);
}

// A rank with cores of its own takes them; ranks that share cores, a part of the node or all of it,
// divide them, and none is left without one.
TEST(Processor, RanksDivideTheCoresThatTheyShare) {
  const auto threads = [](int cores, int node_cores, int ranks_per_node, int sharing) {
    return threads_per_rank({.name = "", .cores = cores, .node_cores = node_cores}, ranks_per_node,
                            sharing);
  };
  EXPECT_EQ(threads(16, 16, 4, 4), 4) << "unbound";
  EXPECT_EQ(threads(4, 16, 4, 1), 4) << "each bound to its own";
  EXPECT_EQ(threads(8, 16, 4, 2), 4) << "two sockets, two ranks on each";
  EXPECT_EQ(threads(8, 16, 4, 4), 2) << "all in one half of the node";
  EXPECT_EQ(threads(2, 16, 4, 4), 1) << "more ranks than cores";
  EXPECT_EQ(threads(1, 16, 1, 1), 1);
}

TEST(Processor, TellsItsCoresApart) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one core";
  std::vector<std::string> allowed{this_processor().allowed};
  for (int core = 0, found = 0; found < 2; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    bind_process(one);
    allowed.push_back(this_processor().allowed);
    ++found;
  }
  bind_process(before);
  EXPECT_NE(allowed[1], allowed[2]);
  EXPECT_NE(allowed[0], allowed[1]);
  EXPECT_EQ(this_processor().allowed, allowed[0]);
}

// A thread that binds itself binds those it starts, and nobody else.
TEST(Processor, AThreadStaysOnItsCores) {
  const auto allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    return CPU_COUNT(&set);
  };
  const int before = allowed();
  bool bound = false, beyond = true;
  int mine = 0, child = 0;
  std::thread thread([&] {
    beyond = bind_this_thread(this_processor().node_cores, 1);
    bound = bind_this_thread(0, 1);
    mine = allowed();
    std::thread([&] { child = allowed(); }).join();
  });
  thread.join();

  EXPECT_FALSE(beyond);
  EXPECT_EQ(allowed(), before);
  if (!bound) GTEST_SKIP() << "this system does not bind threads to core 0";
  if (this_processor().cores > 1) {
    EXPECT_LT(mine, before);
  }
  EXPECT_EQ(child, mine);
}

TEST(Processor, ABoundThreadGetsItsCoresBack) {
  const auto allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    return set;
  };
  const cpu_set_t before = allowed();
  const auto bound_to = [&](int first_core) {
    const BoundThread bound(first_core, 1);
    return allowed();
  };
  const cpu_set_t nowhere = bound_to(-1), beyond = bound_to(this_processor().node_cores);
  const cpu_set_t first = bound_to(0), after = allowed();
  EXPECT_TRUE(CPU_EQUAL(&nowhere, &before));
  EXPECT_TRUE(CPU_EQUAL(&beyond, &before));
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
  if (this_processor().cores > 1) {
    EXPECT_LT(CPU_COUNT(&first), CPU_COUNT(&before));
  }
}

}  // namespace
}  // namespace brume::device
