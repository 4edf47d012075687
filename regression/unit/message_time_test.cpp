#include <gtest/gtest.h>

#include <vector>

#include "analyzer/messages.hpp"
#include "planning_samples.hpp"

namespace brume::analyzer {
namespace {

/// A message takes 1 ms, and 1 ms a microbatch's stream of one sequence; ten times that where it
/// leaves its node.
hardware::Profile profile(const model::Config& model) {
  hardware::Profile profile = samples::round_profile(4);
  profile.task_overhead_s = 0.0;
  std::erase_if(profile.links,
                [](const hardware::LinkRow& row) { return row.kind == hardware::LinkKind::send; });
  const std::int64_t sequence_bytes = 4 * std::int64_t{model.seq_len} * model.hidden_size;
  for (std::int64_t sequences : {0, 1, 1024}) {
    const double time_s = 1e-3 * double(1 + sequences);
    profile.links.push_back({hardware::LinkKind::send, 1, 2, sequences * sequence_bytes, time_s});
    profile.links.push_back(
        {hardware::LinkKind::send, 2, 1, sequences * sequence_bytes, 10.0 * time_s});
  }
  return profile;
}

plan::Stage stage(int microbatch, int dp, int tp) {
  return {.layers = 1, .devices_per_node = dp * tp, .microbatch = microbatch, .dp = dp, .tp = tp};
}

price::Ends on_one_node(int, int) { return {}; }
price::Ends on_two_nodes(int, int) { return {.leaves_node = true}; }

class MessageTime : public testing::Test {
 protected:
  double ms(const plan::Stage& from, const plan::Stage& to, const EndsOf& ends) const {
    return 1e3 * stream_s(model_, machine_, from, to, ends);
  }
  model::Config model_ = samples::small_model(2);
  hardware::Machine machine_{profile(model_)};
};

// Each rank sends its shard to its like: b / tp sequences.
TEST_F(MessageTime, EqualMeshesExchangeTheirShards) {
  EXPECT_NEAR(ms(stage(2, 1, 1), stage(2, 1, 1), on_one_node), 1 + 2, 1e-9);
  EXPECT_NEAR(ms(stage(2, 4, 1), stage(2, 4, 1), on_one_node), 1 + 2, 1e-9);
  EXPECT_NEAR(ms(stage(2, 1, 4), stage(2, 1, 4), on_one_node), 1 + 0.5, 1e-9);
  EXPECT_NEAR(ms(stage(2, 1, 1), stage(2, 1, 1), on_two_nodes), 30, 1e-9);
}

// One rank sends to four, or receives from them, one after the other.
TEST_F(MessageTime, OneRankSendsToSeveralInTurn) {
  EXPECT_NEAR(ms(stage(4, 1, 1), stage(1, 4, 1), on_one_node), 4 * (1 + 1), 1e-9);
  EXPECT_NEAR(ms(stage(1, 4, 1), stage(4, 1, 1), on_one_node), 4 * (1 + 1), 1e-9);
  EXPECT_NEAR(ms(stage(4, 1, 1), stage(4, 1, 2), on_one_node), 2 * (1 + 2), 1e-9);
  // Two of them on another node.
  const EndsOf split = [](int, int to) { return price::Ends{.leaves_node = to >= 2}; };
  EXPECT_NEAR(ms(stage(4, 1, 1), stage(1, 4, 1), split), 2 * 2 + 2 * 20, 1e-9);
}

// Three ranks share what two bring: the second one hears from both.
TEST_F(MessageTime, OddCutsShareARank) {
  EXPECT_NEAR(ms(stage(3, 2, 1), stage(2, 3, 1), on_one_node),
              // The first sends 2 sequences and then 1, the second, beside it, 1 and then 2.
              (1 + 2) + (1 + 1), 1e-9);
}

// The table goes to each replica of the last stage's head, its gradient comes back from each.
TEST_F(MessageTime, ATiedTableGoesToEachReplica) {
  const double table = double(model_.vocab_size) / model_.seq_len;  // sequences' bytes
  const auto tied_ms = [&](const plan::Stage& first, const plan::Stage& last) {
    TiedTimes times = tied_s(model_, machine_, first, last, on_one_node);
    for (double* time : {&times.table_s, &times.gradient_s, &times.rest_s}) *time *= 1e3;
    return times;
  };
  const double add_ms =
      1e3 * 12.0 * double(model_.vocab_size) * model_.hidden_size / 1e10;  // 2 reads, 1 write
  const TiedTimes one = tied_ms(stage(1, 1, 1), stage(1, 1, 1));
  EXPECT_NEAR(one.table_s, 1 + table, 1e-9);
  EXPECT_NEAR(one.gradient_s, 1 + table, 1e-9);
  EXPECT_NEAR(one.rest_s, add_ms, 1e-6);
  // One rank serves four replicas in turn, and one of their gradients comes ahead; four ranks serve
  // one each.
  const TiedTimes four = tied_ms(stage(4, 1, 1), stage(1, 4, 1));
  EXPECT_NEAR(four.table_s, 4 * (1 + table), 1e-9);
  EXPECT_NEAR(four.gradient_s, 1 + table, 1e-9);
  EXPECT_NEAR(four.rest_s, 3 * (1 + table) + 2 * add_ms, 1e-6);
  EXPECT_NEAR(tied_ms(stage(1, 4, 1), stage(1, 4, 1)).table_s, 1 + table, 1e-9);
  EXPECT_NEAR(tied_ms(stage(1, 4, 1), stage(4, 1, 1)).table_s, 1 + table, 1e-9);
  // Of unlike tp each rank has a part of the rows, and one that has more of them hears from more.
  EXPECT_NEAR(tied_ms(stage(1, 1, 2), stage(1, 1, 1)).table_s, 2 * (1 + table / 2), 1e-9);
  EXPECT_NEAR(tied_ms(stage(1, 1, 2), stage(1, 1, 2)).table_s, 1 + table / 2, 1e-9);
  // Two replicas hear from two ranks, and each of these from one at a time.
  EXPECT_NEAR(tied_ms(stage(2, 1, 2), stage(1, 2, 1)).table_s, 2 * (1 + table / 2), 1e-9);
}

// Ranks fill nodes of four in order: stages of two ranks are on one node, the third one is not.
TEST_F(MessageTime, PlacesFollowFromThePlan) {
  plan::Plan plan{.microbatches = 2, .order = {.run_ahead = 2}, .stages = {}};
  for (int i = 0; i < 3; ++i) {
    plan.stages.push_back(stage(1, 2, 1));
    plan.stages.back().first_layer = i;
  }
  model_.tied_head = true;
  Pipeline pipeline{.stages = {}, .messages_s = {}, .tied = {}};
  MessageTimes(model_, machine_).add(plan, pipeline);
  ASSERT_EQ(pipeline.messages_s.size(), 2u);
  EXPECT_NEAR(pipeline.messages_s[0], 2e-3, 1e-12);
  EXPECT_NEAR(pipeline.messages_s[1], 20e-3, 1e-12);
  EXPECT_NEAR(pipeline.tied.table_s, 10e-3 * (1 + double(model_.vocab_size) / model_.seq_len),
              1e-12);
  ASSERT_EQ(pipeline.beside.size(), 3u);
  EXPECT_EQ(pipeline.beside[1].layers, 1);
  EXPECT_EQ(pipeline.beside[1].slowed, 0.1);  // by what round_profile() says of all groups
  EXPECT_EQ(pipeline.beside[1].slows, 0.2);
  EXPECT_EQ(pipeline.beside[1].before, 1.0);
}

// Three nodes of four ranks, a stage on each: messages take the links of the nodes that they are
// on.
TEST_F(MessageTime, SlowPairsOfNodesFollowTheOrder) {
  hardware::Profile slow = profile(model_);
  slow.slow_pairs = {{0, 1, 3.0}};
  const hardware::Machine machine(slow);
  MessageTimes times(model_, machine);
  plan::Plan plan{.microbatches = 2, .stages = std::vector(3, stage(1, 4, 1))};
  const auto messages_ms = [&](const std::vector<int>& order) {
    plan.node_order = order;
    Pipeline pipeline{.stages = {}, .messages_s = {}, .tied = {}};
    times.add(plan, pipeline);
    return std::pair(1e3 * pipeline.messages_s[0], 1e3 * pipeline.messages_s[1]);
  };
  EXPECT_EQ(messages_ms({}), std::pair(60.0, 20.0));
  EXPECT_EQ(messages_ms({2, 0, 1}), std::pair(20.0, 60.0));
  EXPECT_EQ(messages_ms({0, 2, 1}), std::pair(20.0, 20.0));
}

// Each of four ranks hears from the one before for a fourth of the message's time; those that are
// tensor-parallel wait for each other meanwhile.
TEST_F(MessageTime, ManyRanksTakePartForAPartOfTheTime) {
  model_.tied_head = false;
  const hardware::Machine larger(samples::round_profile(8));
  for (const int tp : {1, 2, 4}) {
    plan::Plan plan{.microbatches = 2, .stages = {stage(4, 1, 1), stage(tp, 4 / tp, tp)}};
    plan.stages[1].first_layer = 1;
    Pipeline pipeline{.stages = {}, .messages_s = {}, .tied = {}};
    MessageTimes(model_, larger).add(plan, pipeline);
    EXPECT_NEAR(pipeline.beside[0].after, 1.0, 1e-12);
    EXPECT_NEAR(pipeline.beside[1].before, 0.25 * tp, 1e-12);
    EXPECT_EQ(pipeline.tied.table_s, 0.0);
  }
}

}  // namespace
}  // namespace brume::analyzer
