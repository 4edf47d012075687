#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "agree_cases.hpp"
#include "communicator_cases.hpp"
#include "device/channels.hpp"

namespace brume::comm {

void run(int size, const std::function<void(Communicator&)>& body) { run_local(size, body); }

namespace {

/// What run_local rethrows, as "failure: message"; empty when nothing failed.
std::string failure_of(int size, const std::function<void(Communicator&)>& body) {
  try {
    run_local(size, body);
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.failure()), error.what());
  }
  return "";
}

// The failing rank never calls; the others wait in each of the calls that can wait.
TEST(LocalCommunicator, AFailingRankReleasesTheOthersFromEveryCall) {
  const std::vector<std::function<void(Communicator&)>> calls{
      [](Communicator& comm) { comm.barrier(); },
      [](Communicator& comm) {
        std::vector<float> values(12);
        comm.all_reduce(values);
      },
      [](Communicator& comm) {
        std::vector<float> values(12);
        comm.reduce_scatter(values);
      },
      [](Communicator& comm) {
        std::vector<float> values(12);
        comm.all_gather(values);
      },
      [](Communicator& comm) {
        const std::vector<std::byte> out(12);
        std::vector<std::byte> in(12);
        const std::vector<std::size_t> bytes(3, 4);
        comm.all_to_all(out, bytes, in, bytes);
      },
      [](Communicator& comm) { broadcast(comm, "text", 0); },
      [](Communicator& comm) { comm.gather("text"); },
      [](Communicator& comm) { comm.split(0, 0); },
      [](Communicator& comm) {
        std::vector<float> values(12);
        comm.send(values, 2);
      },
      [](Communicator& comm) {
        std::vector<float> values(12);
        comm.recv(values, 2);
      }};
  for (std::size_t c = 0; c < calls.size(); ++c) {
    std::atomic<int> released = 0;
    const std::string failure = failure_of(3, [&](Communicator& comm) {
      if (comm.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(c % 3));
        throw Error(Failure::storage, "no space left");
      }
      try {
        calls[c](comm);
      } catch (const Error& error) {
        EXPECT_EQ(error.failure(), Failure::network);
        EXPECT_STREQ(error.what(), "rank 2 failed: no space left");
        ++released;
        throw;
      }
    });
    EXPECT_EQ(failure, "6: no space left") << "call " << c;
    EXPECT_EQ(released, 2) << "call " << c;
  }
}

TEST(LocalCommunicator, AFailureReachesGroupsOfASplit) {
  std::atomic<int> released = 0;
  const std::string failure = failure_of(4, [&](Communicator& comm) {
    const auto pair = comm.split(comm.rank() / 2, comm.rank());
    if (comm.rank() == 0) throw Error(Failure::input, "bad data");
    if (comm.rank() == 2) throw Error(Failure::network, "as it comes");
    try {
      pair->barrier();
    } catch (const Error&) {
      ++released;
      throw;
    }
  });
  EXPECT_TRUE(failure == "2: bad data" || failure == "5: as it comes") << failure;
  EXPECT_EQ(released, 2);
}

TEST(LocalCommunicator, AnAbortReleasesAllAndKeepsItsCode) {
  EXPECT_EQ(failure_of(3,
                       [](Communicator& comm) {
                         if (comm.rank() == 1) {
                           std::thread([&] { comm.abort(70); }).join();
                           return;
                         }
                         comm.barrier();
                       }),
            "70: rank 1 aborted the job with exit code 70");
}

TEST(LocalCommunicator, OtherExceptionsComeThrough) {
  EXPECT_THROW(run_local(2,
                         [](Communicator& comm) {
                           if (comm.rank() == 0) throw std::out_of_range("index");
                           comm.barrier();
                         }),
               std::out_of_range);
}

// Messages and failures at random times: nothing hangs, nothing is read after its owner left.
TEST(LocalCommunicator, FailuresAtAnyMomentLeaveNoRankBehind) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const std::string failure = failure_of(4, [&](Communicator& comm) {
      std::minstd_rand random(seed * 4 + static_cast<unsigned>(comm.rank()) + 1);
      const int last = comm.rank() == static_cast<int>(seed % 4) ? static_cast<int>(seed % 7) : 100;
      for (int step = 0; step < last; ++step) {
        if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
        std::vector<float> values = terms(comm.rank(), 400);
        comm.all_reduce(values);
        const int peer = comm.rank() ^ 1;
        if (comm.rank() < peer) comm.send(values, peer);
        if (comm.rank() > peer) comm.recv(values, peer);
        comm.all_gather(values);
        expect_exchanged<float>(comm, static_cast<unsigned>(step));
      }
      throw Error(Failure::storage, "step {}", last);
    });
    EXPECT_EQ(failure, fmt::format("6: step {}", seed % 7));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Ends with 4 when ranks whose threads cannot all be had make a run fail, and nothing else.
void run_with_little_address_space() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto bytes = rlim_t(pages * ::sysconf(_SC_PAGESIZE) + (100 << 20));  // a dozen stacks
  const rlimit little{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &little);
  try {
    run_local(300, [](Communicator& world) { world.barrier(); });
  } catch (const std::exception& error) {
    std::_Exit(int(error_of(error).failure()));
  }
  std::_Exit(0);
}

TEST(LocalCommunicator, ThreadsThatCannotBeHadEndTheRun) {
  EXPECT_EXIT(run_with_little_address_space(), testing::ExitedWithCode(4), "");
}
#endif

TEST(LocalCommunicator, DifferentCallsAtOnceBreakAPromise) {
  const std::string failure = failure_of(2, [](Communicator& comm) {
    std::vector<float> values(4);
    if (comm.rank() == 0) comm.barrier();
    if (comm.rank() == 1) comm.all_reduce(values);
  });
  EXPECT_EQ(failure,
            "70: rank 0 of the group is in barrier, rank 1 in all_reduce: collectives need one "
            "order");
}

TEST(LocalCommunicator, DifferentCountsBreakAPromise) {
  EXPECT_EQ(failure_of(2,
                       [](Communicator& comm) {
                         std::vector<float> values(4 + static_cast<std::size_t>(comm.rank()));
                         comm.all_reduce(values);
                       }),
            "70: rank 0 of the group gives 4 values, rank 1 gives 5");
}

// As the engine runs: channels per rank, a failure on one of them, its peers waiting in transfers.
TEST(LocalCommunicator, AFailureInAChannelEndsTheRunOnAllRanks) {
  const std::string failure = failure_of(4, [](Communicator& comm) {
    const auto transport = comm.split(0, comm.rank());
    device::Channels channels({"compute", "collective"},
                              [&](std::exception_ptr) { comm.abort(5); });
    std::vector<float> values(100, 1.0f);
    for (int step = 0; step < 20; ++step) {
      channels.enqueue(0, [&comm, step] {
        if (comm.rank() == 2 && step == 11) throw Error(Failure::resource, "step 11");
      });
      channels.wait(1, channels.record(0));
      channels.enqueue(1, [&] { transport->all_reduce(values); });
      channels.wait(0, channels.record(1));
    }
    channels.synchronize();
  });
  EXPECT_EQ(failure, "4: step 11");
}

}  // namespace
}  // namespace brume::comm
