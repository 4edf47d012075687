#include "comm/agree.hpp"

#include "agree_cases.hpp"
#include "mpi_main.hpp"

namespace brume::comm {

void run(int size, const std::function<void(Communicator&)>& body) { run_on_first(size, body); }

namespace {

/// What this rank threw, as "failure: message"; empty when it went on.
template <typename Stage>
std::string said(const Stage& stage) {
  try {
    together(world(), stage);
  } catch (const AgreedError& error) {
    return fmt::format("{}: {}", static_cast<int>(error.failure()), error.what());
  }
  return "";
}

TEST(Agree, EveryRankMayBeTheOneThatFails) {
  for (int failing = 0; failing < world().size(); ++failing) {
    const std::string mine = said([&] {
      if (world().rank() == failing) throw Error(Failure::resource, "device {} is gone", failing);
    });
    EXPECT_EQ(mine, fmt::format("4: rank {0}: device {0} is gone", failing));
  }
}

TEST(Agree, TheLowestFailingRankIsHeardOnAllRanks) {
  const std::string mine = said([] {
    if (world().rank() >= 2) throw Error(Failure::storage, "disk of rank {}", world().rank());
  });
  EXPECT_EQ(mine, "6: rank 2: disk of rank 2");
  for (const std::string& text : world().gather(mine)) EXPECT_EQ(text, mine);
}

TEST(Agree, AnEmptyMessageIsAnErrorToo) {
  EXPECT_EQ(said([] {
              if (world().rank() == 3) throw Error(Failure::stopped, std::string());
            }),
            "75: rank 3: ");
}

TEST(Agree, StageAfterStageGoesOnWhereNobodyFails) {
  for (int stage = 0; stage < 20; ++stage) {
    const bool fails = stage % 5 == 4;
    const std::string mine = said([&] {
      if (fails && world().rank() == stage % 4) throw Error(Failure::input, "stage {}", stage);
    });
    EXPECT_EQ(mine.empty(), !fails);
  }
}

}  // namespace
}  // namespace brume::comm
