/// @file The main of test programs that run under mpiexec: all ranks run all tests and end alike.
///
/// Bodies must make the same collective calls on all ranks whatever fails, so they use EXPECT.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "comm/session.hpp"

namespace brume {

/// What tests see of the MPI job.
struct MpiJob {
  comm::Session session;
  std::unique_ptr<comm::Communicator> world = session.world();
};

/// The job of this process. The first call starts MPI.
inline MpiJob& mpi_job() {
  static MpiJob job;
  return job;
}

/// All ranks of the job.
inline comm::Communicator& world() { return *mpi_job().world; }

/// Runs `body` on the first `size` ranks of the job; the others look on.
inline void run_on_first(int size, const std::function<void(comm::Communicator&)>& body) {
  const auto group = world().split(world().rank() < size ? 0 : -1, world().rank());
  if (group) body(*group);
  world().barrier();
}

/// Prints what failed, with its rank; rank 0 alone prints the course of the tests.
class RankPrinter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("rank %d: %s:%d: %s\n", world().rank(),
                result.file_name() ? result.file_name() : "?", result.line_number(),
                result.message());
    std::fflush(stdout);
  }
};

inline int run_mpi_tests(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (world().rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankPrinter);
  }
  double failed = RUN_ALL_TESTS() != 0 ? 1 : 0;
  world().all_reduce(std::span(&failed, 1), comm::Reduction::max);
  return static_cast<int>(failed);
}

}  // namespace brume

int main(int argc, char** argv) {
  try {
    return brume::run_mpi_tests(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
