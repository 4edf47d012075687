#include "analyzer/pipeline_time.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "plan/plan.hpp"

namespace brume::analyzer {
namespace {

PassTimes passes(double forward_s, double backward_s) {
  return {.forward_s = forward_s, .backward_s = backward_s};
}

/// Stages that send their messages in no time.
Pipeline pipeline(std::vector<PassTimes> stages, int microbatches, double message_s = 0.0) {
  const std::size_t boundaries = stages.empty() ? 0 : stages.size() - 1;
  return {.stages = std::move(stages),
          .messages_s = std::vector(boundaries, message_s),
          .tied = {},
          .microbatches = microbatches};
}

// --- passes -------------------------------------------------------------------------------------

// Equal stages take the textbook's time of 1F1B, (G - 1 + S) t.
TEST(PipelineTime, EqualStagesMatchTheTextbook) {
  for (int run_ahead : {1, 2})
    for (int stages : {1, 2, 4, 7})
      for (int microbatches : {1, 2, 3, 8, 20}) {
        Pipeline p = pipeline(std::vector(std::size_t(stages), passes(0.5, 1.0)), microbatches);
        p.order.run_ahead = run_ahead;
        EXPECT_NEAR(iteration_time(p), (microbatches - 1 + stages) * 1.5, 1e-12);
      }
}

// One stage does its microbatches one after the other, and what the first and the last one add.
TEST(PipelineTime, OneStageAddsUp) {
  const PassTimes stage{.start_s = 0.125,
                        .ahead_s = 5.0,
                        .first_s = 0.25,
                        .forward_s = 1.0,
                        .backward_s = 2.0,
                        .last_s = 0.5,
                        .end_s = 0.0625};
  EXPECT_NEAR(iteration_time(pipeline({stage}, 5)), 5 * 3.0 + 0.9375, 1e-12);
  EXPECT_NEAR(stage.delta_s(), 0.9375, 1e-12);
}

// Forwards end at 1 and 2 on stage 0. Stage 1 takes 3 forward and 3 backward: it ends at 1 + 2 * 6,
// and the last backward of stage 0 follows.
TEST(PipelineTime, TheSlowStageBinds) {
  EXPECT_NEAR(iteration_time(pipeline({passes(1.0, 2.0), passes(3.0, 3.0)}, 2)), 1 + 12 + 2, 1e-12);
}

// Here the first stage is the slow one: it is done with its second forward at 6, the second stage
// at 6 + 1 + 1, and its own backward follows.
TEST(PipelineTime, TheFirstStageMayBind) {
  EXPECT_NEAR(iteration_time(pipeline({passes(3.0, 1.0), passes(1.0, 1.0)}, 2)), 6 + 2 + 1, 1e-12);
}

// The second stage's updates are done before its first input comes: only what is left is seen.
TEST(PipelineTime, WaitingHidesUpdates) {
  const auto with = [](PassTimes second, double forward_s) {
    second.forward_s = second.backward_s = 1.0;
    return iteration_time(pipeline({passes(forward_s, 1.0), second}, 1));
  };
  EXPECT_NEAR(with({.start_s = 2.0}, 3.0), 3 + 2 + 1, 1e-12);
  EXPECT_NEAR(with({.start_s = 4.0}, 3.0), 4 + 2 + 1, 1e-12);
  // Of 3 s beside the first forward 2 s can be done ahead, and 1 s of waiting hides 1 s.
  EXPECT_NEAR(with({.start_s = 2.0, .ahead_s = 2.0, .first_s = 3.0}, 3.0), 3 + 2 + 2 + 1, 1e-12);
  EXPECT_NEAR(with({.start_s = 2.0, .ahead_s = 2.0, .first_s = 3.0}, 9.0), 9 + 1 + 2 + 1, 1e-12);
}

// What follows a stage's last backward hides behind the stages before it.
TEST(PipelineTime, EarlierStagesHideTheEnd) {
  const auto with = [](double end_s) {
    PassTimes last = passes(1.0, 1.0);
    last.end_s = end_s;
    return iteration_time(pipeline({passes(1.0, 2.0), last}, 1));
  };
  EXPECT_NEAR(with(1.5), 5.0, 1e-12);
  EXPECT_NEAR(with(2.5), 5.5, 1e-12);
}

// A message leaves before the tail of its pass, which the stage is still busy with.
TEST(PipelineTime, MessagesLeaveBeforeTheTail) {
  PassTimes first = passes(2.0, 1.0);
  first.first_tail_s = first.forward_tail_s = 0.5;
  const auto time_s = [&](int microbatches) {
    return iteration_time(pipeline({first, passes(1.0, 1.0)}, microbatches));
  };
  EXPECT_NEAR(time_s(1), 1.5 + 2 + 1, 1e-12);
  // The second forward ends at 4, its message leaves at 3.5, as the second stage is done with the
  // first microbatch.
  EXPECT_NEAR(time_s(2), 3.5 + 2 + 1, 1e-12);
}

// The first stage is done with its forward at 1 and waits until 1 + 4 for its gradient, of which it
// makes 0.75 s again meanwhile, or the 0.25 s that it makes again at all.
TEST(PipelineTime, WaitingHidesWhatIsMadeAgain) {
  const auto with = [](double recompute_ahead_s) {
    PassTimes first = passes(1.0, 2.0);
    first.recompute_ahead_s = recompute_ahead_s;
    return iteration_time(pipeline({first, passes(2.0, 2.0)}, 1));
  };
  EXPECT_NEAR(with(0.0), 1 + 4 + 2, 1e-12);
  EXPECT_NEAR(with(0.25), 1 + 4 + 1.75, 1e-12);
  EXPECT_NEAR(with(2.0), 1 + 4, 1e-12);
}

// Of two microbatches the first stage waits 0.5 s for the first one's gradient, which came before
// it had made all again, and not at all for the second one's.
TEST(PipelineTime, WhatIsMadeAgainTakesItsTimeWhereNobodyWaits) {
  PassTimes first = passes(1.0, 4.0);
  first.recompute_ahead_s = 1.0;
  EXPECT_NEAR(iteration_time(pipeline({first, passes(1.0, 0.5)}, 2)), 2 + 4 + 4, 1e-12);
}

// --- messages -----------------------------------------------------------------------------------

// One microbatch goes forward and back over S - 1 boundaries.
TEST(PipelineTime, OneMicrobatchPaysEachMessage) {
  const auto stages = std::vector(std::size_t{4}, passes(1.0, 2.0));
  EXPECT_NEAR(iteration_time(pipeline(stages, 1, 0.5)), 4 * 3.0 + 2 * 3 * 0.5, 1e-12);
}

// Two stages that do not run ahead: the first one waits for each microbatch's way to the second
// stage and back, less the forward that it does meanwhile.
TEST(PipelineTime, RoundTripsBindWhereMessagesAreSlow) {
  const int microbatches = 40;
  const double slow_s =
      iteration_time(pipeline(std::vector(std::size_t{2}, passes(1.0, 1.0)), microbatches, 2.0));
  // Of 2 microbatches at a time each needs 4 s of passes and 4 s of messages.
  EXPECT_NEAR(slow_s, microbatches / 2.0 * 8.0, 8.0);
}

// Where stages run further ahead, short messages hide: a microbatch more costs its passes alone.
// Long ones do not, since a stage sends on what it received before it receives more: it is at most
// two forwards ahead of the next stage, and at most two backwards behind it.
TEST(PipelineTime, RunningAheadHidesShortMessages) {
  const auto more_s = [](int run_ahead, double message_s) {
    const auto time_s = [&](int microbatches) {
      Pipeline p = pipeline(std::vector(std::size_t{4}, passes(1.0, 2.0)), microbatches, message_s);
      p.order.run_ahead = run_ahead;
      return iteration_time(p);
    };
    return (time_s(36) - time_s(24)) / 12.0;
  };
  EXPECT_NEAR(more_s(2, 0.5), 3.0, 1e-12);
  EXPECT_GT(more_s(1, 0.5), 3.5);
  // Six messages and two microbatches' passes in three microbatches' time.
  EXPECT_NEAR(more_s(2, 0.75), (6 * 0.75 + 2 * 3.0) / 3, 1e-12);
}

// While its message travels, for 3 s, the second stage's only pass would be a backward of 2 s:
// slowed by half, it takes 3 s. Nothing else runs beside a message here.
TEST(PipelineTime, MessagesSlowPasses) {
  Pipeline p = pipeline({passes(1.0, 1.0), passes(2.0, 2.0)}, 2, 3.0);
  const double alone_s = iteration_time(p);
  p.beside = {Beside{}, Beside{.slowed = 0.5}};
  const double slowed_s = iteration_time(p);
  p.beside = {Beside{}, Beside{.slowed = 0.5, .before = 0.0}};
  EXPECT_NEAR(iteration_time(p), alone_s, 1e-12);
  EXPECT_GT(slowed_s, alone_s);
  EXPECT_LE(slowed_s, alone_s + 0.5 * 2 * 4.0);
}

// Updates are copied beside the first forward for 1 s longer than its kernels take, so these have
// time to be slow while the table is on its way, until its share of that is more than 1 s.
TEST(PipelineTime, MessagesSlowNoCopiesOfUpdates) {
  PassTimes first = passes(1.0, 1.0);
  first.first_s = first.first_kernels_s = 1.0;
  Pipeline p = pipeline({first, passes(1.0, 1.0)}, 1);
  p.tied.table_s = 2.0;
  p.beside = {{.slowed = 1.0}, {}};
  EXPECT_NEAR(iteration_time(p), 2 + 1 + 1 + 1, 1e-12);
  p.beside[0].slowed = 1.5;
  EXPECT_NEAR(iteration_time(p), 2.4 + 1 + 1 + 1, 1e-12);
}

// The first stage computes its second forward while the first one's message is on its way: the
// message takes twice as long for the 4 s that this takes.
TEST(PipelineTime, PassesSlowMessages) {
  Pipeline p = pipeline({passes(4.0, 1.0), passes(8.0, 8.0)}, 2, 3.0);
  const double alone_s = iteration_time(p);
  p.beside = {Beside{.slows = 1.0}, Beside{}};
  // After 4 s 2 s of it are done, and 1 s is left.
  EXPECT_NEAR(iteration_time(p) - alone_s, 2.0, 1e-12);
}

// Ranks that do not run ahead receive while they pass over the layer before the input is needed.
TEST(PipelineTime, RoomForAMessageIsMadeOneLayerBefore) {
  // Stage 1 is at its backward of 8 s when the second forward's message could come.
  Pipeline p = pipeline({passes(1.0, 1.0), passes(4.0, 8.0)}, 2, 1.0);
  const double early_s = iteration_time(p);
  p.beside = {Beside{}, Beside{.layers = 8}};
  EXPECT_NEAR(iteration_time(p), early_s, 1e-12);  // 1 s a layer, as long as the message
  p.beside[1].layers = 16;
  EXPECT_NEAR(iteration_time(p), early_s + 0.5, 1e-12);
}

// The second microbatch's gradient comes while the first stage is at the first one's backward of
// 8 s, in whose last layer it would find no time.
TEST(PipelineTime, AGradientFindsRoomAtOnce) {
  Pipeline p = pipeline({passes(1.0, 8.0), passes(1.0, 1.0)}, 2, 2.0);
  p.beside = {Beside{.layers = 8}, Beside{}};
  EXPECT_NEAR(iteration_time(p), (1 + 2 + 1) + (1 + 2) + 8 + 8, 1e-12);
}

// The room is made while a stage passes over its first layer. That takes 1 s of this backward
// where others are recomputed or the head takes the rest, else a quarter of 8 s.
TEST(PipelineTime, TheLastLayerOfABackwardMayBeShort) {
  Pipeline p = pipeline({passes(1.0, 1.0), passes(4.0, 8.0)}, 2, 2.0);
  p.beside = {{}, {.layers = 4}};
  const double equal_s = iteration_time(p);
  p.stages[1].head_s = 4.0;
  EXPECT_NEAR(iteration_time(p), equal_s + 1, 1e-12);
  p.stages[1].head_s = 0.0;
  p.stages[1].recompute_ahead_s = 2.0;
  p.beside[1].recomputed = 2;
  EXPECT_NEAR(iteration_time(p), equal_s + 1, 1e-12);
  p.beside[1].recomputed = 4;
  EXPECT_NEAR(iteration_time(p), equal_s, 1e-12);
}

// --- a tied head --------------------------------------------------------------------------------

// The last stage's first pass reaches the head when the table is there; the table delays no input.
TEST(PipelineTime, TheFirstHeadWaitsForTheTable) {
  Pipeline p = pipeline({passes(1.0, 1.0), passes(1.0, 1.0)}, 1, 0.5);
  const double until_head_s = 1 + 0.5 + 0.75, head_s = 0.25, back_s = 1 + 0.5 + 1;
  p.beside = {{}, {.layers = 4}};
  p.tied.table_s = until_head_s;
  EXPECT_NEAR(iteration_time(p), until_head_s + head_s + back_s, 1e-12);
  p.tied.table_s = 4.0;
  EXPECT_NEAR(iteration_time(p), 4 + head_s + back_s, 1e-12);
  p.stages[0].start_s = p.stages[0].table_s = 0.25;
  EXPECT_NEAR(iteration_time(p), 4.25 + head_s + back_s, 1e-12);
  p.beside[1].layers = 1;
  EXPECT_NEAR(iteration_time(p), 4.25 + 1 + back_s, 1e-12);
}

// It leaves after 0.25 s, while the first layer is still updated, and is there after 4.25 s.
TEST(PipelineTime, TheTableWaitsForNoUpdateButItsOwn) {
  Pipeline p = pipeline({passes(1.0, 1.0), passes(1.0, 1.0)}, 1);
  p.tied.table_s = 4.0;
  p.stages[0].start_s = 2.0;
  p.stages[0].table_s = 0.25;
  EXPECT_NEAR(iteration_time(p), 4.25 + 3 * 1, 1e-12);
}

TEST(PipelineTime, LayersWaitForAStagedTableToLeave) {
  Pipeline p = pipeline({passes(1.0, 1.0), passes(1.0, 1.0)}, 1, 0.5);
  p.tied = {.table_s = 4.0, .table_staged = true};
  p.stages[0].start_s = p.stages[0].table_s = 0.25;
  EXPECT_NEAR(iteration_time(p), 4.25 + 1 + 0.5 + 2 + 0.5 + 1, 1e-12);
}

// The table takes 4 s, of which the first stage's forward runs at half its speed, and so does the
// last stage's, which the message delays to 2.5 s; its head waits.
TEST(PipelineTime, TheTableSlowsPasses) {
  Pipeline p = pipeline({passes(1.0, 1.0), passes(1.0, 1.0)}, 1, 0.5);
  p.tied.table_s = 4.0;
  for (PassTimes& stage : p.stages) stage.first_kernels_s = stage.forward_s;
  p.beside = {{.slowed = 1.0}, {.layers = 2, .slowed = 1.0}};
  EXPECT_NEAR(iteration_time(p), 4 + 0.5 + 1 + 0.5 + 1, 1e-12);
  p.tied.table_s = 2.0;
  EXPECT_NEAR(iteration_time(p), 2.5 + 1 + 1 + 0.5 + 1, 1e-12);
  p.tied.first = 0.0;
  EXPECT_NEAR(iteration_time(p), 1.5 + 0.75 + 0.5 + 1 + 0.5 + 1, 1e-12);
}

// The last stage's last backward begins at 2, with the head, the first one's ends at 4: meanwhile
// the gradient comes.
TEST(PipelineTime, TheTablesGradientComesBesideTheLastBackward) {
  Pipeline p = pipeline({passes(1.0, 1.0), passes(1.0, 1.0)}, 1);
  p.tied = {.gradient_s = 0.75, .rest_s = 0.25};
  p.stages[0].end_s = 0.5;
  p.stages[1].head_s = 0.5;
  EXPECT_NEAR(iteration_time(p), 4 + 0.25 + 0.5, 1e-12);
  p.tied.gradient_s = 3.0;
  EXPECT_NEAR(iteration_time(p), 2.5 + 3 + 0.25 + 0.5, 1e-12);
}

// Of two microbatches the last stage ends its backwards at 3 and 5, and the first one, which takes
// longer, its own at 5 and 7: before its last one it has no room for the gradient.
TEST(PipelineTime, TheTablesGradientWaitsForRoom) {
  Pipeline p = pipeline({passes(1.0, 2.0), passes(1.0, 1.0)}, 2);
  p.tied.gradient_s = 1.0;
  EXPECT_NEAR(iteration_time(p), 7, 1e-12);
  p.tied.gradient_s = 4.0;
  EXPECT_NEAR(iteration_time(p), 5 + 4, 1e-12);
}

// It leaves after 3 s and takes 3 s: the rest of the last stage's backward then takes twice as
// long, and of the first one's the part that is left until 6 s.
TEST(PipelineTime, TheTablesGradientSlowsPasses) {
  Pipeline p = pipeline({passes(1.0, 4.0), passes(1.0, 1.5)}, 1);
  p.stages[1].head_s = 1.0;
  p.tied.gradient_s = 3.0;
  p.beside = {{.slowed = 1.0}, {.slowed = 1.0}};
  EXPECT_NEAR(iteration_time(p), 4 + 2 + 3, 1e-12);
  p.tied.last = 0.0;
  EXPECT_NEAR(iteration_time(p), 3.5 + 2.5 + 2.75, 1e-12);
}

TEST(PipelineTime, OneStageSendsNoTable) {
  Pipeline p = pipeline({passes(1.0, 1.0)}, 1);
  p.tied = {.table_s = 5.0, .gradient_s = 5.0, .rest_s = 5.0};
  EXPECT_NEAR(iteration_time(p), 2.0, 1e-12);
}

// --- a naive twin -------------------------------------------------------------------------------

/// The same rules without interference: when each pass and message begins is raised to what it
/// waits for, over and over, until nothing changes.
class Twin {
 public:
  explicit Twin(const Pipeline& pipeline) : p_(pipeline), stages_(int(pipeline.stages.size())) {
    for (int i = 0; i < stages_; ++i) {
      const int ahead = p_.order.in_flight({stages_, p_.microbatches}, i);
      std::vector<std::pair<bool, int>> order;
      for (int m = 0; m < ahead; ++m) order.emplace_back(true, m);
      for (int m = ahead; m < p_.microbatches; ++m) {
        order.emplace_back(true, m);
        order.emplace_back(false, m - ahead);
      }
      for (int m = p_.microbatches - ahead; m < p_.microbatches; ++m) order.emplace_back(false, m);
      orders_.push_back(order);
    }
  }

