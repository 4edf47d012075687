#include "data/sampler.hpp"
#include "data/token_writer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"

namespace brume::data {
namespace {

namespace fs = std::filesystem;

/// A file whose token i is `first` + i, so the first token of a window tells which window it is.
TokenFile counting(std::size_t count, int first = 0) {
  const test::OwnFolder folder;
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  write_token_file(folder / "a.tok", tokens, 65536);
  return TokenFile(folder / "a.tok");  // the open file stays
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

/// A file of counted tokens in documents.
TokenFile with_documents(std::size_t count, const DocumentEnds& documents) {
  const fs::path path = fs::temp_directory_path() / fmt::format("brume-{}.tok", ::getpid());
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), std::int32_t{0});
  write_token_file(path, tokens, 65536, documents);
  TokenFile file(path);
  fs::remove(path);
  return file;
}

struct Sample {
  explicit Sample(const Sampler& sampler, std::int64_t index, std::size_t length)
      : inputs(length), targets(length), begins(length) {
    sampler.sample(index, {inputs, targets, begins});
  }
  std::vector<std::int32_t> inputs, targets, begins;
};

// Documents [0, 3), [3, 4) and [4, 14) in windows of 4 + 1; in the last one 7 tokens are given.
TEST(Sampler, DocumentsAreJoinedOrIsolated) {
  using Row = std::vector<std::int32_t>;
  const DocumentEnds ends{{3, 4, 14}, {0, 3, 11}};
  const Sampler joined(with_documents(14, ends), Order::sequential, 1, 4);
  EXPECT_EQ(Sample(joined, 0, 4).targets, (Row{1, 2, 3, -1}));
  EXPECT_EQ(Sample(joined, 1, 4).targets, (Row{-1, -1, -1, -1}));
  EXPECT_EQ(Sample(joined, 2, 4).targets, (Row{-1, -1, 11, 12}));
  EXPECT_EQ(Sample(joined, 0, 4).begins, (Row{0, 0, 0, 0}));
  EXPECT_EQ(joined.documents(0), (std::vector<Document>{{0, 1, 3}, {3, 3, 4}, {4, 11, 5}}));
  EXPECT_EQ(joined.num_targets(0, 3), 5);
  EXPECT_EQ(joined.num_targets(1, 1), 0);
  EXPECT_EQ(joined.document_share(), 1.0);

  const Sampler isolated(with_documents(14, ends), Order::sequential, 1, 4, true);
  EXPECT_EQ(Sample(isolated, 0, 4).inputs, (Row{0, 1, 2, 3}));
  EXPECT_EQ(Sample(isolated, 0, 4).targets, (Row{1, 2, -1, -1}));
  EXPECT_EQ(Sample(isolated, 0, 4).begins, (Row{0, 0, 0, 3}));
  EXPECT_EQ(Sample(isolated, 2, 4).targets, (Row{-1, -1, 11, 12}));
  EXPECT_EQ(Sample(isolated, 2, 4).begins, (Row{0, 0, 0, 0}));
  EXPECT_EQ(isolated.num_targets(0, 3), 4);
  // 6 + 1, 10 and 10 of 10 pairs.
  EXPECT_NEAR(isolated.document_share(), 2.7 / 3.0, 1e-12);
  EXPECT_THROW(Sampler(counting(9), Order::shuffled, 1, 4, true), Error);
}

// A document of [0, 9), whose tokens [2, 4) and [6, 7) are learned, and one of [9, 14) of which all
// are.
TEST(Sampler, PartsOfADocumentAreNotIsolated) {
  using Row = std::vector<std::int32_t>;
  const DocumentEnds ends{{4, 7, 9, 14}, {2, 6, 9, 9}, {false, true, true, false}};
  const Sampler isolated(with_documents(14, ends), Order::sequential, 1, 6, true);
  EXPECT_EQ(Sample(isolated, 0, 6).targets, (Row{-1, 2, 3, -1, -1, 6}));
  EXPECT_EQ(Sample(isolated, 0, 6).begins, (Row{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(Sample(isolated, 1, 6).targets, (Row{-1, -1, -1, 10, 11, 12}));
  EXPECT_EQ(Sample(isolated, 1, 6).begins, (Row{0, 0, 0, 3, 3, 3}));
  EXPECT_EQ(isolated.num_targets(0, 2), 6);
  // 21 pairs, and 6 + 6 of 21.
  EXPECT_NEAR(isolated.document_share(), 33.0 / 42.0, 1e-12);
  const Sampler joined(with_documents(14, ends), Order::sequential, 1, 6);
  EXPECT_EQ(Sample(joined, 1, 6).targets, (Row{-1, -1, 9, 10, 11, 12}));
}

// Windows of tokens that no file has share none of them.
TEST(Sampler, WindowsOfTokensInMemoryAreApart) {
  using Row = std::vector<std::int32_t>;
  const Sampler sampler = sampler_of(Row{0, 1, 2, 3, 4, 5, 6, 7}, 8, {}, 2);
  EXPECT_EQ(sampler.num_windows(), 2);
  EXPECT_EQ(Sample(sampler, 0, 2).targets, (Row{1, 2}));
  EXPECT_EQ(Sample(sampler, 1, 2).inputs, (Row{3, 4}));
  EXPECT_EQ(Sample(sampler, 1, 2).targets, (Row{4, 5}));
}

// Files of 400, 30 and 7 windows whose tokens are below 1000, from 1000 and from 2000 on.
TEST(Sampler, FilesAreMixedByTheirWeights) {
  const std::vector<int> windows{400, 30, 7};
  const std::vector<double> weights{6.0, 3.0, 1.0};
  const auto files = [&] {
    std::vector<WeightedFile> all;
    for (std::size_t i = 0; i < windows.size(); ++i)
      all.push_back({counting(std::size_t(windows[i]) + 1, int(1000 * i)), weights[i]});
    return all;
  };
  const Sampler mixed(files(), Order::shuffled, 5, 1);
  EXPECT_EQ(mixed.num_windows(), 437);
  constexpr int samples = 4096;
  std::vector<std::vector<int>> seen(3);
  for (int i = 0; i < samples; ++i) {
    const int token = Sample(mixed, i, 1).inputs[0];
    seen[std::size_t(token / 1000)].push_back(token % 1000);
    if (i == 200) {  // they are mixed from the first on
      EXPECT_NEAR(double(seen[1].size()), 60.0, 30.0);
    }
  }
  for (std::size_t file = 0; file < 3; ++file) {
    EXPECT_NEAR(double(seen[file].size()), samples * weights[file] / 10.0, 1.0) << file;
    std::vector<int> times(std::size_t(windows[file]));
    for (const int window : seen[file]) ++times[std::size_t(window)];
    const auto [least, most] = std::ranges::minmax(times);
    EXPECT_LE(most - least, 1) << "windows of file " << file << " come as often as each other";
  }
  const Sampler again(files(), Order::shuffled, 5, 1), other(files(), Order::shuffled, 6, 1);
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(Sample(again, i, 1).inputs, Sample(mixed, i, 1).inputs);
    differ += Sample(other, i, 1).inputs != Sample(mixed, i, 1).inputs;
  }
  EXPECT_GT(differ, 100);
}

// Shares that no block holds exactly, one of them tiny: files keep to them over many blocks.
TEST(Sampler, SharesHoldHoweverSmall) {
  std::vector<WeightedFile> files;
  for (const double weight : {1.0 / 3, 2.0 / 3 - 1e-4, 1e-4})
    files.push_back({counting(9, int(1000 * files.size())), weight});
  const Sampler mixed(std::move(files), Order::sequential, 5, 1);
  std::vector<std::int64_t> seen(3);
  for (int i = 0; i < 3 * 32768; ++i) {
    const int token = Sample(mixed, i, 1).inputs[0];
    ++seen[std::size_t(token / 1000)];
  }
  EXPECT_NEAR(double(seen[0]), 32768, 1.0);
  EXPECT_NEAR(double(seen[2]), 3 * 3.2768, 1.0);
}

// Before block k a file has its share of 1024 k samples, rounded down, and up for the files that
// lose most by that.
TEST(Sampler, EachBlockHoldsTheSharesOfAllBefore) {
  const std::vector<double> weights{1.0, 2.5, 1.0, 0.7, 0.1, 3.3, 1.0};
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<WeightedFile> files;
  for (const double weight : weights)
    files.push_back({counting(9, int(1000 * files.size())), weight});
  const Sampler mixed(std::move(files), Order::sequential, 5, 1);
  std::vector<std::int64_t> seen(weights.size());
  for (int block = 1; block <= 6; ++block) {
    for (int i = 1024 * (block - 1); i < 1024 * block; ++i)
      ++seen[std::size_t(Sample(mixed, i, 1).inputs[0] / 1000)];
    for (std::size_t file = 0; file < weights.size(); ++file)
      EXPECT_NEAR(double(seen[file]), 1024 * block * (weights[file] / sum), 1.0)
          << "file " << file << " before block " << block;
  }
}

// 4000 files take a sample about as long as 40 do. By a walk over all pairs of files it took 10,000
// times as long.
TEST(Sampler, ManyFilesTakeNoLongerThanFew) {
  const TokenFile file = counting(9);
  const auto spent = [&](int count) {
    const Sampler mixed(std::vector<WeightedFile>(std::size_t(count), {file}), Order::shuffled, 5,
                        1);
    const std::clock_t begin = std::clock();
    EXPECT_EQ(mixed.num_targets(0, 16384), 16384);
    return double(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double few = spent(40);
  EXPECT_LT(spent(4000), 20.0 * few + 0.05);
}

/// Pairs whose tokens tell where they are: prompts of 1 + p % 3 tokens, chosen answers of p % 5 + 1
/// tokens 100 + p, rejected ones of p % 7 + 1 tokens 200 + p.
TokenFile counting_pairs(int pairs) {
  const test::OwnFolder folder;
  std::vector<std::int32_t> tokens;
  DocumentEnds documents;
  for (int p = 0; p < pairs; ++p)
    for (const bool chosen : {true, false}) {
      tokens.insert(tokens.end(), std::size_t(1 + p % 3), std::int32_t(p));
      documents.answers.push_back(std::ssize(tokens));
      tokens.insert(tokens.end(), std::size_t(1 + p % (chosen ? 5 : 7)),
                    std::int32_t((chosen ? 100 : 200) + p));
      documents.ends.push_back(std::ssize(tokens));
    }
  write_token_file(folder / "a.tok", tokens, 400, documents, true);
  return TokenFile(folder / "a.tok");
}

TEST(Sampler, APairIsTwoSequencesThatAreFilled) {
  const Sampler sampler(counting_pairs(40), Order::sequential, 1, 12);
  EXPECT_TRUE(sampler.pairs());
  EXPECT_EQ(sampler.num_windows(), 80);
  EXPECT_EQ(sampler.pairs_left_out(), 0);
  EXPECT_EQ(sampler.answers_cut(), 0);
  using Tokens = std::vector<std::int32_t>;
  Tokens inputs(12), targets(12);
  sampler.sample(8, inputs, targets);
  EXPECT_EQ(inputs, Tokens({4, 4, 104, 104, 104, 104, 104, 0, 0, 0, 0, 0}));
  EXPECT_EQ(targets, Tokens({-1, 104, 104, 104, 104, 104, -1, -1, -1, -1, -1, -1}));
  sampler.sample(9, inputs, targets);
  EXPECT_EQ(targets, Tokens({-1, 204, 204, 204, 204, 204, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(sampler.num_targets(8, 1), 5);
  EXPECT_EQ(sampler.documents(8), std::vector<Document>({{0, 2, 7}, {7, 13, 13}}));
}

// Sequences of 4 + 1 tokens: of pair 6, whose prompt has one, seven rejected tokens become four.
TEST(Sampler, AnswersAreCutAndPairsWithoutOneLeftOut) {
  const Sampler sampler(counting_pairs(40), Order::sequential, 1, 4);
  EXPECT_EQ(sampler.num_windows(), 80);
  EXPECT_EQ(sampler.num_targets(12, 1), 2);
  EXPECT_EQ(sampler.num_targets(13, 1), 4);
  EXPECT_GT(sampler.answers_cut(), 0);
  const Sampler shorter(counting_pairs(40), Order::sequential, 1, 2);
  EXPECT_EQ(shorter.pairs_left_out(), 13);  // prompts of three tokens
  EXPECT_EQ(shorter.num_windows(), 54);
  std::vector<std::int32_t> inputs(2), targets(2);
  shorter.sample(4, inputs, targets);  // the third of those that are left
  EXPECT_EQ(inputs[0], 3);
}

TEST(Sampler, RefusesPairsWithoutRoomAndMixedKinds) {
  const auto all_too_long = [] {
    const test::OwnFolder folder;
    const std::vector<std::int32_t> tokens{1, 1, 1, 2, 1, 1, 1, 3};
    write_token_file(folder / "a.tok", tokens, 9, {.ends = {4, 8}, .answers = {3, 7}}, true);
    Sampler(TokenFile(folder / "a.tok"), Order::sequential, 1, 2);
  };
  EXPECT_NE(test::refusal(all_too_long).find("none of its 1 pairs has room for an answer"),
            std::string::npos);
  std::vector<WeightedFile> files;
  files.push_back({counting_pairs(4)});
  files.push_back({counting(40)});
  EXPECT_NE(test::refusal([&] {
              Sampler(std::move(files), Order::sequential, 1, 4);
            }).find("mix either files with pairs or others"),
            std::string::npos);
}

TEST(Sampler, AnEpochVisitsEachPairOnceAndKeepsItTogether) {
  for (const int files : {1, 3}) {
    std::vector<WeightedFile> all;
    for (int i = 0; i < files; ++i) all.push_back({counting_pairs(30 + i)});
    const Sampler sampler(std::move(all), Order::shuffled, 5, 12);
    std::vector<int> seen(std::size_t(sampler.num_windows()));
    bool moved = false;
    for (std::int64_t i = 0; i < sampler.num_windows(); i += 2) {
      const std::int64_t window = sampler.window(i);
      EXPECT_EQ(window % 2, 0);
      EXPECT_EQ(sampler.window(i + 1), window + 1);
      ++seen[std::size_t(window)];
      moved = moved || window != i;
    }
    EXPECT_TRUE(moved);
    if (files > 1) continue;
    for (std::size_t w = 0; w < seen.size(); w += 2) EXPECT_EQ(seen[w], 1) << w;
  }
}

TEST(Sampler, WindowsHaveNumbersInTheOrderOfFiles) {
  std::vector<WeightedFile> all;
  for (int i = 0; i < 3; ++i) all.push_back({counting_pairs(10 + i)});
  const Sampler sampler(std::move(all), Order::shuffled, 5, 12), numbered = sampler.by_number();
  std::vector<std::int32_t> inputs(12), targets(12), same_inputs(12), same_targets(12);
  for (std::int64_t i = 0; i < 3 * sampler.num_windows(); ++i) {
    sampler.sample(i, inputs, targets);
    EXPECT_EQ(numbered.window(sampler.window(i)), sampler.window(i));
    numbered.sample(sampler.window(i), same_inputs, same_targets);
    EXPECT_EQ(inputs, same_inputs);
    EXPECT_EQ(targets, same_targets);
  }
  numbered.sample(sampler.num_windows() + 3, inputs, targets);
  numbered.sample(3, same_inputs, same_targets);
  EXPECT_EQ(inputs, same_inputs);
}

}  // namespace
}  // namespace brume::data
