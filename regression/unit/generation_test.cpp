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

// Many draws are within four standard deviations of the chi-square distribution, and no token
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
    for (const int vocab : {30, 500, 5000}) {
      const std::vector<float> logits = random_logits(random, vocab);
      const std::vector<double> p = expected(logits, how);
      const int draws = vocab > 1000 ? 4'000 : 20'000;
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

/// A number for all tokens up to one.
std::uint32_t hash_behind(std::uint32_t before, std::int32_t token) {
  return before * 31 + std::uint32_t(token);
}
constexpr std::uint32_t hash_of_none = 17;

/// A cache that knows of which tokens, up to one, each of its places holds the key.
struct Cache {
  std::map<std::pair<int, int>, std::uint32_t> held;  ///< hashes, by block and place in it
};

/// The token that follows a history in this test's language.
std::int32_t next_token(std::span<const std::int32_t> tokens) {
  std::uint32_t hash = hash_of_none;
  for (const std::int32_t token : tokens) hash = hash_behind(hash, token);
  return std::int32_t(hash >> 20 & 63);
}

struct Job {
  std::vector<std::int32_t> prompt;
  int length;  ///< tokens of the answer
};

struct Counts {
  std::int64_t preemptions = 0, shared = 0, computed = 0;  ///< tokens but for the first
  int changes = 0;                                         ///< phases of prompts
};

/// Runs jobs and checks each pass. @return the answers, by id
std::map<std::int64_t, std::vector<std::int32_t>> answers(const std::vector<Job>& jobs,
                                                          const model::Generation& sizes,
                                                          int blocks_per_sequence, Counts& counts,
                                                          int prompt_blocks = 0) {
  Scheduler scheduler(sizes, blocks_per_sequence, prompt_blocks);
  Cache caches[2];  // of answers, and of phases of prompts
  std::map<std::int64_t, std::vector<std::int32_t>> made;
  std::vector<std::pair<std::int64_t, std::int32_t>> later;  // tokens at the end of such a phase
  const auto go_on = [&](std::int64_t id, std::int32_t token) {
    made[id].push_back(token);
    if (std::ssize(made[id]) == jobs[std::size_t(id)].length)
      scheduler.end(id);
    else
      scheduler.append(id, token);
  };
  std::size_t begun = 0;
  while (begun < jobs.size() || scheduler.open() > 0) {
    while (begun < jobs.size() && scheduler.room() > 0) {
      scheduler.add(std::int64_t(begun), jobs[begun].prompt);
      ++begun;
    }
    if (scheduler.wants_prompts()) scheduler.begin_prompts();
    const Scheduler::Pass pass = scheduler.next();
    const auto& tokens = pass.tokens.tokens;
    if (tokens.empty() && pass.prompts) {
      ++counts.changes;
      EXPECT_LE(std::ssize(pass.filled), prompt_blocks);
      for (int block = 0; block < std::ssize(pass.filled); ++block)
        for (int place = 0; place < sizes.block_tokens; ++place)
          caches[0].held[{pass.filled[std::size_t(block)], place}] = caches[1].held[{block, place}];
      for (const auto& [id, token] : later) go_on(id, token);
      later.clear();
      continue;
    }
    EXPECT_EQ(pass.prompts, scheduler.in_prompts());
    EXPECT_FALSE(tokens.empty());
    EXPECT_LE(std::ssize(tokens), sizes.tokens);
    EXPECT_EQ(std::size_t(pass.tokens.wanted), pass.wanted.size());
    if (tokens.empty()) break;
    const auto block_of = [&](int sequence, int place) {
      return pass.tokens
          .tables[std::size_t(sequence * blocks_per_sequence + place / sizes.block_tokens)];
    };
    const auto held_at = [&](int sequence, int place) -> std::uint32_t& {
      return caches[pass.prompts].held[{block_of(sequence, place), place % sizes.block_tokens}];
    };
    // Keys of a pass are written before they are read, those of any sequence for all.
    auto in_order = tokens;
    std::ranges::stable_sort(in_order, {}, &engine::GeneratorPass::Token::place);
    for (const auto& [token, sequence, place] : in_order) {
      EXPECT_TRUE(sequence >= 0 && sequence < sizes.sequences);
      held_at(sequence, place) =
          hash_behind(place == 0 ? hash_of_none : held_at(sequence, place - 1), token);
    }
    counts.computed += std::ssize(tokens);
    // A token sees the keys of all tokens before it in its sequence.
    for (std::size_t i = 0; i < pass.wanted.size(); ++i) {
      const std::int64_t id = pass.wanted[i];
      const History history = scheduler.history(id);
      const auto [token, sequence, place] = tokens[i];
      EXPECT_EQ(place + 1, std::ssize(history.tokens));
      EXPECT_EQ(history.prompt, std::ssize(jobs[std::size_t(id)].prompt));
      std::uint32_t hash = hash_of_none;
      for (int p = 0; p <= place; ++p) {
        hash = hash_behind(hash, history.tokens[std::size_t(p)]);
        EXPECT_EQ(held_at(sequence, p), hash);
      }
      const std::int32_t next = next_token(history.tokens);
      if (pass.prompts)
        later.emplace_back(id, next);
      else
        go_on(id, next);
    }
  }
  counts.preemptions = scheduler.preemptions();
  counts.shared = scheduler.shared_tokens();
  return made;
}

TEST(Scheduler, AnswersDoNotDependOnSizes) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<Job> jobs(1 + random() % 30);
    int longest = 0;
    for (Job& job : jobs) {
      job.prompt.resize(1 + random() % 20);
      // Some begin as others do.
      const int kinds = trial % 2 == 0 ? 64 : 1 + int(random() % 2);
      for (std::int32_t& token : job.prompt) token = std::int32_t(random() % unsigned(kinds));
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
        for (const int tokens : {8, 9, 40})
          for (const int prompt_blocks : {0, needed, blocks}) {
            Counts counts;
            EXPECT_EQ(answers(jobs,
                              {.tokens = tokens,
                               .sequences = sequences,
                               .blocks = blocks,
                               .block_tokens = block_tokens},
                              needed, counts, prompt_blocks),
                      expected);
            EXPECT_TRUE(blocks < sequences * needed || counts.preemptions == 0);
          }
  }
}

