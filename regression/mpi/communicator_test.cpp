#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "comm/computing.hpp"
#include "comm/mpi_call.hpp"
#include "communicator_cases.hpp"
#include "device/memory.hpp"
#include "mpi_main.hpp"

namespace brume::comm {

void run(int size, const std::function<void(Communicator&)>& body) { run_on_first(size, body); }

namespace {

TEST(Session, KnowsTheNode) {
  const Session& session = mpi_job().session;
  EXPECT_EQ(world().size(), 4);
  EXPECT_EQ(session.ranks_per_node(), 4);
  EXPECT_EQ(session.node_rank(), world().rank());
  EXPECT_EQ(session.num_nodes(), 1);
}

// mpirun --map-by node and srun -m cyclic deal ranks out to one node after the other.
TEST(Session, RanksFillNodesInOrder) {
  EXPECT_EQ(places_by_node({0, 0, 2, 2}), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(places_by_node({0, 1, 0, 1}), (std::vector{0, 2, 1, 3}));
  EXPECT_EQ(places_by_node({7, 3, 5, 3, 7, 5}), (std::vector{0, 2, 4, 3, 1, 5}));
  EXPECT_EQ(places_by_node({0, 1, 0}), (std::vector{0, 2, 1})) << "unequal nodes";
}

// All ranks here may run on the same cores, or each has its own.
TEST(Session, RanksOfANodeDivideItsCores) {
  const device::Processor processor = device::this_processor();
  const auto all = world().gather(processor.allowed);
  const auto sharing = int(std::ranges::count(all, processor.allowed));
  EXPECT_LE(device::threads_per_rank(1), std::max(1, processor.cores / sharing));
}

TEST(Session, VersionNamesTheLibraryOnly) {
  const std::string version = Session::library_version();
  EXPECT_NE(version.find("MPI"), std::string::npos);
  EXPECT_EQ(version.find(','), std::string::npos);
}

TEST(Session, IsOnePerProcess) { EXPECT_THROW(Session(), Error); }

TEST(Session, WorldsAreApart) {
  const auto other = mpi_job().session.world();
  std::vector<float> mine(8, 1.0f);
  std::vector<float> theirs(8, 2.0f);
  other->all_reduce(theirs);
  world().all_reduce(mine);
  EXPECT_EQ(mine[7], 4.0f);
  EXPECT_EQ(theirs[7], 8.0f);
}

// The core is for the threads that compute, until somebody needs the message. A pause never ends
// early, so the bound holds on a loaded machine too: some 15 pauses until they are 500 us long.
TEST(MpiCommunicator, LooksLessOftenForMessagesBesideComputation) {
  std::vector<float> values(100'000);
  const Computing now;
  for (int i = 0; i < 5; ++i) {
    world().barrier();
    if (world().rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world().send(values, 1);
    }
    if (world().rank() == 1) {
      const auto begin = std::chrono::steady_clock::now();
      const std::uint64_t before = waits().looks;
      world().recv(values, 0);
      const std::chrono::duration<double, std::micro> taken =
          std::chrono::steady_clock::now() - begin;
      EXPECT_LE(double(waits().looks - before), 20 + taken.count() / 500);
    }
  }
}

TEST(MpiCommunicator, AnImpossiblePeerIsANetworkErrorNotTheEnd) {
  std::vector<float> values(4);
  try {
    world().send(values, 99);
    ADD_FAILURE() << "rank 99 of 4 took a message";
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::network);
    EXPECT_NE(std::string(error.what()).find("MPI_ERR_RANK"), std::string::npos) << error.what();
  }
  world().barrier();
}

TEST(MpiCommunicator, AMessageLongerThanExpectedIsAnError) {
  std::vector<float> values(8, 1.0f);
  if (world().rank() == 0) world().send(values, 1);
  if (world().rank() == 1) {
    EXPECT_THROW(world().recv(std::span(values).first(5), 0), Error);
  }
  world().barrier();
}

}  // namespace
}  // namespace brume::comm
