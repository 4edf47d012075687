#include "comm/heartbeat.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../../src/comm/mpi_communicator.hpp"
#include "mpi_main.hpp"

namespace brume::comm {
namespace {

constexpr double short_s = 1.2;  // two signs of life and a bit

void sleep_s(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

// Signs of life are a thread's matter: what the rank itself does meanwhile counts for nothing.
TEST(Heartbeat, ARankThatOnlySleepsIsAlive) {
  std::atomic<int> told = 0;
  {
    const Heartbeat heartbeat(world().rank(), short_s, [&](const SilentRank&) { ++told; });
    sleep_s(world().rank() == 1 ? 2.0 * short_s : 0.1);
  }
  EXPECT_EQ(told, 0);
}

TEST(Heartbeat, RanksMayComeToTheirEndAtAnyTime) {
  std::atomic<int> told = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const Heartbeat heartbeat(world().rank(), 60.0, [&](const SilentRank&) { ++told; });
    sleep_s(0.02 * ((world().rank() + turn) % 4));
  }
  EXPECT_EQ(told, 0);
}

/// What ranks send each other: a kind, of which 1 is the goodbye, how long nothing moved, a text.
struct Sign {
  int kind = 0;
  float still_s = 0.0F;
  std::array<char, 248> doing{};
};

/// Joins the ring as a heartbeat does, says once what it does, and then nothing.
class Dumb {
 public:
  Dumb() : ring_(make_ring()) {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{'d', 'u', 'm', 'b'}, other{};
    MPI_Sendrecv(name.data(), int(name.size()), MPI_CHAR, 3, 0, other.data(), int(other.size()),
                 MPI_CHAR, 1, 0, ring_.get(), MPI_STATUS_IGNORE);
    Sign sign;
    std::string("a dream").copy(sign.doing.data(), sign.doing.size());
    MPI_Send(&sign, sizeof sign, MPI_BYTE, 3, 0, ring_.get());
  }
  /// Takes what the rank before has sent, up to its goodbye.
  ~Dumb() {
    for (Sign sign; sign.kind == 0;)
      MPI_Recv(&sign, sizeof sign, MPI_BYTE, 1, 0, ring_.get(), MPI_STATUS_IGNORE);
  }

 private:
  static MpiGroup make_ring() {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, 2, &copy);
    return MpiGroup(copy);
  }
  MpiGroup ring_;
};

// Rank 3 hears rank 2; the others are told to wait longer.
TEST(Heartbeat, TheNextRankNamesASilentOne) {
  if (world().rank() == 2) {
    const Dumb dumb;
    world().barrier();
    return;
  }
  std::promise<SilentRank> silent;
  std::future<SilentRank> named = silent.get_future();
  {
    Heartbeat heartbeat(world().rank(), world().rank() == 3 ? short_s : 60.0,
                        [&](const SilentRank& rank) { silent.set_value(rank); });
    // Ranks 1 and 3 wait for rank 2, rank 0 for rank 3.
    heartbeat.set_doing([] {
      return Doing{"rank " + std::to_string(world().rank()) + "'s work",
                   {world().rank() == 0 ? 3 : 2}};
    });
    if (world().rank() == 3) named.wait();
    world().barrier();
    heartbeat.set_limit(short_s);
  }
  // Rank 3 has ended with its report, as a job does, and so says no goodbye to rank 0.
  const bool has_named = named.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  EXPECT_EQ(has_named, world().rank() != 1);
  if (!has_named) return;
  const SilentRank rank = named.get();
  EXPECT_EQ(rank.rank, world().rank() == 3 ? 2 : 3);
  EXPECT_EQ(rank.host == "dumb", world().rank() == 3) << rank.host;
  // Rank 3 has sent signs since it was told what to say.
  EXPECT_EQ(rank.doing, world().rank() == 3 ? "a dream" : "rank 3's work");
  std::vector<int> waiting;
  for (const WaitingRank& one : rank.waiting) {
    waiting.push_back(one.rank);
    EXPECT_EQ(one.doing, "rank " + std::to_string(one.rank) + "'s work");
  }
  EXPECT_EQ(waiting, world().rank() == 3 ? std::vector({1, 3}) : std::vector({0}));
  EXPECT_GE(rank.silence_s, short_s);
  EXPECT_LE(rank.silence_s, short_s + 2.0);
}

/// Waits for the first call of a heartbeat about a job that stands still.
class Standing {
 public:
  std::function<void(const Standstill&)> told() {
    return [this](const Standstill& still) { still_.set_value(still); };
  }
  Standstill wait() { return still_.get_future().get(); }

 private:
  std::promise<Standstill> still_;
};

// The others wait for it in the barrier, which they may for longer.
TEST(Heartbeat, ARankThatNeitherComputesNorWaitsSaysSo) {
  Standing standing;
  Heartbeat heartbeat(
      world().rank(), 60.0, [](const SilentRank&) {}, standing.told());
  heartbeat.set_doing([] { return Doing{"a nap", {}}; });
  heartbeat.set_still_limit(short_s);
  if (world().rank() == 1) {
    const Standstill still = standing.wait();
    EXPECT_EQ(still.rank, 1);
    EXPECT_EQ(still.doing, "a nap");
    EXPECT_FALSE(still.waits);
    EXPECT_GE(still.still_s, short_s);
    EXPECT_LE(still.still_s, short_s + 2.0);
  }
  world().barrier();
  heartbeat.set_limit(short_s);  // rank 1 says no goodbye
}

TEST(Heartbeat, ARankThatComputesIsNotTakenForStill) {
  Standing standing;  // whose second call would throw
  Heartbeat heartbeat(
      world().rank(), 60.0, [](const SilentRank&) {}, standing.told());
  heartbeat.set_still_limit(short_s);
  if (world().rank() == 1) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  world().barrier();
}

TEST(Heartbeat, RanksThatAllWaitForEachOtherSaySo) {
  Standing standing;
  const int next = (world().rank() + 1) % world().size();
  const int previous = (world().rank() + world().size() - 1) % world().size();
  Heartbeat heartbeat(
      world().rank(), 60.0, [](const SilentRank&) {}, standing.told());
  heartbeat.set_still_limit(short_s);
  std::array<float, 1> number{};
  std::thread waiting([&] { world().recv(std::span(number), previous); });
  const Standstill still = standing.wait();
  EXPECT_TRUE(still.waits);
  EXPECT_GE(still.still_s, short_s);
  EXPECT_LE(still.still_s, short_s + 8.0);
  world().barrier();  // whoever hears of another one before it has said so gets on
  const std::array<float, 1> one{1.0F};
  world().send(std::span<const float>(one), next);
  waiting.join();
  world().barrier();
}

}  // namespace
}  // namespace brume::comm