  double iteration_s() {
    while (relax()) {
    }
    double end_s = 0.0;
    for (int i = 0; i < stages_; ++i)
      end_s = std::max(end_s, pass_end_s(i, false, p_.microbatches - 1));
    return end_s;
  }

 private:
  using Key = std::tuple<int, bool, int>;  // stage or boundary, forward, microbatch

  /// What is made again does not wait for the gradient.
  double pass_end_s(int i, bool forward, int m) {
    const PassTimes& t = p_.stages[std::size_t(i)];
    const double begin_s = pass_s_[{i, forward, m}];
    if (forward || i + 1 == stages_) return begin_s + (forward ? t.forward_s : t.backward_s);
    return std::max(begin_s + t.recompute_ahead_s, message_end_s(i, false, m)) + t.backward_s -
           t.recompute_ahead_s;
  }
  double message_end_s(int boundary, bool down, int m) {
    return message_s_[{boundary, down, m}] + p_.messages_s[std::size_t(boundary)];
  }
  bool runs_ahead() const { return p_.order.run_ahead > 1 && p_.microbatches > 2; }
  static bool raise(double& value, double least) {
    if (least <= value) return false;
    value = least;
    return true;
  }

  bool relax() {
    bool changed = false;
    for (int i = 0; i < stages_; ++i) {
      const auto& order = orders_[std::size_t(i)];
      for (std::size_t k = 0; k < order.size(); ++k) {
        const auto [forward, m] = order[k];
        double least_s = 0.0;
        if (k > 0) least_s = pass_end_s(i, order[k - 1].first, order[k - 1].second);
        if (runs_ahead() && p_.order.run_ahead == 2 && k > 1) {
          const auto [sent_forward, sent] = order[k - 2];
          if (sent_forward ? i + 1 < stages_ : i > 0)
            least_s =
                std::max(least_s, message_end_s(sent_forward ? i : i - 1, sent_forward, sent));
        }
        const bool needs = forward ? i > 0 : i + 1 < stages_;
        if (needs) {
          changed |= relax_message(i, forward, m, k);
          if (forward || p_.stages[std::size_t(i)].recompute_ahead_s == 0.0)
            least_s = std::max(least_s, message_end_s(forward ? i - 1 : i, forward, m));
        }
        changed |= raise(pass_s_[{i, forward, m}], least_s);
      }
    }
    return changed;
  }

