#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "checkpoint_samples.hpp"
#include "comm/agree.hpp"
#include "io/checkpoint.hpp"

namespace brume::io {
namespace {

/// Tries to write step 20; expects all ranks to fail alike, then one more step to succeed.
void expect_failure(const fs::path& directory, const CheckpointInfo& info, std::size_t limit) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory, world);
    Memory memory(world.rank() * 20, 20);
    memory.fill(20);
    world.barrier();
    std::optional<FileLimit> full;
    if (world.rank() == 0) full.emplace(limit);
    world.barrier();
    writer.start(info, memory.slabs);
    try {
      writer.finish();
      ADD_FAILURE() << "nothing failed";
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.failure(), Failure::storage) << error.what();
    }
    world.barrier();
    full.reset();
    world.barrier();
    if (world.rank() == 0) {
      EXPECT_EQ(newest(directory), 10);
      EXPECT_EQ(names_in(directory / "checkpoints"), std::set<std::string>{"step-10"});
    }
    world.barrier();
    memory.fill(30);
    writer.start(info_of(30), memory.slabs);
    writer.finish();
  });
  EXPECT_EQ(newest(directory), 30);
}

TEST_F(CheckpointFault, FullDiskLeavesTheOneBefore) {
  save(directory_, {10});
  expect_failure(directory_, info_of(20), 1000);
}

// Here the files of the ranks fit, the manifest does not.
TEST_F(CheckpointFault, FullDiskAtTheManifestLeavesTheOneBefore) {
  save(directory_, {10});
  CheckpointInfo info = info_of(20);
  info.profile_text = std::string(200'000, 'p');
  expect_failure(directory_, info, 100'000);
}

// The bytes before the limit are no whole blocks, as those that pass the system's cache by must be.
TEST_F(CheckpointFault, FullDiskWithinALargeFileLeavesTheOneBefore) {
  save(directory_, {10});
  std::vector<float> values(4 << 20, 1.0f);
  comm::run_local(1, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    const FileLimit full(10'000'001);
    writer.start(info_of(20), {table_of(values)});
    try {
      writer.finish();
      ADD_FAILURE() << "nothing failed";
    } catch (const comm::AgreedError& error) {
      EXPECT_TRUE(std::string(error.what()).ends_with("File too large")) << error.what();
    }
  });
  EXPECT_EQ(newest(directory_), 10);
  EXPECT_EQ(names_in(checkpoints()), std::set<std::string>{"step-10"});
}

TEST_F(CheckpointFault, FailureIsToldByTheNextStart) {
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world);
    Memory memory(world.rank() * 20, 20);
    world.barrier();
    if (world.rank() == 0) {
      fs::remove_all(checkpoints());
      put(checkpoints(), "in the way");
    }
    world.barrier();
    writer.start(info_of(10), memory.slabs);
    EXPECT_THROW(writer.start(info_of(20), memory.slabs), comm::AgreedError);
    EXPECT_NO_THROW(writer.finish());
  });
}

TEST_F(CheckpointFault, DirectoryThatCannotBeMadeIsAStorageErrorOnAllRanks) {
  put(directory_ / "a-file", "in the way");
  comm::run_local(num_ranks, [&](comm::Communicator& world) {
    try {
      const CheckpointWriter writer(directory_ / "a-file", world);
      ADD_FAILURE();
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.failure(), Failure::storage);
    }
  });
}

/// Runs `body` in a process of its own. @return its exit code, or 128 + signal
template <typename Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Point {
  const char* name;
  int expected;  ///< step of the newest checkpoint afterwards
};

class KilledAt : public CheckpointFault, public ::testing::WithParamInterface<Point> {};

TEST_P(KilledAt, LeavesAWholeCheckpoint) {
  save(directory_, {10});
  const int code = in_child([&] {
    ::setenv("BRUME_FAIL_AT", GetParam().name, 1);
    save(directory_, {20});
  });
  EXPECT_EQ(code, 137);
  EXPECT_EQ(newest(directory_), GetParam().expected);
  save(directory_, {30});
  EXPECT_EQ(newest(directory_), 30);
  const std::string kept = "step-" + std::to_string(GetParam().expected);
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{kept, "step-30"}));
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, KilledAt,
                         ::testing::Values(Point{"checkpoint_after_open", 10},
                                           Point{"checkpoint_after_open:1", 10},
                                           Point{"after_write:0", 10}, Point{"after_write:1", 10},
                                           Point{"after_fsync:0", 10}, Point{"after_fsync:1", 10},
                                           Point{"after_manifest", 10}, Point{"before_rename", 10},
                                           Point{"after_rename", 20}));

// The writer is killed at any time while it writes one checkpoint after the other.
TEST_F(CheckpointFault, KilledAtRandomTimesLeavesAWholeCheckpoint) {
  save(directory_, {1});
  std::mt19937 random(29);
  std::int64_t last = 1;
  unsigned longest_us = 60'000;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::vector<std::int64_t> steps;
      for (std::int64_t next = 1; next <= 500; ++next) steps.push_back(last + next);
      save(directory_, steps);
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(1000 + random() % longest_us));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::int64_t found = newest(directory_);
    EXPECT_GE(found, last);
    last = found;
    if (last == 1) longest_us += longest_us / 3;  // cores are shared: the first one takes longer
  }
  EXPECT_GT(last, 1);
}

}  // namespace
}  // namespace brume::io
