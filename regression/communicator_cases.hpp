/// @file What every communicator promises, as tests by value on 1 to 4 ranks.
///
/// The including program says what `run` is: ranks that are threads, or MPI processes. Bodies use
/// EXPECT only: a rank that returned early would leave the others waiting.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace brume::comm {

/// Runs `body` on `size` ranks.
void run(int size, const std::function<void(Communicator&)>& body);

class Communicators : public testing::TestWithParam<int> {};

// Short and long, around the sizes where an MPI library changes its algorithm.
inline constexpr std::size_t lengths[] = {1, 7, 1000, 70'001};

// sum_r (r + 1) (i % 13 + 1) = n (n + 1) / 2 (i % 13 + 1), exact in fp32
inline float term(int rank, std::size_t i) {
  return static_cast<float>(rank + 1) * static_cast<float>(i % 13 + 1);
}
inline float sum_of_terms(int size, std::size_t i) {
  return static_cast<float>(size * (size + 1) / 2) * static_cast<float>(i % 13 + 1);
}
inline std::vector<float> terms(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = term(rank, i);
  return values;
}

/// Values of all magnitudes: their fp32 sum shows any change of order.
inline std::vector<float> rough_values(int rank, std::size_t count) {
  std::minstd_rand random(static_cast<unsigned>(rank + 1));
  std::vector<float> values(count);
  for (float& value : values) {
    const float mantissa = static_cast<float>(random() % 65'536) - 32'768.0f;
    value = std::ldexp(mantissa, static_cast<int>(random() % 20));
  }
  return values;
}

/// How many of `values` differ from `expected(i)`.
template <typename T, typename Expected>
std::size_t differences(const std::vector<T>& values, const Expected& expected) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) count += values[i] != expected(i) ? 1 : 0;
  return count;
}

TEST_P(Communicators, RanksAreNumbered) {
  run(GetParam(), [&](Communicator& comm) {
    EXPECT_EQ(comm.size(), GetParam());
    const std::vector<std::string> names = comm.gather(std::to_string(comm.rank()));
    for (int r = 0; r < comm.size(); ++r) {
      EXPECT_EQ(names.at(static_cast<std::size_t>(r)), std::to_string(r));
    }
  });
}

TEST_P(Communicators, AllReduceSums) {
  run(GetParam(), [](Communicator& comm) {
    for (const std::size_t count : lengths) {
      std::vector<float> values = terms(comm.rank(), count);
      comm.all_reduce(values);
      EXPECT_EQ(differences(values, [&](auto i) { return sum_of_terms(comm.size(), i); }), 0u);
    }
  });
}

TEST_P(Communicators, AllReduceOfDoublesSumsAndFindsTheLimits) {
  run(GetParam(), [](Communicator& comm) {
    const double mine = comm.rank();
    const int n = comm.size();
    std::vector<double> sums{mine, 1.0, 0.5 * mine};
    std::vector<double> least{mine, -mine};
    std::vector<double> most{mine, -mine};
    comm.all_reduce(sums, Reduction::sum);
    comm.all_reduce(least, Reduction::min);
    comm.all_reduce(most, Reduction::max);
    EXPECT_EQ(sums, (std::vector<double>{n * (n - 1) / 2.0, 1.0 * n, n * (n - 1) / 4.0}));
    EXPECT_EQ(least, (std::vector<double>{0.0, 1.0 - n}));
    EXPECT_EQ(most, (std::vector<double>{n - 1.0, 0.0}));
  });
}

TEST_P(Communicators, ReduceScatterLeavesTheOwnPartInItsPlace) {
  run(GetParam(), [](Communicator& comm) {
    for (const std::size_t part : lengths) {
      const auto size = static_cast<std::size_t>(comm.size());
      std::vector<float> values = terms(comm.rank(), part * size);
      comm.reduce_scatter(values);
      const std::size_t begin = part * static_cast<std::size_t>(comm.rank());
      const std::vector<float> mine(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                    values.begin() + static_cast<std::ptrdiff_t>(begin + part));
      EXPECT_EQ(differences(mine, [&](auto i) { return sum_of_terms(comm.size(), begin + i); }),
                0u);
    }
  });
}