  /// The message that the k-th pass of a stage needs.
  bool relax_message(int to, bool down, int m, std::size_t k) {
    const int boundary = down ? to - 1 : to, from = down ? to - 1 : to + 1;
    double least_s = pass_end_s(from, down, m);
    if (m > 0) {
      least_s = std::max(least_s, message_end_s(boundary, down, m - 1));
      const bool sends_on = down ? to + 1 < stages_ : to > 0;
      if (sends_on) least_s = std::max(least_s, message_end_s(down ? to : to - 1, down, m - 1));
      if (down && runs_ahead()) least_s = std::max(least_s, pass_end_s(to, true, m - 1));
    }
    if (down && k > 0 && (m == 0 || !runs_ahead())) {
      const auto [forward, before] = orders_[std::size_t(to)][k - 1];
      least_s = std::max(least_s, pass_s_[{to, forward, before}]);
    }
    return raise(message_s_[{boundary, down, m}], least_s);
  }

  const Pipeline& p_;
  int stages_;
  std::vector<std::vector<std::pair<bool, int>>> orders_;  // [stage] forward, microbatch
  std::map<Key, double> pass_s_, message_s_;               // when they begin
};

// Longer iterations repeat themselves, and what they repeat is left out.
TEST(PipelineTime, ANaiveTwinAgrees) {
  std::mt19937 random(1);
  const auto number = [&](int most) { return 0.25 * double(1 + random() % unsigned(most)); };
  for (int trial = 0; trial < 300; ++trial) {
    const unsigned most_microbatches = trial % 10 == 0 ? 40 : 9;
    Pipeline p = pipeline({}, 1 + int(random() % most_microbatches));
    p.order.run_ahead = 1 + int(random() % (most_microbatches > 9 ? 2 : 3));
    const std::size_t stages = 1 + random() % 6;
    for (std::size_t i = 0; i < stages; ++i) {
      p.stages.push_back(passes(number(8), number(16)));
      if (random() % 2 == 0)
        p.stages[i].recompute_ahead_s = std::min(number(8), p.stages[i].backward_s);
    }
    for (std::size_t i = 1; i < stages; ++i)
      p.messages_s.push_back(random() % 3 == 0 ? 0.0 : number(12));
    EXPECT_NEAR(iteration_time(p), Twin(p).iteration_s(), 1e-9) << trial;
  }
}

// (G + (S - 1) / v) (F + B) of all chunks of a rank, where they are equal.
TEST(PipelineTime, ChunksHaveTheirBubble) {
  for (const int size : {2, 3, 4, 8})
    for (const int chunks : {2, 3, 4})
      for (const int microbatches : {size, size + 1, 3 * size, 8 * size - 1})
        for (const int run_ahead : {1, 2}) {
          PassTimes passes;
          passes.forward_s = 1.0, passes.backward_s = 2.0;
          Pipeline p;
          p.stages.assign(std::size_t(size * chunks), passes);
          p.messages_s.assign(p.stages.size() - 1, 0.0);
          p.microbatches = microbatches;
          p.order.run_ahead = run_ahead;
          p.order.chunks = chunks;
          EXPECT_NEAR(iteration_time(p), 3.0 * (chunks * microbatches + size - 1), 1e-9)
              << size << " ranks, " << chunks << " chunks, " << microbatches;
        }
}

// G (F + B + W) + (S - 1) (F + B - W) of backwards in two parts, where stages are equal.
TEST(PipelineTime, SplitBackwardsHaveTheirBubble) {
  for (const int size : {2, 3, 4, 8})
    for (const int microbatches : {size, size + 1, 3 * size, 8 * size - 1}) {
      PassTimes passes;
      passes.forward_s = 1.0, passes.backward_s = 2.25;
      Pipeline p;
      p.stages.assign(std::size_t(size), passes);
      p.messages_s.assign(p.stages.size() - 1, 0.0);
      p.microbatches = microbatches;
      p.order.zero_bubble = 1;
      p.weights_s.assign(p.stages.size(), 0.75);
      EXPECT_NEAR(iteration_time(p), 3.25 * microbatches + 1.75 * (size - 1), 1e-9)
          << size << " ranks, " << microbatches;
    }
}

TEST(PipelineTime, AnEmptyPipelineIsABug) {
  EXPECT_THROW(iteration_time(pipeline({}, 1)), Error);
  EXPECT_THROW(iteration_time(pipeline({passes(1.0, 1.0)}, 0)), Error);
}

}  // namespace
}  // namespace brume::analyzer
