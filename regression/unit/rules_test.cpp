#include "plan/rules.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "random_plan.hpp"
#include "symbolic/expr.hpp"

namespace brume::plan {
namespace {

using symbolic::Expr;

const StateKnobs<Expr> variable_knobs{.shard_ranks = Expr::variable("shard_ranks"),
                                      .zero_level = Expr::variable("z"),
                                      .weight_offload_ratio = Expr::variable("w"),
                                      .grad_offload_ratio = Expr::variable("g"),
                                      .optim_offload_ratio = Expr::variable("o"),
                                      .optim_disk_ratio = Expr::variable("od"),
                                      .host_update_ratio = Expr::variable("oh")};

std::map<std::string, double, std::less<>> values_of(const StateKnobs<double>& knobs,
                                                     const Elements<double>& whole) {
  return {{"shard_ranks", knobs.shard_ranks},
          {"z", knobs.zero_level},
          {"w", knobs.weight_offload_ratio},
          {"g", knobs.grad_offload_ratio},
          {"o", knobs.optim_offload_ratio},
          {"od", knobs.optim_disk_ratio},
          {"oh", knobs.host_update_ratio},
          {"trained", whole.trained},
          {"frozen", whole.frozen}};
}

/// The parts in which the two instances must agree.
template <class N>
std::vector<N> parts(const KeptState<N>& s) {
  return {s.whole.trained, s.whole.frozen,        s.weights.trained,      s.weights.frozen,
          s.grads,         s.optimizer,           s.host_weights.trained, s.host_weights.frozen,
          s.host_grads,    s.offloaded_optimizer, s.disk_optimizer,       s.host_updated,
          s.grads_down,    s.weights_staged,      s.grads_staged};
}

TEST(Rules, ExpressionsAndNumbersAgree) {
  std::mt19937 random(1);
  const auto share = [&] { return test::pick(random, {0, 0, 1, 2, 3, 7, 10}) / 10.0; };
  const std::vector<Expr> expressions = parts(kept_state(
      variable_knobs, Elements<Expr>{Expr::variable("trained"), Expr::variable("frozen")}));
  for (int trial = 0; trial < 2000; ++trial) {
    const double ranks = test::pick(random, {1, 2, 3, 4, 6, 8});
    const double o = share(), od = o * share();
    const StateKnobs<double> knobs{.shard_ranks = ranks,
                                   .zero_level = double(test::pick(random, {0, 1, 2, 3})),
                                   .weight_offload_ratio = share(),
                                   .grad_offload_ratio = share(),
                                   .optim_offload_ratio = o,
                                   .optim_disk_ratio = od,
                                   .host_update_ratio = (o - od) * share()};
    const Elements<double> whole{16.0 * ranks * double(random() % 100000),
                                 16.0 * ranks * double(random() % 100000)};
    const std::vector<double> numbers = parts(kept_state(knobs, whole));
    for (std::size_t i = 0; i < numbers.size(); ++i)
      ASSERT_EQ(numbers[i], expressions[i].evaluate(values_of(knobs, whole))) << "part " << i;
  }
}

TEST(Rules, EachZeroLevelShardsOneKindMore) {
  for (int level = 0; level <= 3; ++level) {
    const Sharded<bool> of = sharded({.dp = 2, .zero_level = level});
    EXPECT_EQ(of.optimizer, level >= 1);
    EXPECT_EQ(of.grads, level >= 2);
    EXPECT_EQ(of.weights, level == 3);
  }
}

TEST(Rules, OneDataParallelRankShardsNothing) {
  const Sharded<bool> of = sharded({.dp = 1, .zero_level = 3});
  EXPECT_FALSE(of.optimizer || of.grads || of.weights);
}

// Half of 48 elements are 24, of which 16 fill a cache line.
TEST(Rules, OffloadedPartsAreWholeCacheLines) {
  EXPECT_EQ(offloaded_elements(0.5, 48.0), 16.0);
  EXPECT_EQ(offloaded_elements(1.0, 48.0), 48.0);
  EXPECT_EQ(offloaded_elements(0.3, 48.0), 0.0);
}

// 640 elements over 4 ranks at level 2: gradients and optimizer state are shards of 160. What is
// frozen beside them has weights alone, half of which are on the host.
TEST(Rules, StateOfABlockByHand) {
  const KeptState<double> s = kept_state(state_knobs({.dp = 4,
                                                      .zero_level = 2,
                                                      .weight_offload_ratio = 0.5,
                                                      .grad_offload_ratio = 0.5,
                                                      .optim_offload_ratio = 1.0,
                                                      .optim_disk_ratio = 0.35,
                                                      .host_update_ratio = 0.6}),
                                         Elements<double>{640.0, 64.0});
  const std::vector<double> by_hand{640, 64, 640, 64, 160, 160, 320, 32, 80, 160, 48, 96, 16, 1, 1};
  EXPECT_EQ(parts(s), by_hand);
}

// Of 640 elements over 4 ranks at level 1 the first shard has 160, whose last 64 the host steps; of
// the gradients of all 640 the last 480, 512 or 576 are on the host already.
TEST(Rules, GradientsThatAreOnTheHostDoNotGoDown) {
  const auto down = [](double on_host) {
    return kept_state(state_knobs({.dp = 4,
                                   .zero_level = 1,
                                   .grad_offload_ratio = on_host,
                                   .optim_offload_ratio = 0.5,
                                   .host_update_ratio = 0.4}),
                      Elements<double>{640.0, 0.0})
        .grads_down;
  };
  EXPECT_EQ(down(0.75), 64.0);
  EXPECT_EQ(down(0.8), 32.0);
  EXPECT_EQ(down(0.9), 0.0);
}

// 0.1 + 0.2 is a little more than 0.3: no element is both on disk and stepped on the host.
TEST(Rules, PartsStayWithinTheirShare) {
  const KeptState<double> s = kept_state(
      state_knobs({.optim_offload_ratio = 0.3, .optim_disk_ratio = 0.1, .host_update_ratio = 0.2}),
      Elements<double>{160.0, 0.0});
  EXPECT_LE(s.disk_optimizer + s.host_updated, s.offloaded_optimizer);
}

// Two replicas of the same block: each shard is twice as large.
TEST(Rules, AReplicaIsShardedOverItsOwnRanks) {
  const Stage stage{.dp = 4, .zero_level = 3, .replicas = 2};
  const KeptState<double> s = kept_state(state_knobs(stage), Elements<double>{640.0, 64.0});
  EXPECT_EQ(s.weights.trained, 320.0);
  EXPECT_EQ(s.weights.frozen, 32.0);
  EXPECT_EQ(s.grads, 320.0);
  EXPECT_EQ(s.optimizer, 320.0);
  EXPECT_FALSE(sharded({.dp = 4, .zero_level = 3, .replicas = 4}).optimizer);
}

// A share of less than a cache line stays where it is, so nothing has to be brought together.
TEST(Rules, AShareThatIsCutAwayStagesNothing) {
  const KeptState<double> s =
      kept_state(state_knobs({.weight_offload_ratio = 0.25}), Elements<double>{32.0, 32.0});
  EXPECT_EQ(s.host_weights.trained + s.host_weights.frozen, 0.0);
  EXPECT_EQ(s.weights_staged, 0.0);
}

std::vector<model::Kept> tensors_of(const std::vector<double>& bytes) {
  std::vector<model::Kept> kept;
  for (double b : bytes) kept.push_back({model::SegmentKind::mlp, -1, b * Expr::variable("b")});
  return kept;
}

TEST(Rules, OffloadMovesWholeTensorsWithinTheShare) {
  const auto kept = tensors_of({100, 60, 40});
  const auto moved = [&](double ratio) { return moved_tensors(kept, ratio, {.microbatch = 2}); };
  EXPECT_EQ(moved(0.0).count, 0);
  EXPECT_EQ(moved(0.5).count, 1);
  EXPECT_EQ(moved(0.79).count, 1);
  EXPECT_EQ(moved(0.8).count, 2);
  EXPECT_EQ(moved(0.8).bytes, 320.0);
  EXPECT_EQ(moved(1.0).count, 3);
}

// 0.7 - 0.4 is a little less than 0.3, and ten times that a little less than 3.
TEST(Rules, RoundingOfTheShareMovesTheTensorAllTheSame) {
  const double ratio = 0.7 - 0.4;
  ASSERT_LT(ratio * 10.0, 3.0);
  EXPECT_EQ(moved_tensors(tensors_of({3, 7}), ratio, {}).count, 1);
}

}  // namespace
}  // namespace brume::plan
