#include "io/run_lock.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "checkpoint_samples.hpp"
#include "refusal.hpp"

namespace brume::io {
namespace {

using RunLocks = CheckpointFault;  // for its directory

TEST_F(RunLocks, OneJobHasADirectoryAtATime) {
  const fs::path run = directory_ / "runs" / "one";
  auto first = std::make_unique<RunLock>(run);
  const std::string said =
      test::refusal([&] { RunLock second(run, {.others_s = 0.0}); }, Failure::input);
  EXPECT_NE(said.find("belongs to another job (host "), std::string::npos) << said;
  first.reset();
  EXPECT_FALSE(fs::exists(run / "lock"));
  RunLock second(run, {.others_s = 0.0});
}

TEST_F(RunLocks, AnEarlierTurnOfTheSameJobIsWaitedFor) {
  ::setenv("SLURM_JOB_ID", "4711", 1);
  auto earlier = std::make_unique<RunLock>(directory_);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    earlier.reset();
  });
  const RunLock later(directory_, {.others_s = 0.0, .own_job_s = 20.0});
  ends.join();
  ::setenv("SLURM_JOB_ID", "4712", 1);
  test::refusal([&] { RunLock another(directory_, {.others_s = 0.0, .own_job_s = 20.0}); },
                Failure::input);
  ::unsetenv("SLURM_JOB_ID");
}

// A handler of signals ends the process without the lock's own end.
TEST_F(RunLocks, TheHeldOneMayBeRemovedAtOnce) {
  RunLock::remove_held();
  {
    RunLock lock(directory_);
    lock.begin(0);
    RunLock::remove_held();
    EXPECT_FALSE(fs::exists(directory_ / "lock"));
  }
  put(directory_ / "lock", "of the next job");
  RunLock::remove_held();
  EXPECT_TRUE(fs::exists(directory_ / "lock"));
}

TEST_F(RunLocks, JobsKilledInTheSamePlaceAreCounted) {
  const auto killed = [&](std::int64_t step) {
    // A process that is killed leaves the file, and the system takes the lock off it.
    std::string kept;
    {
      RunLock lock(directory_);
      lock.begin(step);
      kept = content(directory_ / "lock");
    }
    put(directory_ / "lock", kept);
  };
  for (int i = 0; i < RunLock::most_starts; ++i) killed(20);
  for (int i = 0; i < 2; ++i) {
    RunLock lock(directory_);
    const std::string said = test::refusal([&] { lock.begin(20); }, Failure::resource);
    EXPECT_NE(said.find("began after step 20 and were killed"), std::string::npos) << said;
  }
  for (int i = 0; i < RunLock::most_starts; ++i) killed(40);  // a checkpoint later
  fs::remove(directory_ / "lock");
  killed(40);
}

TEST_F(RunLocks, WhatKilledJobsLeftGoesEvenWhereAnotherIsRefused) {
  const std::string kept = fmt::format("host a, process 1\n0 {}\n", RunLock::most_starts);
  const std::vector<fs::path> leftovers{"brume-a1b2c3d4e5f6.tmp", "steps/brume-000000000000.tmp",
                                        "checkpoints/step-5.tmp/rank-0.h5"};
  for (const bool refused : {false, true}) {
    for (const fs::path& name : leftovers) {
      fs::create_directories((directory_ / name).parent_path());
      put(directory_ / name, "of a killed job");
    }
    put(directory_ / "notes.tmp", "of the user");
    put(directory_ / "lock", refused ? kept : "");
    RunLock lock(directory_);
    if (refused)
      test::refusal([&] { lock.begin(0); }, Failure::resource);
    else
      lock.begin(0);
    for (const fs::path& name : leftovers)
      EXPECT_FALSE(fs::exists(directory_ / name)) << name << ", refused: " << refused;
    EXPECT_TRUE(fs::is_empty(directory_ / "checkpoints"));
    EXPECT_TRUE(fs::exists(directory_ / "notes.tmp"));
  }
}

TEST_F(RunLocks, WhatIsNotOursInTheFileIsNoCount) {
  for (const char* text : {"", "x", "\n\n\n", "host a\n-3 99999999999999999999\n"}) {
    put(directory_ / "lock", text);
    RunLock lock(directory_);
    lock.begin(-3);
  }
}

TEST_F(RunLocks, ALinkIsNotFollowed) {
  fs::create_symlink(directory_ / "elsewhere", directory_ / "lock");
  test::refusal([&] { RunLock lock(directory_); }, Failure::storage);
  EXPECT_FALSE(fs::exists(directory_ / "elsewhere"));
}

}  // namespace
}  // namespace brume::io
