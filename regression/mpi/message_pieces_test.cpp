// Every promise of a communicator again, where one MPI call carries 500 values: as on blocks of
// more values than MPI can count, which would take 8 GiB a rank.

#include "../../src/comm/mpi_communicator.hpp"
#include "communicator_cases.hpp"
#include "mpi_main.hpp"

namespace brume::comm {

void run(int size, const std::function<void(Communicator&)>& body) {
  MPI_Comm copy = MPI_COMM_NULL;
  ASSERT_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &copy), MPI_SUCCESS);
  MpiCommunicator all(MpiGroup(copy), 500);
  const auto first = all.split(all.rank() < size ? 0 : -1, all.rank());
  if (first) body(*first);
  all.barrier();
}

namespace {

// The longest that one call carries, one value more, and several calls with a rest.
TEST(MessagePieces, MessagesAndTextsArriveWhole) {
  run(4, [](Communicator& ranks) {
    for (const std::size_t count : {500u, 501u, 1000u, 1234u}) {
      std::vector<float> values(count, float(ranks.rank()));
      const int next = (ranks.rank() + 1) % 4, before = (ranks.rank() + 3) % 4;
      for (int turn = 0; turn < 2; ++turn)
        if ((ranks.rank() + turn) % 2 == 0)
          ranks.send(std::vector<float>(count, float(ranks.rank())), next);
        else
          ranks.recv(values, before);
      EXPECT_EQ(differences(values, [&](std::size_t) { return float(before); }), 0u) << count;
      const std::string text(count, 'x');
      EXPECT_EQ(broadcast(ranks, ranks.rank() == 2 ? text : "", 2), text);
    }
  });
}

}  // namespace
}  // namespace brume::comm