TEST_P(Communicators, AllGatherFillsAllParts) {
  run(GetParam(), [](Communicator& comm) {
    for (const std::size_t part : lengths) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      std::vector<float> values(part * static_cast<std::size_t>(comm.size()), -1.0f);
      for (std::size_t i = 0; i < part; ++i) values[rank * part + i] = term(comm.rank(), i);
      comm.all_gather(values);
      const auto expected = [&](auto i) { return term(static_cast<int>(i / part), i % part); };
      EXPECT_EQ(differences(values, expected), 0u);
    }
  });
}

TEST_P(Communicators, PartsMustBeEqual) {
  run(GetParam(), [](Communicator& comm) {
    if (comm.size() == 1) return;
    std::vector<float> values(static_cast<std::size_t>(comm.size()) + 1);
    EXPECT_THROW(comm.reduce_scatter(values), Error);
    EXPECT_THROW(comm.all_gather(values), Error);
  });
}

/// Values from one rank to another in an all-to-all: between none and 1,500, the same on all ranks.
inline std::size_t values_between(unsigned trial, int from, int to) {
  std::minstd_rand random(1 + 100 * trial + 10 * static_cast<unsigned>(from) +
                          static_cast<unsigned>(to));
  random.discard(3);
  return random() % 3 == 0 ? 0 : random() % 1500;
}

/// Exchanges parts of random lengths; each value tells its sender, receiver and place.
template <typename T>
void expect_exchanged(Communicator& comm, unsigned trial) {
  const auto value = [](int from, int to, std::size_t i) {
    return T(static_cast<float>(from * 4 + to) + 16.0f * static_cast<float>(i % 13));
  };
  std::vector<T> out, in, expected;
  std::vector<std::size_t> out_bytes, in_bytes;
  for (int r = 0; r < comm.size(); ++r) {
    const std::size_t sent = values_between(trial, comm.rank(), r),
                      received = values_between(trial, r, comm.rank());
    for (std::size_t i = 0; i < sent; ++i) out.push_back(value(comm.rank(), r, i));
    for (std::size_t i = 0; i < received; ++i) expected.push_back(value(r, comm.rank(), i));
    out_bytes.push_back(sent * sizeof(T));
    in_bytes.push_back(received * sizeof(T));
  }
  in.resize(expected.size(), T(-1.0f));
  comm.all_to_all(std::as_bytes(std::span(out)), out_bytes, std::as_writable_bytes(std::span(in)),
                  in_bytes);
  EXPECT_EQ(differences(in, [&](auto i) { return expected[i]; }), 0u) << "trial " << trial;
}

TEST_P(Communicators, AllToAllDeliversPartsOfAnyLength) {
  run(GetParam(), [](Communicator& comm) {
    for (unsigned trial = 0; trial < 40; ++trial) {
      expect_exchanged<float>(comm, trial);
      expect_exchanged<bfloat16>(comm, trial);
      expect_exchanged<float16>(comm, trial);
      expect_exchanged<std::uint8_t>(comm, trial);
    }
  });
}

// Nobody waits: each rank sees by itself that its lengths do not add up.
TEST_P(Communicators, PartsOfAnAllToAllAddUp) {
  run(GetParam(), [](Communicator& comm) {
    std::vector<std::byte> out(12), in(12);
    std::vector<std::size_t> bytes(static_cast<std::size_t>(comm.size()), 1), none;
    EXPECT_THROW(comm.all_to_all(out, bytes, in, bytes), Error);
    EXPECT_THROW(comm.all_to_all({}, none, {}, none), Error);
  });
}

