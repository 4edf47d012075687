#include "data/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace brume::data {
namespace {

namespace fs = std::filesystem;

/// A file whose token i is i, so the first token of a window tells which window it is.
TokenFile counting(std::size_t count) {
  std::string directory = (fs::temp_directory_path() / "brume-sampler-XXXXXX").string();
  require(::mkdtemp(directory.data()) != nullptr, Failure::storage, "no temporary directory");
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), std::int32_t{0});
  const fs::path path = fs::path(directory) / "a.tok";
  write_token_file(path, tokens, 65536);
  TokenFile file(path);
  fs::remove_all(directory);  // the open file stays
  return file;
}

/// The windows of one epoch, in the order they are visited.
std::vector<int> epoch_of(const Sampler& sampler, std::int64_t epoch) {
  std::vector<int> windows;
  std::vector<std::int32_t> inputs(1), targets(1);
  for (std::int64_t i = 0; i < sampler.num_windows(); ++i) {
    sampler.sample(epoch * sampler.num_windows() + i, inputs, targets);
    EXPECT_EQ(targets[0], inputs[0] + 1);
    windows.push_back(inputs[0]);
  }
  return windows;
}

Sampler shuffled(int windows, std::uint64_t seed) {
  return {counting(windows + 1), Order::shuffled, seed, 1};
}

std::vector<int> in_order(int count) {
  std::vector<int> windows(count);
  std::iota(windows.begin(), windows.end(), 0);
  return windows;
}

// 14 tokens make 4 windows of 3 + 1; the last token has no window.
TEST(Sampler, WindowsFollowEachOtherAndShareATokenAtTheSeam) {
  const Sampler sampler(counting(14), Order::sequential, 1, 3);
  ASSERT_EQ(sampler.num_windows(), 4);
  std::vector<std::int32_t> inputs(3), targets(3);
  sampler.sample(1, inputs, targets);
  EXPECT_EQ(inputs, (std::vector<std::int32_t>{3, 4, 5}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{4, 5, 6}));
  sampler.sample(4 + 3, inputs, targets);
  EXPECT_EQ(inputs, (std::vector<std::int32_t>{9, 10, 11}));
}

TEST(Sampler, AWindowNeedsOneTokenMoreThanItsLength) {
  EXPECT_EQ(Sampler(counting(9), Order::shuffled, 1, 8).num_windows(), 1);
  EXPECT_THROW(Sampler(counting(8), Order::shuffled, 1, 8), Error);
  EXPECT_THROW(Sampler(counting(0), Order::sequential, 1, 1), Error);
}

TEST(Sampler, EachEpochVisitsEachWindowOnce) {
  for (const int count :
       {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 64, 65, 97, 1000, 1021, 1024, 4099}) {
    const Sampler sampler = shuffled(count, 5);
    for (int epoch = 0; epoch < 4; ++epoch) {
      std::vector<int> windows = epoch_of(sampler, epoch);
      std::ranges::sort(windows);
      EXPECT_EQ(windows, in_order(count)) << count << " windows, epoch " << epoch;
    }
  }
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  const Sampler one = shuffled(97, 1);
  EXPECT_NE(epoch_of(one, 0), in_order(97));
  EXPECT_NE(epoch_of(one, 0), epoch_of(one, 1));
  EXPECT_NE(epoch_of(one, 0), epoch_of(shuffled(97, 2), 0));
  EXPECT_NE(epoch_of(one, 1), epoch_of(shuffled(97, 2), 0));
  EXPECT_EQ(epoch_of(one, 3), epoch_of(shuffled(97, 1), 3));
}

// The place of a window is uniform: over many epochs its mean is (n-1)/2 with a standard error of
// n / sqrt(12 epochs). Neighbours part: the mean distance of a random pair is n/3.
TEST(Sampler, TheOrderLooksRandom) {
  constexpr int count = 64;
  constexpr int epochs = 2000;
  const Sampler sampler = shuffled(count, 3);
  std::vector<double> mean(count, 0.0);
  double distance = 0.0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const std::vector<int> windows = epoch_of(sampler, epoch);
    for (int i = 0; i < count; ++i) mean[windows[i]] += static_cast<double>(i) / epochs;
    for (int i = 1; i < count; ++i)
      distance += std::abs(windows[i] - windows[i - 1]) / double{epochs} / (count - 1);
  }
  const double error = count / std::sqrt(12.0 * epochs);
  for (const double place : mean) EXPECT_NEAR(place, (count - 1) / 2.0, 5 * error);
  EXPECT_NEAR(distance, count / 3.0, 0.5);
}

TEST(Sampler, ASampleFollowsFromItsIndexAlone) {
  const Sampler sampler = shuffled(50, 9);
  std::vector<std::int32_t> first(1), again(1), targets(1);
  sampler.sample(123, first, targets);
  sampler.sample(7, again, targets);
  sampler.sample(123, again, targets);
  EXPECT_EQ(first, again);
  const Sampler copy = sampler;
  copy.sample(123, again, targets);
  EXPECT_EQ(first, again);
}

TEST(Sampler, WrongSizesBreakAPromise) {
  const Sampler sampler = shuffled(50, 9);
  std::vector<std::int32_t> one(1), two(2);
  EXPECT_THROW(sampler.sample(0, one, two), Error);
  EXPECT_THROW(sampler.sample(-1, one, one), Error);
}

}  // namespace
}  // namespace brume::data
