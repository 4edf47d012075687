/// @file What agreement promises on every kind of communicator; `run` as in communicator_cases.hpp.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/agree.hpp"

namespace brume::comm {

/// Runs `body` on `size` ranks.
void run(int size, const std::function<void(Communicator&)>& body);

class AgreeOnRanks : public testing::TestWithParam<int> {};

TEST_P(AgreeOnRanks, RanksThatAgreeOnSuccessGoOn) {
  run(GetParam(), [](Communicator& comm) {
    EXPECT_NO_THROW(agree(comm, std::nullopt));
    int ran = 0;
    together(comm, [&] { ++ran; });
    EXPECT_EQ(ran, 1);
  });
}

// Ranks 1 and 2 fail; rank 1 speaks, in full length, on all ranks. The group lives on.
TEST_P(AgreeOnRanks, TheLowestFailingRankSpeaksForAll) {
  run(GetParam(), [](Communicator& comm) {
    if (comm.size() < 2) return;
    const std::string long_text(5000, 'x');
    try {
      together(comm, [&] {
        if (comm.rank() == 1) throw Error(Failure::storage, "no space left {}", long_text);
        if (comm.rank() == 2) throw Error(Failure::input, "not heard");
      });
      ADD_FAILURE() << "rank " << comm.rank() << " went on alone";
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.failure(), Failure::storage);
      EXPECT_EQ(error.what(), "rank 1: no space left " + long_text);
    }
    comm.barrier();
  });
}

TEST_P(AgreeOnRanks, OtherExceptionsAreAgreedOnByKind) {
  run(GetParam(), [](Communicator& comm) {
    const int last = comm.size() - 1;
    const auto failure_of = [&](auto&& stage) {
      try {
        together(comm, stage);
      } catch (const AgreedError& error) {
        return static_cast<int>(error.failure());
      }
      return 0;
    };
    const int out_of_memory = failure_of([&] {
      if (comm.rank() == last) throw std::bad_alloc();
    });
    const int unknown = failure_of([&] {
      if (comm.rank() == last) throw std::logic_error("oops");
    });
    EXPECT_EQ(out_of_memory, static_cast<int>(Failure::resource));
    EXPECT_EQ(unknown, static_cast<int>(Failure::bug));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AgreeOnRanks, testing::Values(1, 2, 3, 4));

}  // namespace brume::comm