TEST_P(Communicators, PartsOfAnAllToAllHaveTheExpectedLengths) {
  run(GetParam(), [](Communicator& comm) {
    if (comm.size() == 1) return;
    const auto size = static_cast<std::size_t>(comm.size());
    std::vector<std::size_t> out_bytes(size, 4), in_bytes(size, 4);
    if (comm.rank() == 0) out_bytes[1] = 0;  // rank 1 expects 4
    const std::vector<std::byte> out(comm.rank() == 0 ? 4 * size - 4 : 4 * size);
    std::vector<std::byte> in(4 * size);
    try {
      comm.all_to_all(out, out_bytes, in, in_bytes);
      EXPECT_NE(comm.rank(), 1);
    } catch (const Error& error) {
      EXPECT_EQ(comm.rank(), 1);
      EXPECT_STREQ(error.what(), "rank 0 of the group sent a part of 0 bytes, 4 were expected");
    }
  });
}

TEST_P(Communicators, BroadcastComesFromAnyRoot) {
  run(GetParam(), [](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      std::vector<std::uint16_t> values(5000, static_cast<std::uint16_t>(comm.rank() + 7));
      comm.broadcast(std::as_writable_bytes(std::span(values)), root);
      EXPECT_EQ(differences(values, [&](auto) { return root + 7; }), 0u);
    }
  });
}

TEST_P(Communicators, TextsOfAnyLengthAreGatheredAndBroadcast) {
  run(GetParam(), [](Communicator& comm) {
    // Rank 0 says nothing, the others 10, 1000 and 100,000 letters.
    const auto text = [](int rank) {
      return std::string(rank == 0 ? 0 : static_cast<std::size_t>(std::pow(10, 2 * rank - 1)),
                         static_cast<char>('a' + rank));
    };
    const std::vector<std::string> all = comm.gather(text(comm.rank()));
    EXPECT_EQ(all.size(), static_cast<std::size_t>(comm.size()));
    for (int r = 0; r < comm.size(); ++r) {
      EXPECT_TRUE(all.at(static_cast<std::size_t>(r)) == text(r)) << "text of rank " << r;
      EXPECT_TRUE(broadcast(comm, comm.rank() == r ? text(r) : "other", r) == text(r));
      const std::vector<std::string> there = comm.gather_at(text(comm.rank()), r);
      EXPECT_TRUE(there == (comm.rank() == r ? all : std::vector<std::string>())) << "at " << r;
    }
  });
}

TEST_P(Communicators, MessagesOfAPairArriveInOrder) {
  run(GetParam(), [](Communicator& comm) {
    const int next = comm.rank() + 1;
    for (const std::size_t count : lengths) {
      for (int message = 0; message < 5; ++message) {
        std::vector<float> values(count, -1.0f);
        if (comm.rank() > 0) {
          comm.recv(values, comm.rank() - 1);
          EXPECT_EQ(differences(values, [&](auto i) { return term(message, i); }), 0u);
        }
        if (next < comm.size()) comm.send(terms(message, count), next);
      }
    }
  });
}

TEST_P(Communicators, AMessageHasTheExpectedLength) {
  run(GetParam(), [](Communicator& comm) {
    std::vector<float> values(8);
    if (comm.size() > 1 && comm.rank() == 0) comm.send(std::span(values).first(5), 1);
    if (comm.rank() == 1) {
      EXPECT_THROW(comm.recv(values, 0), Error);
    }
  });
}

TEST_P(Communicators, NobodyPassesABarrierAlone) {
  run(GetParam(), [](Communicator& comm) {
    // A clock is common to all: nobody may leave before the last one came.
    const auto now_s = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * comm.rank()));
    std::vector<double> came{now_s()};
    comm.barrier();
    std::vector<double> left{now_s()};
    comm.all_reduce(came, Reduction::max);
    comm.all_reduce(left, Reduction::min);
    EXPECT_LE(came[0], left[0]);
  });
}

