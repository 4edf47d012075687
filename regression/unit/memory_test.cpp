#include "device/memory.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/control_group.hpp"
#include "device/device.hpp"
#include "own_folder.hpp"

namespace brume::device {
namespace {

namespace fs = std::filesystem;

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

TEST(Processor, CachesOfTheNodeAddUp) {
  std::ifstream first("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::int64_t kibibytes = 0;
  if (!(first >> kibibytes)) GTEST_SKIP() << "the system shows no third level of caches";
  EXPECT_GE(this_processor().cache_bytes, kibibytes << 10);
  EXPECT_EQ(this_processor().cache_bytes % (kibibytes << 10), 0);
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

// --- limits of control groups
// ---------------------------------------------------------------------

class ControlGroups : public testing::Test {
 protected:
  void put(const fs::path& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  std::int64_t free_bytes() const { return control_group_free_bytes(root_ / "membership", root_); }
  std::int64_t limit_bytes() const {
    return control_group_limit_bytes(root_ / "membership", root_);
  }

  test::OwnFolder folder_;
  fs::path root_ = folder_.path();
};

TEST_F(ControlGroups, TheLeastOfAllAboveCountsInVersion2) {
  put("membership", "0::/job/step\n");
  EXPECT_EQ(free_bytes(), std::numeric_limits<std::int64_t>::max());
  put("job/step/memory.max", "max\n");
  put("job/step/memory.current", "100\n");
  EXPECT_EQ(free_bytes(), std::numeric_limits<std::int64_t>::max());
  put("job/memory.max", "1000\n");
  put("job/memory.current", "700\n");
  EXPECT_EQ(free_bytes(), 300);
  put("job/memory.stat", "anon 500\nfile 200\ninactive_file 150\n");
  EXPECT_EQ(free_bytes(), 450);
  put("job/memory.current", "2000\n");
  EXPECT_EQ(free_bytes(), 0);
  EXPECT_EQ(limit_bytes(), 1000);
}

TEST_F(ControlGroups, WithinAContainerTheRootIsTheGroup) {
  put("membership", "0::/../of/another/namespace\n");
  put("memory.max", "1000\n");
  put("memory.current", "400\n");
  EXPECT_EQ(free_bytes(), 600);
}

TEST(Memory, NoMoreIsLeftThanIsInstalled) {
  const std::int64_t installed = installed_bytes();
  EXPECT_GT(installed, 64 * mib);
  EXPECT_LE(available_bytes(), installed);
}

TEST_F(ControlGroups, Version1HasAFolderForMemory) {
  put("membership", "9:name=systemd:/job\n4:cpu,memory:/job\n3:cpuset:/other\nno line\n");
  put("memory/job/memory.limit_in_bytes", "1000\n");
  put("memory/job/memory.usage_in_bytes", "900\n");
  put("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n");
  EXPECT_EQ(free_bytes(), 300);
}

// In a group of its own a process has no more than the group; who may not make one skips.
TEST_F(ControlGroups, TheSystemsOwn) {
  const fs::path root = "/sys/fs/cgroup";
  const bool second = fs::exists(root / "cgroup.controllers");
  const fs::path group =
      (second ? root : root / "memory") / fmt::format("brume-test-{}", ::getpid());
  std::error_code error;
  if (!fs::create_directory(group, error)) GTEST_SKIP() << "no control groups can be made here";
  const auto say = [&](const char* file, const std::string& text) {
    std::ofstream out(group / file);
    return bool(out << text << std::flush);
  };
  const bool limited =
      say(second ? "memory.max" : "memory.limit_in_bytes", std::to_string(256 * mib));
  int status = -1;
  if (const pid_t child = ::fork(); child == 0) {
    const bool in = say("cgroup.procs", std::to_string(::getpid()));
    const std::int64_t free = available_bytes();
    std::_Exit(!in ? 77 : free > 128 * mib && free <= 256 * mib ? 0 : 1);
  } else {
    ::waitpid(child, &status, 0);
  }
  fs::remove(group, error);
  if (!limited || WEXITSTATUS(status) == 77) GTEST_SKIP() << "no memory can be limited here";
  EXPECT_EQ(status, 0);
}

/// Ends with the failure of asking for 3 GiB where 4 are allowed, of which threads need one.
void ask_for_too_much() {
  const rlimit limit{rlim_t(4096 * mib), rlim_t(4096 * mib)};
  ::setrlimit(RLIMIT_AS, &limit);
  try {
    require_address_space(1024 * mib);
    require_address_space(3072 * mib);
  } catch (const Error& error) {
    const bool says_why = std::string(error.what()).find("ulimit -v") != std::string::npos;
    std::_Exit(says_why ? int(error.failure()) : 1);
  }
  std::_Exit(1);
}

#ifndef __SANITIZE_ADDRESS__  // which maps terabytes
TEST(Memory, AddressSpaceThatIsLimitedIsRefusedEarly) {
  EXPECT_NO_THROW(require_address_space(std::int64_t{1} << 60));
  EXPECT_EXIT(ask_for_too_much(), testing::ExitedWithCode(4), "");
}
#endif

}  // namespace
}  // namespace brume::device
