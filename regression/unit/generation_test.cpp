/// @file Which token comes next, which tokens are computed when, and where an answer ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "generation/answer.hpp"
#include "generation/sampling.hpp"
#include "generation/scheduler.hpp"

namespace brume::generation {
namespace {

// --- sampling -----------------------------------------------------------------------------------

std::vector<float> random_logits(std::mt19937& random, int count) {
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(std::size_t(count), 0.0f);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::int32_t token(const std::vector<float>& logits, const Sampling& how,
                   const std::vector<std::int32_t>& tokens, std::uint64_t sequence = 0,
                   std::int64_t prompt = 0) {
  return choose(logits, how, {tokens, prompt}, sequence).token;
}

TEST(Sampling, WithoutTemperatureTakesTheLikeliest) {
  EXPECT_EQ(token({1.0f, 3.0f, 3.0f, -2.0f}, {}, {7}), 1);
  const Choice choice =
      choose(std::vector{0.0f, std::log(3.0f)}, {.log_probabilities = true}, {}, 0);
  EXPECT_EQ(choice.token, 1);
  EXPECT_NEAR(choice.log_probability, std::log(0.75), 1e-6);
}

TEST(Sampling, ExtremesLeaveTheLikeliest) {
  const std::vector<float> logits{1.0f, 1.5f, 9.0f, 8.9f, -3.0f};
  for (const Sampling& how : {Sampling{.temperature = 1.0, .top_p = 0.0},
                              Sampling{.temperature = 1.0, .top_k = 3, .top_p = 0.0, .min_p = 1.0},
                              Sampling{.temperature = 1.0, .top_k = 1},
                              Sampling{.temperature = 1e-320}, Sampling{.temperature = 1e-30}})
    for (std::uint64_t sequence = 0; sequence < 5; ++sequence)
      EXPECT_EQ(token(logits, how, {7}, sequence), 2);
}

TEST(Sampling, RefusesLogitsThatAreNotFinite) {
  EXPECT_THROW(token({1.0f, NAN}, {}, {}), Error);
  EXPECT_THROW(token({1.0f, INFINITY}, {}, {}), Error);
  EXPECT_THROW(token({-INFINITY, -INFINITY}, {}, {}), Error);
  EXPECT_EQ(token({-INFINITY, 0.0f}, {}, {}), 1);
}

TEST(Sampling, PenaltiesAreThoseOfTheirDefinitions) {
  const std::vector<float> logits{2.0f, 1.9f, -1.0f, -1.1f};
  // Of the prompt's tokens and the answer's: 2 / 1.1 < 1.9.
  EXPECT_EQ(token(logits, {.repetition_penalty = 1.1}, {0}, 0, 1), 1);
  // Below 0 a penalty multiplies.
  EXPECT_EQ(token({-1.0f, -1.05f}, {.repetition_penalty = 1.1}, {0}), 1);
  // Of the answer's alone.
  EXPECT_EQ(token(logits, {.presence_penalty = 0.2}, {0}, 0, 1), 0);
  EXPECT_EQ(token(logits, {.presence_penalty = 0.2}, {0}, 0, 0), 1);
  EXPECT_EQ(token(logits, {.frequency_penalty = 0.06}, {0}, 0, 0), 0);
  EXPECT_EQ(token(logits, {.frequency_penalty = 0.06}, {0, 0}, 0, 0), 1);
}

/// Probabilities of the tokens that stay, by the definition, over a sorted copy.
std::vector<double> expected(const std::vector<float>& logits, const Sampling& how) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size());
  const auto scale = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& one : p) one /= sum;
  };
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = std::exp(double(logits[i]) / how.temperature);
  if (how.top_k > 0 && std::size_t(how.top_k) < p.size())
    for (std::size_t i = 0; i < p.size(); ++i)
      if (logits[i] < logits[order[std::size_t(how.top_k) - 1]]) p[i] = 0.0;
  scale();
  double sum = 0.0;
  for (const std::size_t i : order) {
    if (sum >= how.top_p) p[i] = 0.0;
    sum += p[i];
  }
  scale();
  const double most = std::ranges::max(p);
  for (double& one : p)
    if (one < how.min_p * most) one = 0.0;
  scale();
  return p;
}