TEST_P(Communicators, SplitOrdersByKeyAndNegativeColoursGetNothing) {
  run(GetParam(), [](Communicator& comm) {
    // Even ranks, backwards; odd ranks stay out.
    const bool even = comm.rank() % 2 == 0;
    const auto group = comm.split(even ? 3 : -1, -comm.rank());
    EXPECT_EQ(group == nullptr, !even);
    if (!group) return;
    const int members = (comm.size() + 1) / 2;
    EXPECT_EQ(group->size(), members);
    EXPECT_EQ(group->rank(), members - 1 - comm.rank() / 2);
    const std::vector<std::string> names = group->gather(std::to_string(comm.rank()));
    for (int r = 0; r < members; ++r) {
      EXPECT_EQ(names.at(static_cast<std::size_t>(r)), std::to_string(2 * (members - 1 - r)));
    }
  });
}

// A mesh of 2 x 2: sums over rows, then over columns.
TEST_P(Communicators, GroupsOfASplitDoNotMeet) {
  run(GetParam(), [](Communicator& comm) {
    const auto row = comm.split(comm.rank() / 2, comm.rank());
    const auto column = comm.split(comm.rank() % 2, comm.rank());
    std::vector<float> values{static_cast<float>(comm.rank()), 1.0f};
    row->all_reduce(values);
    column->all_reduce(values);
    if (comm.size() == 4) {
      EXPECT_EQ(values, (std::vector<float>{6.0f, 4.0f}));
    }
  });
}