TEST(Scheduler, ASmallCacheIsPreempted) {
  const std::vector<Job> jobs(4, Job{{1, 2, 3}, 20});
  Counts counts;
  answers(jobs, {.tokens = 16, .sequences = 4, .blocks = 12, .block_tokens = 2}, 12, counts);
  EXPECT_GT(counts.preemptions, 0);
}

// Eight prompts fill the sequences; four more begin when four have ended, and so on. A small cache
// for prompts is filled several times in a row.
TEST(Scheduler, PhasesOfPromptsAreLong) {
  std::vector<Job> jobs;
  for (int i = 0; i < 16; ++i) jobs.push_back({{i, 2, 3, 4, 5, 6}, 4 + i % 8});
  const auto counts_of = [&](int blocks, int prompt_blocks) {
    Counts counts;
    answers(jobs, {.tokens = 16, .sequences = 8, .blocks = blocks, .block_tokens = 2}, 8, counts,
            prompt_blocks);
    return counts;
  };
  EXPECT_EQ(counts_of(64, 64).changes, 3);
  EXPECT_EQ(counts_of(64, 64).preemptions, 0);
  EXPECT_EQ(counts_of(64, 8).changes, 8);  // of two prompts each
  // Room for two answers alone: what is computed twice is computed in phases of prompts.
  EXPECT_GT(counts_of(16, 8).preemptions, 0);
}

TEST(Scheduler, EqualBeginningsAreComputedOnce) {
  // Five answers to a prompt of 11 tokens, in blocks of 4: the first one computes 8 tokens for all.
  std::vector<std::int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const std::vector<Job> jobs(5, Job{prompt, 1});
  for (const int sequences : {1, 5}) {
    Counts counts;
    answers(jobs, {.tokens = 64, .sequences = sequences, .blocks = 15, .block_tokens = 4}, 3,
            counts);
    EXPECT_EQ(counts.shared, 4 * 8);
    EXPECT_EQ(counts.computed, 11 + 4 * 3);
    answers(jobs, {.tokens = 64, .sequences = sequences, .blocks = 15, .block_tokens = 4}, 3,
            counts, 15);
    EXPECT_EQ(counts.shared, sequences == 1 ? 0 : 4 * 8);  // in one phase
  }
  // The last token is computed, whatever is there.
  prompt.resize(8);
  Counts counts;
  answers({{prompt, 1}, {prompt, 1}},
          {.tokens = 64, .sequences = 1, .blocks = 3, .block_tokens = 4}, 3, counts);
  EXPECT_EQ(counts.shared, 4);
  // An answer goes on with its question; another beginning has the same tokens elsewhere.
  const auto made = answers(
      {{prompt, 9}}, {.tokens = 64, .sequences = 1, .blocks = 6, .block_tokens = 4}, 5, counts);
  std::vector<std::int32_t> next = prompt;
  next.insert(next.end(), made.at(0).begin(), made.at(0).end());
  std::vector<std::int32_t> shifted(next.begin() + 4, next.end());
  answers({{prompt, 9}, {next, 1}, {shifted, 1}},
          {.tokens = 64, .sequences = 1, .blocks = 6, .block_tokens = 4}, 5, counts);
  EXPECT_EQ(counts.shared, 16);
}

// Keys that nobody uses go when others need their blocks, the oldest first.
TEST(Scheduler, UnusedKeysGiveWay) {
  const auto job = [](std::int32_t first) { return Job{{first, 1, 2, 3, 4, 5, 6, 7, 8}, 1}; };
  Counts counts;
  const model::Generation sizes{.tokens = 64, .sequences = 1, .blocks = 6, .block_tokens = 4};
  answers({job(1), job(2), job(1), job(2)}, sizes, 3, counts);
  EXPECT_EQ(counts.shared, 16);
  // Three have no room: one takes the second block of the first, and so on.
  answers({job(1), job(2), job(3), job(1), job(2), job(3)}, sizes, 3, counts);
  EXPECT_LT(counts.shared, 24);
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
