#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint_samples.hpp"
#include "comm/agree.hpp"
#include "io/checkpoint.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"

namespace brume::io {
namespace {

using Names = std::set<std::string>;

constexpr std::int64_t base_elements = 5000;
const Names constants{"base"};

/// A rank's share of a model of which "base" is never trained.
struct Parts {
  Parts(int rank, int ranks) : trained(rank * rows / ranks, rows / ranks) {
    const std::int64_t first = rank * base_elements / ranks;
    for (std::int64_t i = first; i < (rank + 1) * base_elements / ranks; ++i)
      base.push_back(float(i));
    slabs = trained.slabs;
    slabs.push_back({.name = "base",
                     .kind = "weight",
                     .global_shape = {base_elements},
                     .offset = {0},
                     .shape = {base_elements},
                     .first = first,
                     .elements = std::int64_t(base.size()),
                     .data = base.data(),
                     .owned = true});
  }

  Memory trained;
  std::vector<float> base;
  std::vector<engine::Slab> slabs;
};

/// Writes checkpoints of these steps, after one was opened, if any.
void save_parts(const fs::path& directory, const std::vector<std::int64_t>& steps, int ranks = 2,
                const fs::path& opened = {}, const Names& names = constants) {
  comm::run_local(ranks, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory, world, std::int64_t{1} << 40, {}, names);
    if (!opened.empty()) writer.trust(open_checkpoint(world, opened));
    Parts parts(world.rank(), ranks);
    for (const std::int64_t step : steps) {
      parts.trained.fill(step);
      writer.start(info_of(step), parts.slabs);
    }
    writer.finish();
  });
}

void expect_whole(const fs::path& checkpoint) {
  const CheckpointInfo info = open(checkpoint);
  Parts parts(0, 1);
  const std::vector<float> right = parts.base;
  std::ranges::fill(parts.base, -1.0F);
  load_slabs(info, parts.slabs);
  EXPECT_TRUE(parts.trained.holds(info.step));
  EXPECT_EQ(parts.base, right);
}

class CheckpointConstants : public CheckpointFault {};

TEST_F(CheckpointConstants, AreWrittenOnceAndLinkedTo) {
  save_parts(directory_, {10, 20, 30});
  const Names files{"rank-0.h5", "rank-1.h5", "frozen-0.h5", "frozen-1.h5", "manifest.json"};
  EXPECT_EQ(names_in(step(20)), files);
  EXPECT_EQ(names_in(step(30)), files);
  for (const char* name : {"frozen-0.h5", "frozen-1.h5"})
    EXPECT_TRUE(fs::equivalent(step(20) / name, step(30) / name));
  EXPECT_FALSE(fs::equivalent(step(20) / "rank-0.h5", step(30) / "rank-0.h5"));
  expect_whole(step(20));
  expect_whole(step(30));
  fs::remove_all(step(20));
  expect_whole(step(30));
  EXPECT_EQ(open(step(30)).ranks, 2);
}

TEST_F(CheckpointConstants, StayWithOtherRanks) {
  save_parts(directory_, {10});
  save_parts(directory_, {20}, 1, step(10));
  EXPECT_EQ(names_in(step(20)),
            (Names{"rank-0.h5", "frozen-0.h5", "frozen-1.h5", "manifest.json"}));
  EXPECT_EQ(open(step(20)).ranks, 1);
  expect_whole(step(20));
  save_parts(directory_, {30}, 4, step(20));
  EXPECT_EQ(names_in(step(30)).size(), 4U + 2U + 1U);
  EXPECT_TRUE(fs::equivalent(step(20) / "frozen-1.h5", step(30) / "frozen-1.h5"));
  expect_whole(step(30));
}

/// A checkpoint of weights alone, as an import writes it: the base, and the table where asked.
fs::path import(const fs::path& directory, bool with_table) {
  comm::run_local(1, [&](comm::Communicator& world) {
    Parts parts(0, 1);
    std::erase_if(parts.slabs, [&](const engine::Slab& slab) {
      return slab.kind != "weight" || (slab.name == "table" && !with_table);
    });
    CheckpointWriter(directory, world)
        .write(info_of(0), parts.slabs,
               [&](std::size_t n, std::int64_t first, std::span<float> room) {
                 engine::get_values(parts.slabs[n], first, room);
                 return room;
               });
  });
  return directory / "checkpoints/step-0";
}

TEST_F(CheckpointConstants, AreLinkedToWhereTheyWereImported) {
  const fs::path imported = import(directory_ / "base", false);
  save_parts(directory_ / "one", {10}, 2, imported);
  save_parts(directory_ / "two", {10}, 1, imported);
  for (const char* run : {"one", "two"}) {
    const fs::path written = directory_ / run / "checkpoints/step-10";
    EXPECT_TRUE(fs::equivalent(imported / "rank-0.h5", written / "frozen-0.h5"));
    expect_whole(written);
  }
}