// As the channels of a rank do it: one thread and one communicator per stream of transfers.
TEST_P(Communicators, TwoThreadsUseTwoCommunicatorsAtOnce) {
  run(GetParam(), [](Communicator& comm) {
    const auto first = comm.split(0, comm.rank());
    const auto second = comm.split(0, comm.rank());
    const auto stream = [](Communicator& own, std::size_t count) {
      std::size_t wrong = 0;
      for (int i = 0; i < 30; ++i) {
        std::vector<float> values = terms(own.rank(), count);
        own.all_reduce(values);
        wrong += differences(values, [&](auto k) { return sum_of_terms(own.size(), k); });
        own.barrier();
      }
      EXPECT_EQ(wrong, 0u);
    };
    std::thread beside(stream, std::ref(*first), 20'000);
    stream(*second, 300);
    beside.join();
  });
}

// However long the message and wherever the value in it: x_0 + x_1 + x_2 + ..., from the left.
TEST_P(Communicators, SumsAreTakenInRankOrder) {
  run(GetParam(), [](Communicator& comm) {
    for (const std::size_t count : {std::size_t{12}, std::size_t{12'000}, std::size_t{1'200'000}}) {
      std::vector<float> expected = rough_values(0, count);
      for (int r = 1; r < comm.size(); ++r) {
        const std::vector<float> next = rough_values(r, count);
        for (std::size_t i = 0; i < count; ++i) expected[i] += next[i];
      }
      std::vector<float> values = rough_values(comm.rank(), count);
      comm.all_reduce(values);
      EXPECT_EQ(differences(values, [&](auto i) { return expected[i]; }), 0u);

      values = rough_values(comm.rank(), count);
      comm.reduce_scatter(values);
      const std::size_t part = count / static_cast<std::size_t>(comm.size());
      const std::size_t begin = part * static_cast<std::size_t>(comm.rank());
      std::size_t wrong = 0;
      for (std::size_t i = begin; i < begin + part; ++i) wrong += values[i] != expected[i] ? 1 : 0;
      EXPECT_EQ(wrong, 0u);
    }
  });
}

/// Rough values that fp16 can hold, and their sums too.
template <Narrow T>
std::vector<T> rough_narrow(int rank, std::size_t count) {
  std::vector<T> values;
  for (const float value : rough_values(rank, count)) values.emplace_back(value * 0x1p-20f);
  return values;
}

template <Narrow T>
void expect_sums_rounded_once(Communicator& comm) {
  for (const std::size_t count : {std::size_t{13}, std::size_t{12'001}, std::size_t{600'000}}) {
    std::vector<float> expected(count, 0.0f);
    for (int r = 0; r < comm.size(); ++r) {
      const std::vector<T> next = rough_narrow<T>(r, count);
      for (std::size_t i = 0; i < count; ++i) expected[i] += next[i];
    }
    const auto wrong = [&](const std::vector<T>& values, std::size_t begin, std::size_t end) {
      std::size_t sum = 0;
      for (std::size_t i = begin; i < end; ++i)
        sum += values[i].bits != T(expected[i]).bits ? 1 : 0;
      return sum;
    };
    std::vector<T> values = rough_narrow<T>(comm.rank(), count);
    comm.all_reduce(values);
    EXPECT_EQ(wrong(values, 0, count), 0u);

    values = rough_narrow<T>(comm.rank(), count);
    const std::size_t part = count / static_cast<std::size_t>(comm.size());
    const std::size_t begin = part * static_cast<std::size_t>(comm.rank());
    comm.reduce_scatter(std::span(values).first(part * static_cast<std::size_t>(comm.size())));
    EXPECT_EQ(wrong(values, begin, begin + part), 0u);
  }
}

// The sum of a few narrow values in fp32, rounded once: rounding after each rank would show.
TEST_P(Communicators, NarrowValuesAreSummedInFp32AndRoundedOnce) {
  run(GetParam(), [](Communicator& comm) {
    expect_sums_rounded_once<bfloat16>(comm);
    expect_sums_rounded_once<float16>(comm);
  });
}

template <Narrow T>
void expect_gathered_and_sent(Communicator& comm) {
  for (const std::size_t part : lengths) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::vector<T> all(part * static_cast<std::size_t>(comm.size()), -1.0f);
    for (std::size_t i = 0; i < part; ++i) all[rank * part + i] = term(comm.rank(), i);
    comm.all_gather(all);
    const auto gathered = [&](auto i) { return term(static_cast<int>(i / part), i % part); };
    EXPECT_EQ(differences(all, gathered), 0u);

    std::vector<T> message(part, -1.0f);
    if (rank > 0) {
      comm.recv(message, comm.rank() - 1);
      EXPECT_EQ(differences(message, [&](auto i) { return term(2, i); }), 0u);
    }
    const std::vector<float> terms_of_2 = terms(2, part);
    const std::vector<T> next(terms_of_2.begin(), terms_of_2.end());
    if (comm.rank() + 1 < comm.size()) comm.send(next, comm.rank() + 1);
  }
}

TEST_P(Communicators, NarrowValuesAreGatheredAndSent) {
  run(GetParam(), [](Communicator& comm) {
    expect_gathered_and_sent<bfloat16>(comm);
    expect_gathered_and_sent<float16>(comm);
  });
}

TEST_P(Communicators, ReductionsGiveTheSameBitsEverywhereAndEveryTime) {
  run(GetParam(), [](Communicator& comm) {
    for (const std::size_t count : {std::size_t{60}, std::size_t{60'000}}) {
      const std::vector<float> mine = rough_values(comm.rank(), count);
      std::vector<float> first = mine;
      comm.all_reduce(first);
      std::vector<float> of_rank_0 = first;
      comm.broadcast(std::as_writable_bytes(std::span(of_rank_0)), 0);
      EXPECT_EQ(differences(first, [&](auto i) { return of_rank_0[i]; }), 0u);

      const auto part = static_cast<std::ptrdiff_t>(count) / comm.size();
      std::vector<float> part_before;
      for (int again = 0; again < 5; ++again) {
        std::vector<float> values = mine;
        comm.all_reduce(values);
        EXPECT_EQ(differences(values, [&](auto i) { return first[i]; }), 0u);

        values = mine;
        comm.reduce_scatter(values);
        const auto begin = values.begin() + part * comm.rank();
        const std::vector<float> own(begin, begin + part);
        if (again > 0) {
          EXPECT_EQ(differences(own, [&](auto i) { return part_before[i]; }), 0u);
        }
        part_before = own;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Communicators, testing::Values(1, 2, 3, 4));

}  // namespace brume::comm