// 20,000 draws are within four standard deviations of the chi-square distribution, and no token
// that is cut off is drawn.
TEST(Sampling, DrawsFollowTheDistribution) {
  std::mt19937 random(5);
  const Sampling cases[] = {{.temperature = 1.0},
                            {.temperature = 0.7, .top_k = 5},
                            {.temperature = 1.5, .top_p = 0.8},
                            {.temperature = 1.0, .min_p = 0.1},
                            {.temperature = 2.0, .top_k = 20, .top_p = 0.9, .min_p = 0.05},
                            {.temperature = 1.0, .top_p = 1e-6}};
  for (const Sampling& how : cases)
    for (const int vocab : {30, 500}) {
      const std::vector<float> logits = random_logits(random, vocab);
      const std::vector<double> p = expected(logits, how);
      constexpr int draws = 20'000;
      std::vector<int> counts(p.size());
      const std::vector<std::int32_t> history(3, 0);
      for (int i = 0; i < draws; ++i)
        ++counts[std::size_t(token(logits, how, history, std::uint64_t(i)))];
      double chi = 0.0, rare = 0.0, rare_count = 0.0;
      int cells = 0;
      for (std::size_t i = 0; i < p.size(); ++i) {
        if (p[i] == 0.0) {
          EXPECT_EQ(counts[i], 0) << i;
        } else if (p[i] * draws < 8.0) {
          rare += p[i] * draws, rare_count += counts[i];
        } else {
          chi += std::pow(counts[i] - p[i] * draws, 2) / (p[i] * draws), ++cells;
        }
      }
      if (rare > 0.0) chi += std::pow(rare_count - rare, 2) / rare, ++cells;
      const double freedom = std::max(1, cells - 1);
      EXPECT_LT(chi, freedom + 4.0 * std::sqrt(2.0 * freedom) + 4.0);
    }
}

TEST(Sampling, DrawsDependOnSeedSequenceAndPlace) {
  std::mt19937 random(6);
  const std::vector<float> logits = random_logits(random, 1000);
  const Sampling how{.temperature = 3.0};
  std::set<std::int32_t> seen;
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    for (std::uint64_t sequence = 0; sequence < 3; ++sequence)
      for (std::size_t place = 1; place <= 3; ++place) {
        const std::vector<std::int32_t> history(place, 0);
        Sampling seeded = how;
        seeded.seed = seed;
        const std::int32_t drawn = token(logits, seeded, history, sequence);
        EXPECT_EQ(drawn, token(logits, seeded, history, sequence));
        seen.insert(drawn);
      }
  EXPECT_GT(seen.size(), 20u);
}

// --- scheduler ----------------------------------------------------------------------------------

/// A cache that knows which token of which sequence each of its places holds.
struct Cache {
  std::map<std::pair<int, int>, std::pair<std::int64_t, int>> held;  ///< by block and place in it
};

/// The token that follows a history in this test's language.
std::int32_t next_token(std::span<const std::int32_t> tokens) {
  std::uint32_t hash = 17;
  for (const std::int32_t token : tokens) hash = hash * 31 + std::uint32_t(token);
  return std::int32_t(hash >> 20 & 63);
}

struct Job {
  std::vector<std::int32_t> prompt;
  int length;  ///< tokens of the answer
};

/// Runs jobs and checks each pass. @return the answers, by id
std::map<std::int64_t, std::vector<std::int32_t>> answers(const std::vector<Job>& jobs,
                                                          const model::Generation& sizes,
                                                          int blocks_per_sequence,
                                                          std::int64_t& preemptions) {
  Scheduler scheduler(sizes, blocks_per_sequence);
  Cache cache;
  std::map<std::int64_t, std::vector<std::int32_t>> made;
  std::size_t begun = 0;
  while (begun < jobs.size() || scheduler.open() > 0) {
    while (begun < jobs.size() && scheduler.room() > 0) {
      scheduler.add(std::int64_t(begun), jobs[begun].prompt);
      ++begun;
    }
    const Scheduler::Pass pass = scheduler.next();
    const auto& tokens = pass.tokens.tokens;
    EXPECT_FALSE(tokens.empty());
    EXPECT_LE(std::ssize(tokens), sizes.tokens);
    EXPECT_EQ(std::size_t(pass.tokens.wanted), pass.wanted.size());
    if (tokens.empty()) break;
    const auto block_of = [&](int sequence, int place) {
      return pass.tokens
          .tables[std::size_t(sequence * blocks_per_sequence + place / sizes.block_tokens)];
    };
    std::map<int, std::int64_t> id_of;  // by place among the generator's sequences
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto [token, sequence, place] = tokens[i];
      EXPECT_TRUE(sequence >= 0 && sequence < sizes.sequences);
      cache.held[{block_of(sequence, place), place % sizes.block_tokens}] = {sequence, token};
    }
    // What a token sees is what its sequence has, whoever had the blocks before.
    for (std::size_t i = 0; i < pass.wanted.size(); ++i) {
      const std::int64_t id = pass.wanted[i];
      const History history = scheduler.history(id);
      const auto [token, sequence, place] = tokens[i];
      EXPECT_EQ(place + 1, std::ssize(history.tokens));
      EXPECT_EQ(history.prompt, std::ssize(jobs[std::size_t(id)].prompt));
      for (int p = 0; p <= place; ++p) {
        const auto& at = cache.held[{block_of(sequence, p), p % sizes.block_tokens}];
        EXPECT_EQ(at.first, sequence);
        EXPECT_EQ(at.second, history.tokens[std::size_t(p)]);
      }
      const std::int32_t next = next_token(history.tokens);
      made[id].push_back(next);
      if (std::ssize(made[id]) == jobs[std::size_t(id)].length)
        scheduler.end(id);
      else
        scheduler.append(id, next);
    }
  }
  preemptions = scheduler.preemptions();
  return made;
}