// Else each element of the table would be there twice.
TEST_F(CheckpointConstants, AreWrittenAnewWhereAFileHoldsMore) {
  const fs::path imported = import(directory_ / "base", true);
  save_parts(directory_, {10, 20}, 2, imported);
  EXPECT_EQ(names_in(step(20)).size(), 5U);
  EXPECT_TRUE(fs::equivalent(step(10) / "frozen-0.h5", step(20) / "frozen-0.h5"));
  expect_whole(step(20));
  // Once they are trained, ranks write them with all else, and another set of constants anew.
  save_parts(directory_, {30}, 2, step(20), {});
  EXPECT_EQ(names_in(step(30)), (Names{"rank-0.h5", "rank-1.h5", "manifest.json"}));
  expect_whole(step(30));
  save_parts(directory_, {40}, 2, step(30));
  EXPECT_EQ(names_in(step(40)).size(), 5U);
  expect_whole(step(40));
}

TEST_F(CheckpointConstants, AreWrittenWhereNoLinkIsPossible) {
  const test::OwnFolder elsewhere("/dev/shm");
  struct stat there = {}, here = {};
  ASSERT_EQ(::stat(elsewhere.path().c_str(), &there) + ::stat(directory_.c_str(), &here), 0);
  if (there.st_dev == here.st_dev) GTEST_SKIP() << "one file system has both folders";
  const fs::path imported = import(elsewhere.path() / "base", false);
  save_parts(directory_, {10}, 2, imported);
  EXPECT_EQ(names_in(step(10)).size(), 5U);
  expect_whole(step(10));
}

// One checkpoint fails, and the next one has all.
TEST_F(CheckpointConstants, AreWrittenAgainWhereTheirFileIsGone) {
  const fs::path imported = import(directory_ / "base", false);
  comm::run_local(2, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world, std::int64_t{1} << 40, {}, constants);
    writer.trust(open_checkpoint(world, imported));
    comm::together(world, [&] {
      if (world.rank() == 0) fs::remove(imported / "rank-0.h5");
    });
    Parts parts(world.rank(), 2);
    parts.trained.fill(10);
    writer.start(info_of(10), parts.slabs);
    EXPECT_THROW(writer.finish(), comm::AgreedError);
    writer.start(info_of(10), parts.slabs);
    writer.finish();
  });
  EXPECT_EQ(names_in(checkpoints()), Names{"step-10"});
  expect_whole(step(10));
}

// The manifest would promise a hash that the new file does not have.
TEST_F(CheckpointConstants, AreNotLinkedToAnotherFileOfThatName) {
  const fs::path imported = import(directory_ / "base", false);
  for (const bool rewritten : {false, true})
    comm::run_local(1, [&](comm::Communicator& world) {
      CheckpointWriter writer(directory_, world, std::int64_t{1} << 40, {}, constants);
      writer.trust(open_checkpoint(world, imported));
      const std::string whole = content(imported / "rank-0.h5");
      if (!rewritten) fs::remove(imported / "rank-0.h5");
      put(imported / "rank-0.h5", std::string(whole.size(), 'x'));
      Parts parts(0, 1);
      const int at = rewritten ? 20 : 10;
      parts.trained.fill(at);
      writer.start(info_of(at), parts.slabs);
      EXPECT_THROW(writer.finish(), comm::AgreedError);
      put(imported / "rank-0.h5", whole);
      writer.start(info_of(at), parts.slabs);
      writer.finish();
      expect_whole(step(at));
    });
}

// A retry must not need room that the write that failed did not.
TEST_F(CheckpointConstants, StayLinkedWhereAnotherFileFails) {
  save_parts(directory_, {10});
  comm::run_local(1, [&](comm::Communicator& world) {
    CheckpointWriter writer(directory_, world, std::int64_t{1} << 40, {}, constants);
    writer.trust(open_checkpoint(world, step(10)));
    Parts parts(0, 1);
    parts.trained.fill(20);
    {
      const FileLimit full(1000);
      writer.start(info_of(20), parts.slabs);
      EXPECT_THROW(writer.finish(), comm::AgreedError);
    }
    writer.start(info_of(20), parts.slabs);
    writer.finish();
  });
  EXPECT_TRUE(fs::equivalent(step(10) / "frozen-1.h5", step(20) / "frozen-1.h5"));
  expect_whole(step(20));
}

TEST_F(CheckpointConstants, HaveHashes) {
  save_parts(directory_, {10, 20});
  const std::string whole = content(step(20) / "frozen-1.h5");
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 1;
  put(step(20) / "frozen-1.h5", damaged);
  const std::string said = test::refusal([&] { open(step(20)); }, Failure::storage);
  EXPECT_NE(said.find("frozen-1.h5: is damaged"), std::string::npos) << said;
}

}  // namespace
}  // namespace brume::io
