// Parcels of random lives: none shares bytes with one that it meets, and tight packing goes as far
// as it is asked to.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "schedule/pack.hpp"

namespace brume::schedule {
namespace {

using Parcels = std::vector<Parcel>;

/// Lives and sizes as unlike as those of a pipeline's activations and of what a kernel needs.
Parcels random_parcels(unsigned seed) {
  std::mt19937 random(seed);
  const auto up_to = [&](int most) { return int(random() % unsigned(most)) + 1; };
  Parcels parcels;
  const int tasks = 60 + up_to(200);
  for (int i = 20 + up_to(150); i > 0; --i) {
    const int first = up_to(tasks);
    const int length = random() % 3 == 0 ? up_to(tasks / 2) : up_to(5);
    parcels.push_back({first, first + length, std::int64_t{up_to(64)} << (16 + random() % 6)});
  }
  return parcels;
}

std::int64_t live_bytes(const Parcels& parcels) {
  std::int64_t most = 0;
  for (const Parcel& at : parcels) {
    std::int64_t live = 0;
    for (const Parcel& other : parcels)
      if (other.first_task <= at.first_task && at.first_task <= other.last_task)
        live += other.bytes;
    most = std::max(most, live);
  }
  return most;
}

void expect_packed(const Parcels& parcels, std::int64_t end) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    const Parcel& one = parcels[i];
    EXPECT_GE(one.offset, 0);
    last = std::max(last, one.end());
    for (std::size_t j = 0; j < i; ++j) {
      const Parcel& other = parcels[j];
      if (!one.meets(other)) continue;
      EXPECT_TRUE(one.end() <= other.offset || other.end() <= one.offset);
    }
  }
  EXPECT_EQ(last, end);
}

TEST(Packing, GivesParcelsThatMeetBytesOfTheirOwn) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    Parcels parcels = random_parcels(seed);
    const std::int64_t end = pack(parcels, 0, {.tight = false});
    expect_packed(parcels, end);
    EXPECT_GE(end, live_bytes(parcels));
  }
}

TEST(Packing, GoesAsFarAsItIsAskedTo) {
  int looser = 0;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    Parcels first_fit = random_parcels(seed), tight = first_fit;
    const std::int64_t loose_end = pack(first_fit, 0, {.tight = false});
    const std::int64_t tight_end = pack(tight, 0);
    expect_packed(tight, tight_end);
    ASSERT_LE(tight_end, loose_end);
    // What first fit reaches is enough: no effort.
    Parcels parcels = random_parcels(seed);
    EXPECT_EQ(pack(parcels, 0, {.enough_bytes = loose_end}), loose_end);
    EXPECT_TRUE(std::ranges::equal(parcels, first_fit, {}, &Parcel::offset, &Parcel::offset));
    // Half of what can be won.
    parcels = random_parcels(seed);
    const std::int64_t enough = (loose_end + tight_end) / 2;
    const std::int64_t end = pack(parcels, 0, {.enough_bytes = enough});
    expect_packed(parcels, end);
    EXPECT_LE(end, enough);
    looser += end > tight_end;
  }
  EXPECT_GT(looser, 0);
}

void let_all_move(Parcels& parcels) {
  for (Parcel& parcel : parcels) parcel.moves = true;
}

/// A copy of so many bytes, each of which lives for two tasks of its own.
Parcel copy(int number, std::int64_t bytes) {
  const int first = 2 * number;
  return {first, first + 1, bytes, 0, false, false, {.transfer = first + 1}};
}

TEST(Packing, SpreadsWhatTransfersFillOverBytesThatWereLeftLongBefore) {
  constexpr std::int64_t bytes = 1 << 20;
  Parcels parcels;
  for (int i = 0; i < 5; ++i) parcels.push_back(copy(i, bytes));
  parcels.push_back(copy(5, 3 * bytes));  // it makes room for three
  EXPECT_EQ(pack(parcels, 0, {.tight = false}), 3 * bytes);
  for (const Parcel& parcel : parcels) EXPECT_EQ(parcel.offset, 0);

  let_all_move(parcels);
  EXPECT_EQ(pack(parcels, 0, {.tight = false}), 3 * bytes);
  expect_packed(parcels, 3 * bytes);
  for (int i = 0; i < 2; ++i)  // to where nobody was, then to where one was longest ago
    EXPECT_EQ(parcels[std::size_t(i)].offset, parcels[std::size_t(i) + 3].offset);
}

TEST(Packing, SpreadsNothingThatTheOrderOfAChannelHoldsAnyway) {
  Parcels parcels{copy(0, 1 << 20), copy(1, 1 << 20), copy(2, 2 << 20)};
  for (Parcel& parcel : parcels) {
    parcel.computed = true;
    std::swap(parcel.last.compute, parcel.last.transfer);
  }
  let_all_move(parcels);
  pack(parcels, 0, {.tight = false});
  for (const Parcel& parcel : parcels) EXPECT_EQ(parcel.offset, 0);
}

TEST(Packing, SpreadsNothingThatIsToStay) {
  Parcels parcels{copy(0, 1 << 20), copy(1, 1 << 20), copy(2, 1 << 20), copy(3, 3 << 20)};
  let_all_move(parcels);
  parcels[1].moves = false;
  pack(parcels, 0, {.tight = false});
  EXPECT_EQ(parcels[1].offset, 0);
  EXPECT_GT(parcels[2].offset, 0);
}

TEST(Packing, SpreadParcelsTakeNoMoreBytes) {
  std::mt19937 random(1);
  int moved = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    Parcels packed = random_parcels(seed);
    for (Parcel& parcel : packed) {
      parcel.computed = random() % 2 == 0;
      (random() % 2 == 0 ? parcel.last.compute : parcel.last.transfer) = parcel.last_task;
    }
    Parcels spread = packed;
    const std::int64_t end = pack(packed, 0, {.tight = false});
    let_all_move(spread);
    EXPECT_EQ(pack(spread, 0, {.tight = false}), end);
    for (std::size_t i = 0; i < packed.size(); ++i) moved += spread[i].offset != packed[i].offset;
    for (const Parcel& parcel : spread) EXPECT_LE(parcel.end(), end);
    std::int64_t last = 0;
    for (const Parcel& parcel : spread) last = std::max(last, parcel.end());
    expect_packed(spread, last);
  }
  EXPECT_GT(moved, 0);
}

TEST(Packing, OfKnownParcelsIsTheSame) {
  Packings packings;
  for (int time = 0; time < 2; ++time)
    for (unsigned seed = 1; seed <= 6; ++seed) {
      Parcels first_fit = random_parcels(seed);
      const std::int64_t loose_end = pack(first_fit, 0, {.tight = false});
      for (const Effort effort :
           {Effort{.tight = false}, Effort{}, Effort{.enough_bytes = loose_end},
            Effort{.enough_bytes = loose_end - 1}})
        for (const bool moves : {false, true}) {
          Parcels alone = random_parcels(seed);
          if (moves) let_all_move(alone);
          Parcels known = alone;
          EXPECT_EQ(packings.pack(known, 0, effort, {}), pack(alone, 0, effort));
          EXPECT_TRUE(std::ranges::equal(known, alone, {}, &Parcel::offset, &Parcel::offset));
        }
    }
}

}  // namespace
}  // namespace brume::schedule