TEST(Scheduler, AnswersDoNotDependOnSizes) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<Job> jobs(1 + random() % 30);
    int longest = 0;
    for (Job& job : jobs) {
      job.prompt.resize(1 + random() % 20);
      for (std::int32_t& token : job.prompt) token = std::int32_t(random() % 64);
      job.length = 1 + int(random() % 25);
      longest = std::max(longest, int(job.prompt.size()) + job.length);
    }
    std::map<std::int64_t, std::vector<std::int32_t>> expected;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      std::vector<std::int32_t> all = jobs[i].prompt;
      for (int n = 0; n < jobs[i].length; ++n) all.push_back(next_token(all));
      expected[std::int64_t(i)].assign(all.end() - jobs[i].length, all.end());
    }
    const int block_tokens = 1 + int(random() % 7);
    const int needed = (longest + block_tokens - 1) / block_tokens;
    for (const int sequences : {1, 3, 8})
      for (const int blocks : {needed, 2 * needed, sequences * needed})
        for (const int tokens : {8, 9, 40}) {
          std::int64_t preemptions = 0;
          EXPECT_EQ(answers(jobs,
                            {.tokens = tokens,
                             .sequences = sequences,
                             .blocks = blocks,
                             .block_tokens = block_tokens},
                            needed, preemptions),
                    expected);
          EXPECT_TRUE(blocks < sequences * needed || preemptions == 0);
        }
  }
}

TEST(Scheduler, ASmallCacheIsPreempted) {
  const std::vector<Job> jobs(4, Job{{1, 2, 3}, 20});
  std::int64_t preemptions = 0;
  answers(jobs, {.tokens = 16, .sequences = 4, .blocks = 12, .block_tokens = 2}, 12, preemptions);
  EXPECT_GT(preemptions, 0);
}

TEST(Scheduler, RefusesACacheWithoutRoomForASequence) {
  EXPECT_THROW(Scheduler({.tokens = 8, .sequences = 1, .blocks = 3, .block_tokens = 4}, 4), Error);
}

// --- answers ------------------------------------------------------------------------------------

TEST(Answer, EndsBeforeAStopStringOverBordersOfTokens) {
  const std::vector<std::string> stops{"\n\nUser:", "END"};
  Answer answer(stops);
  EXPECT_FALSE(answer.add("Well.\n"));
  EXPECT_EQ(answer.settled(), 5u);  // the newline may begin a stop string
  EXPECT_FALSE(answer.add("\nUs"));
  EXPECT_EQ(answer.settled(), 5u);
  EXPECT_TRUE(answer.add("er: next"));
  EXPECT_EQ(answer.text(), "Well.");
  Answer both(stops);
  EXPECT_TRUE(both.add("aENDb\n\nUser:"));
  EXPECT_EQ(both.text(), "a");
}

TEST(Answer, HoldsCharactersBackThatAreNotWhole) {
  const std::vector<std::string> none;
  Answer answer(none);
  answer.add("a\xE2\x82");
  EXPECT_EQ(answer.settled(), 1u);
  answer.add("\xAC");
  EXPECT_EQ(answer.settled(), 4u);
  answer.add("\xF0\x9F\x98");
  EXPECT_EQ(answer.settled(), 4u);
  answer.add("\x80");
  EXPECT_EQ(answer.settled(), 8u);
}

}  // namespace
}  // namespace brume::generation
