#include "plan/messages.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "random_plan.hpp"

namespace brume::plan {
namespace {

/// Plans of two to four stages that differ in b, dp and tp, with odd cuts among them.
std::vector<Plan> mixed_plans() {
  std::mt19937 random(17);
  std::vector<Plan> plans;
  for (int i = 0; i < 200; ++i)
    plans.push_back(test::mixed_plan(random, test::random_model(random), 16));
  return plans;
}

const Stage& stage_of(const Plan& plan, int rank) {
  return plan.stages[std::size_t(stage_index(plan, rank))];
}

/// Tokens that a rank holds of a microbatch.
int shard_of(const Plan& plan, int rank, int seq_len) {
  const Stage& stage = stage_of(plan, rank);
  return stage.microbatch * seq_len / stage.tp;
}

/// Place within the microbatch of all data-parallel ranks.
int global_token(const Plan& plan, int rank, int seq_len, int token) {
  return place(plan, rank).index(model::all_axes) * shard_of(plan, rank, seq_len) + token;
}

/// Turns that messages take when all begin as early as the order of the list allows, and how many
/// the busiest rank has.
std::pair<int, int> turns_and_most(const std::vector<Message>& messages) {
  std::map<int, int> free, count;  // by rank
  int turns = 0, most = 0;
  for (const Message& m : messages) {
    const int turn = std::max(free[m.source], free[m.destination]);
    free[m.source] = free[m.destination] = turn + 1;
    turns = std::max(turns, turn + 1);
    most = std::max({most, ++count[m.source], ++count[m.destination]});
  }
  return {turns, most};
}

void expect_few_turns(const std::vector<Message>& messages) {
  const auto [turns, most] = turns_and_most(messages);
  EXPECT_LE(turns, std::max(0, 2 * most - 1));
}

constexpr int seq_len = 12;

/// Each token of each destination rank comes once, from the rank of the other stage that holds it.
void expect_each_token_once(const Plan& plan, int from, int to) {
  const std::vector<Message> messages = stream_messages(plan, from, to, seq_len);
  expect_few_turns(messages);
  std::set<std::pair<int, int>> reached;  // rank, its token
  for (const Message& m : messages) {
    EXPECT_EQ(stage_index(plan, m.source), from);
    EXPECT_EQ(stage_index(plan, m.destination), to);
    for (int i = 0; i < m.count; ++i) {
      const int mine = m.source_first + i, theirs = m.destination_first + i;
      ASSERT_TRUE(mine >= 0 && mine < shard_of(plan, m.source, seq_len));
      ASSERT_TRUE(theirs >= 0 && theirs < shard_of(plan, m.destination, seq_len));
      EXPECT_EQ(global_token(plan, m.source, seq_len, mine),
                global_token(plan, m.destination, seq_len, theirs));
      EXPECT_TRUE(reached.emplace(m.destination, theirs).second);
    }
  }
  const Stage& stage = plan.stages[std::size_t(to)];
  EXPECT_EQ(int(reached.size()), stage.dp * stage.microbatch * seq_len);
}

TEST(StreamMessages, BringEachTokenOnce) {
  for (const Plan& plan : mixed_plans())
    for (int i = 0; i + 1 < plan.num_stages(); ++i) {
      expect_each_token_once(plan, i, i + 1);
      expect_each_token_once(plan, i + 1, i);
    }
}

// Shards of 3 x 12 / 2 tokens.
TEST(StreamMessages, EqualStagesExchangeOneMessageARank) {
  std::mt19937 random(2);
  Plan plan = test::plan_of(random, {.num_layers = 4}, {{2, 2, 3}, {2, 2, 3}});
  const std::vector<Message> messages = stream_messages(plan, 0, 1, seq_len);
  ASSERT_EQ(messages.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const Message& m = messages[std::size_t(rank)];
    EXPECT_EQ(std::tie(m.source, m.source_first, m.destination_first, m.count),
              std::tuple(rank, 0, 0, 18));
    EXPECT_EQ(m.destination, 4 + rank);
  }
}

using Found = std::vector<std::tuple<int, int, int, int, int>>;

Found found(const Plan& plan, int from, int to) {
  Found all;
  for (const Message& m : stream_messages(plan, from, to, seq_len))
    all.emplace_back(m.source, m.destination, m.source_first, m.destination_first, m.count);
  return all;
}

// Microbatches of 72 tokens as 2 x 36 and as 3 x 24: ranks 0, 1 and 2, 3, 4, whether cut by dp or
// by tp.
TEST(StreamMessages, CutWhereEitherSideIsCut) {
  std::mt19937 random(2);
  const Found expected{{0, 2, 0, 0, 24}, {1, 3, 0, 12, 12}, {0, 3, 24, 0, 12}, {1, 4, 12, 0, 24}};
  EXPECT_EQ(found(test::plan_of(random, {.num_layers = 2}, {{2, 1, 3}, {3, 1, 2}}), 0, 1),
            expected);
  EXPECT_EQ(found(test::plan_of(random, {.num_layers = 2}, {{1, 2, 6}, {3, 1, 2}}), 0, 1),
            expected);
  EXPECT_EQ(found(test::plan_of(random, {.num_layers = 2}, {{2, 1, 3}, {1, 3, 6}}), 0, 1),
            expected);
}

// tp 2 to tp 4, ranks 0, 1 and 2 to 5: 6 tokens each are cut into 3 and 3, and joined again.
TEST(StreamMessages, TensorParallelRanksSendTheirShards) {
  std::mt19937 random(2);
  const Plan plan = test::plan_of(random, {.num_layers = 2}, {{1, 2, 1}, {1, 4, 1}});
  EXPECT_EQ(found(plan, 0, 1),
            (Found{{0, 2, 0, 0, 3}, {1, 4, 0, 0, 3}, {0, 3, 3, 0, 3}, {1, 5, 3, 0, 3}}));
  EXPECT_EQ(found(plan, 1, 0),
            (Found{{2, 0, 0, 0, 3}, {4, 1, 0, 0, 3}, {3, 0, 0, 3, 3}, {5, 1, 0, 3, 3}}));
}

/// Rows of the table that a rank holds: a vocabulary that few degrees divide.
constexpr int vocab = 29;
model::Cut rows_of(const Plan& plan, int rank) {
  return model::cut(vocab, stage_of(plan, rank).tp, place(plan, rank).at[Axis::tp]);
}

/// How often each row goes to what `key` makes of a message and the row.
template <typename Key>
auto count_rows(const Plan& plan, const std::vector<Message>& messages, Key key) {
  std::map<decltype(key(Message{}, 0)), int> count;
  expect_few_turns(messages);
  for (const Message& m : messages)
    for (int i = 0; i < m.count; ++i) {
      const std::int64_t row = rows_of(plan, m.source).first + m.source_first + i;
      EXPECT_EQ(row, rows_of(plan, m.destination).first + m.destination_first + i);
      EXPECT_LT(m.source_first + i, rows_of(plan, m.source).count);
      EXPECT_LT(m.destination_first + i, rows_of(plan, m.destination).count);
      ++count[key(m, int(row))];
    }
  for (const auto& [what, times] : count) EXPECT_EQ(times, 1);
  return count;
}

TEST(TiedMessages, EveryRankOfTheLastStageGetsItsRowsOnce) {
  for (const Plan& plan : mixed_plans()) {
    const std::vector<Message> messages = tied_weight_messages(plan, vocab);
    for (const Message& m : messages) {
      EXPECT_EQ(stage_index(plan, m.source), 0);
      EXPECT_EQ(stage_index(plan, m.destination), plan.num_stages() - 1);
    }
    const auto received = count_rows(
        plan, messages, [](const Message& m, int row) { return std::pair(m.destination, row); });
    EXPECT_EQ(int(received.size()), plan.stages.back().dp * vocab);
  }
}

// The sum over the first stage's dp then counts each data-parallel rank of the last stage once.
TEST(TiedMessages, EveryPartOfTheGradientComesHomeOnce) {
  for (const Plan& plan : mixed_plans()) {
    const std::vector<Message> messages = tied_gradient_messages(plan, vocab);
    for (const Message& m : messages) {
      EXPECT_EQ(stage_index(plan, m.source), plan.num_stages() - 1);
      EXPECT_EQ(stage_index(plan, m.destination), 0);
    }
    const auto counted = count_rows(plan, messages, [&](const Message& m, int row) {
      return std::pair(place(plan, m.source).index(model::data_axes), row);
    });
    EXPECT_EQ(int(counted.size()), plan.stages.back().dp * vocab);
  }
}

// Four ranks hold a quarter of the rows each; eight replicas hear from all of them.
TEST(TiedMessages, TakeNoMoreTurnsThanTheBusiestRankHasMessages) {
  std::mt19937 random(2);
  for (const auto& [tp, replicas] : {std::pair(4, 8), std::pair(2, 2), std::pair(8, 4)}) {
    const Plan plan =
        test::plan_of(random, {.num_layers = 2}, {{1, tp, replicas}, {replicas, 1, 1}});
    for (const auto& messages :
         {tied_weight_messages(plan, vocab), tied_gradient_messages(plan, vocab)}) {
      const auto [turns, most] = turns_and_most(messages);
      EXPECT_EQ(most, std::max(tp, replicas));
      EXPECT_EQ(turns, most);
    }
  }
}

// 7 rows over 2 ranks and over 3: 4 + 3 and 3 + 3 + 1.
TEST(TiedMessages, CutWhereEitherSideIsCut) {
  std::mt19937 random(2);
  const Plan plan = test::plan_of(random, {.num_layers = 2}, {{1, 2, 1}, {1, 3, 1}});
  std::vector<std::tuple<int, int, int, int, int>> found;
  for (const Message& m : tied_weight_messages(plan, 7))
    found.emplace_back(m.source, m.destination, m.source_first, m.destination_first, m.count);
  const std::vector<std::tuple<int, int, int, int, int>> expected{
      {0, 2, 0, 0, 3}, {1, 3, 0, 1, 2}, {0, 3, 3, 0, 1}, {1, 4, 2, 0, 1}};
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace brume::plan
