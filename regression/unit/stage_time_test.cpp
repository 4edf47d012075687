#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "planning_samples.hpp"
#include "random_plan.hpp"
#include "refusal.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "schedule/steady.hpp"
#include "trials.hpp"

namespace brume::analyzer {
namespace {

using model::SegmentKind;

constexpr double ms = 1e-3;

/// Every operator takes 1 ms forward and 2 ms backward, whatever b and tp; no overheads, no
/// slowdown.
hardware::Profile unit_profile(const model::Config& model) {
  hardware::Profile profile = samples::round_profile();
  profile.task_overhead_s = 0.0;
  profile.waits.clear();
  profile.interference.assign(16, 0.0);
  for (SegmentKind kind : model::segment_kinds(model))
    for (int b : {1, 2})
      for (const auto& [tp, tiles] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
        const model::Split split{.tp = tp, .microbatch = b, .mlp_tiles = tiles};
        for (const model::Operator& op : model::segment(model, kind, split.division()).operators) {
          hardware::OperatorRow row{model::name(op.kind), {}, 1 * ms, 2 * ms};
          for (const Expr& dim : op.dims)
            row.dims.push_back(std::llround(dim.evaluate(split.values())));
          profile.operators.push_back(row);
        }
      }
  return profile;
}

plan::Plan one_stage(int layers) {
  plan::Plan plan{.global_batch = 4, .microbatches = 4, .stages = {}};
  plan.stages.push_back({.layers = layers, .devices_per_node = 1});
  return plan;
}

/// Stages of so many layers on these groups.
plan::Plan on_groups(const std::vector<std::string>& groups, int layers = 1) {
  plan::Plan plan{.global_batch = 6, .microbatches = 6, .stages = {}};
  for (const std::string& group : groups)
    plan.stages.push_back({.first_layer = layers * plan.num_stages(),
                           .layers = layers,
                           .devices_per_node = 1,
                           .group = group});
  return plan;
}

PassTimes times(const plan::Plan& plan, const model::Config& model,
                const hardware::Profile& profile) {
  return analyze(plan, model, profile).stages[0].time;
}

std::int64_t elements(const model::Config& model, std::size_t block) {
  return model::layout(model::blocks(model)[block], 1, 0, 1).elements;
}

// Operators: embedding 1, attention 6, MLP 5, head and loss 3; each 1 + 2 ms.
TEST(StageTime, StableAddsUpOperators) {
  const model::Config model = samples::small_model(2);
  const double stable_s = times(one_stage(2), model, unit_profile(model)).stable_s();
  EXPECT_NEAR(stable_s, (1 + 2 * 11 + 3) * 3 * ms, 1e-12);
}

// Again attention (6) and the MLP without its last product (4).
TEST(StageTime, RecomputationAddsAForwardWithoutItsLastProduct) {
  const model::Config model = samples::small_model(2);
  plan::Plan plan = one_stage(2);
  const double without_s = times(plan, model, unit_profile(model)).stable_s();
  plan.stages[0].ckpt_layers = 2;
  EXPECT_NEAR(times(plan, model, unit_profile(model)).stable_s() - without_s, 2 * 10 * ms, 1e-12);
}

// Each of two tiles has all five operators of the MLP in both passes, and makes four again. A layer
// without recomputation saves only attention's norm; full recomputation adds only attention.
TEST(StageTime, TilesOfTheMlpAreMadeAgain) {
  const model::Config model = samples::small_model(2);
  plan::Plan plan = one_stage(2);
  const double whole_s = times(plan, model, unit_profile(model)).stable_s();
  plan.stages[0].mlp_tiles = 2;
  for (const int stored : {0, 2}) {
    plan.stages[0].stored_layers = stored;
    EXPECT_NEAR(times(plan, model, unit_profile(model)).stable_s() - whole_s,
                (2 * (5 * 3 + 2 * 4) - stored) * ms, 1e-12);
  }
  plan.stages[0].stored_layers = 0, plan.stages[0].ckpt_layers = 2;
  EXPECT_NEAR(times(plan, model, unit_profile(model)).stable_s() - whole_s,
              2 * (5 * 3 + 2 * 4 + 6) * ms, 1e-12);
}

// In both passes a reduce-scatter and an all-gather of the stream between any two of embedding,
// four segments and head; inputs are gathered for the backward unseen. Three numbers a token and
// rank are gathered for the loss. Segments add the stream to sums. A backward makes four norms
// again, three of them beside gathers of gradients.
TEST(StageTime, TensorParallelismPaysForItsStream) {
  const model::Config model = samples::small_model(2);
  const hardware::Profile profile = unit_profile(model);
  plan::Plan plan = one_stage(2);
  const double alone_s = times(plan, model, profile).stable_s();
  plan.stages[0].tp = plan.stages[0].devices_per_node = 2;
  const double gather_s =
      hardware::link_time(profile, hardware::LinkKind::all_gather, 1, 2, 4.0 * 64 * 64);
  const double both_s = gather_s + hardware::link_time(profile, hardware::LinkKind::reduce_scatter,
                                                       1, 2, 4.0 * 64 * 64);
  const double statistics_s =
      hardware::link_time(profile, hardware::LinkKind::all_gather, 1, 2, 2 * 3 * 4.0 * 64);
  EXPECT_NEAR(times(plan, model, profile).stable_s() - alone_s,
              5 * 2 * both_s + statistics_s + 4 * ms - 3 * gather_s, 1e-12);
}

// Ranks of a tensor-parallel group meet after each segment; those of other groups do not.
TEST(StageTime, TensorParallelismWaitsForTheSlowestRank) {
  const model::Config model = samples::small_model(2);
  hardware::Profile profile = unit_profile(model);
  plan::Plan plan = one_stage(2);
  plan.stages[0].dp = plan.stages[0].devices_per_node = 2;
  const double alone_s = times(plan, model, profile).stable_s();
  std::swap(plan.stages[0].dp, plan.stages[0].tp);
  const double together_s = times(plan, model, profile).stable_s();
  profile.waits = {{2, 0.05}};
  EXPECT_NEAR(times(plan, model, profile).stable_s() - together_s, 0.05 * (26 * 3 + 4) * ms, 1e-9);
  std::swap(plan.stages[0].dp, plan.stages[0].tp);
  EXPECT_EQ(times(plan, model, profile).stable_s(), alone_s);
}

// One rank: what the first and last microbatch add is the update, the norm and clearing the tables.
TEST(StageTime, DeltaOfOneRankIsItsUpdate) {
  const model::Config model = samples::small_model(1);
  const hardware::Profile profile = unit_profile(model);
  const double table = double(elements(model, 0));
  const double all = table + double(elements(model, 1) + elements(model, 2));
  const double expected_s = all * (16.0 / profile.flops_per_s + 28.0 / profile.bytes_per_s) +
                            4.0 * all / profile.bytes_per_s + 12.0 * table / profile.bytes_per_s;
  EXPECT_NEAR(times(one_stage(1), model, profile).delta_s(), expected_s, 1e-12);
}

// Every reduction but the embedding's hides behind computation that takes longer.
TEST(StageTime, OnlyTheLastReductionIsExposed) {
  const model::Config model = samples::small_model(2);
  const hardware::Profile profile = unit_profile(model);
  plan::Plan plan = one_stage(2);
  const double alone_s = times(plan, model, profile).delta_s();
  plan.stages[0].dp = plan.stages[0].devices_per_node = 2;
  const auto all_reduce_s = [&](double bytes) {
    return hardware::link_time(profile, hardware::LinkKind::all_reduce, 1, 2, bytes);
  };
  const double all = double(elements(model, 0) + 2 * elements(model, 1) + elements(model, 3));
  const double norm_halved_s = 0.5 * 4.0 * all / profile.bytes_per_s;
  EXPECT_NEAR(times(plan, model, profile).delta_s() - alone_s,
              all_reduce_s(4.0 * double(elements(model, 0))) + all_reduce_s(16.0) - norm_halved_s,
              1e-9);
}

// Weights on the host come in beside the pass before their own: not seen where passes take longer,
// all that is seen where nothing else takes time. Of 2 layers and the head the backward and forward
// bring in 2 each and 1; the embedding's come once, and for the tied head again.
TEST(StageTime, WeightsOnTheHostHideBehindComputation) {
  const model::Config model = samples::small_model(2);
  hardware::Profile profile = unit_profile(model);
  plan::Plan plan = one_stage(2);
  const double alone_s = times(plan, model, profile).stable_s();
  plan.stages[0].weight_offload_ratio = 1.0;
  EXPECT_NEAR(times(plan, model, profile).stable_s(), alone_s, 1e-12);

  for (hardware::OperatorRow& row : profile.operators) row.forward_s = row.backward_s = 0.0;
  const auto copy_in_s = [&](std::size_t block) {
    return hardware::copy_time(profile, hardware::CopyKind::copy_in,
                               4.0 * double(elements(model, block)));
  };
  EXPECT_NEAR(times(plan, model, profile).stable_s(),
              4.0 * copy_in_s(1) + copy_in_s(3) + 2.0 * copy_in_s(0), 1e-12);
}

// From level 2 on each microbatch reduces its gradients; level 3 also gathers weights, for both
// passes but at the turn to the backward, where the head's are there.
TEST(StageTime, ShardedStateIsExchangedInEachMicrobatch) {
  const model::Config model = samples::small_model(2);
  hardware::Profile profile = unit_profile(model);
  for (hardware::OperatorRow& row : profile.operators) row.forward_s = row.backward_s = 0.0;
  profile.bytes_per_s = 1e30;
  plan::Plan plan = one_stage(2);
  plan.stages[0].dp = plan.stages[0].devices_per_node = 2;
  const auto exchange_s = [&](hardware::LinkKind kind, std::size_t block) {
    return hardware::link_time(profile, kind, 1, 2, 4.0 * double(elements(model, block)));
  };
  const double reductions_s = exchange_s(hardware::LinkKind::reduce_scatter, 0) +
                              2.0 * exchange_s(hardware::LinkKind::reduce_scatter, 1) +
                              exchange_s(hardware::LinkKind::reduce_scatter, 3);
  const double gathers_s = 2.0 * exchange_s(hardware::LinkKind::all_gather, 0) +
                           4.0 * exchange_s(hardware::LinkKind::all_gather, 1) +
                           exchange_s(hardware::LinkKind::all_gather, 3);
  plan.stages[0].zero_level = 1;
  EXPECT_NEAR(times(plan, model, profile).stable_s(), 0.0, 1e-12);
  plan.stages[0].zero_level = 2;
  EXPECT_NEAR(times(plan, model, profile).stable_s(), reductions_s, 1e-12);
  plan.stages[0].zero_level = 3;
  EXPECT_NEAR(times(plan, model, profile).stable_s(), reductions_s + gathers_s, 1e-12);
}

// Two replicas on two nodes: what is exchanged in each microbatch stays within a node, and the last
// reduction of shards between the nodes is exposed behind it.
TEST(StageTime, ReplicasMeetOnceAnIteration) {
  const model::Config model = samples::small_model(2);
  hardware::Profile profile = unit_profile(model);
  for (hardware::OperatorRow& row : profile.operators) row.forward_s = row.backward_s = 0.0;
  profile.bytes_per_s = 1e30;
  for (const auto kind : {hardware::LinkKind::all_reduce, hardware::LinkKind::reduce_scatter,
                          hardware::LinkKind::all_gather})  // ten times slower
    for (std::int64_t bytes : {1000, 1000000})
      for (const auto& [nodes, per_node] : {std::pair{2, 2}, std::pair{2, 1}})
        profile.links.push_back({kind, nodes, per_node, bytes,
                                 10.0 * hardware::link_time(profile, kind, 1, 2, double(bytes))});
  plan::Plan plan = one_stage(2);
  plan.stages[0].nodes = plan.stages[0].devices_per_node = 2;
  plan.stages[0].dp = 4;
  plan.stages[0].zero_level = 2;
  plan.stages[0].replicas = 2;
  const auto moved_s = [&](hardware::LinkKind kind, int nodes, int per_node, double share,
                           int block) {
    const model::Layout layout = model::layout(model::blocks(model)[std::size_t(block)], 1, 0, 4);
    return hardware::link_time(profile, kind, nodes, per_node,
                               share * 4.0 * double(layout.elements));
  };
  const auto scattered_s = [&](int block) {
    return moved_s(hardware::LinkKind::reduce_scatter, 1, 2, 1.0, block);
  };
  const auto summed_s = [&](int block) {
    return moved_s(hardware::LinkKind::all_reduce, 2, 1, 0.5, block);
  };
  const PassTimes time = times(plan, model, profile);
  EXPECT_NEAR(time.stable_s(), scattered_s(0) + 2.0 * scattered_s(1) + scattered_s(3), 1e-12);
  EXPECT_NEAR(time.last_s, 2.0 * summed_s(1) + summed_s(3), 1e-12);
  EXPECT_GE(time.end_s, summed_s(0));  // nothing comes after the embedding's
}

TEST(StageTime, TermsAddUpToTheirSums) {
  const model::Config model = samples::small_model();
  std::mt19937 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    const plan::Plan plan = samples::random_plan(random, 4);
    for (int i = 0; i < plan.num_stages(); ++i) {
      const StageExpressions stage = stage_expressions(
          model, samples::round_profile(), role_of(plan, i, model, samples::round_profile()));
      const auto values = bindings(plan, i);
      for (std::size_t part = 0; part < PassTimes::num_parts; ++part) {
        double sum_s = 0.0;
        for (const Term& term : stage.terms.*TimeTerms::parts()[part].time)
          sum_s += term.value.evaluate(values);
        EXPECT_NEAR((stage.time.*TimeExpressions::parts()[part].time).evaluate(values), sum_s,
                    1e-12);
      }
    }
  }
}

TEST(StageTime, ExplainNamesWhatBinds) {
  const model::Config model = samples::small_model(2);
  const std::string text = explain(one_stage(2), model, unit_profile(model),
                                   hardware::NodeGroup{.memory_bytes = 1 << 30});
  EXPECT_NE(text.find("binds: the backward of the layers of stage 0"), std::string::npos) << text;
}

// Forwards of layers with an MLP and of layers with experts have unlike numbers of operators.
TEST(StageTime, KnowsTheFirstLayersWithoutExperts) {
  model::Config model = samples::small_llama(6, 4);
  model.num_experts = 4, model.experts_per_token = 2, model.expert_ffn_size = model.ffn_size / 2;
  model.tied_head = false;
  const plan::Plan plan = on_groups({"", ""}, 3);
  for (const int dense : {0, 1, 2, 3, 4}) {
    model.first_dense_layers = dense;
    const hardware::Profile profile = unit_profile(model);
    const std::vector<model::Block> blocks = model::blocks(model);
    for (int stage = 0; stage < 2; ++stage) {
      const PassTimes found = analyze(plan, model, profile).stages[std::size_t(stage)].time;
      const plan::BlockRange range = plan::block_range(plan, stage);
      PassTimes expected{};
      for (int i = range.first; i <= range.last; ++i) {
        const model::Block& block = blocks[std::size_t(i)];
        const auto layer = model.layer_kind(std::max(block.layer, 0));
        for (const SegmentKind kind : model::segment_kinds(model, block.kind, layer)) {
          const auto seconds = [&](price::Pass pass) {
            return price::segment_s(model, profile, kind, pass, plan.stages[0].split());
          };
          expected.forward_s += seconds(price::Pass::forward);
          expected.backward_s += seconds(price::Pass::backward);
        }
      }
      EXPECT_NEAR(found.forward_s, expected.forward_s, 1e-12) << dense;
      EXPECT_NEAR(found.backward_s, expected.backward_s, 1e-12) << dense;
    }
  }
}

// Each line has a share and a formula; the shares are 95 % of the time or more, without the last
// one less.
TEST(StageTime, ExplainSaysTheFormulasThatMatter) {
  const model::Config model = samples::small_model(2);
  plan::Plan plan = one_stage(2);
  for (const int microbatches : {1, 3, 40}) {
    plan.global_batch = plan.global_batch / plan.microbatches * microbatches;
    plan.microbatches = microbatches;
    std::istringstream lines(
        explain(plan, model, unit_profile(model), hardware::NodeGroup{.memory_bytes = 1 << 30}));
    double sum = 0.0, last = 100.0;
    bool here = false;
    for (std::string line; std::getline(lines, line);) {
      if (here && !line.starts_with("  ")) break;
      if (here && !line.starts_with("    ")) {  // else it goes on
        const double share = std::stod(line);
        EXPECT_LT(sum, 95.0) << line;
        EXPECT_LE(share, last + 0.05) << line;
        EXPECT_NE(line.find(" = "), std::string::npos) << line;
        EXPECT_EQ(line.find("(0)"), std::string::npos) << line;
        EXPECT_LT(line.size(), 600u) << line;
        sum += share, last = share;
      }
      here = here || line.starts_with("terms of 95 %");
    }
    EXPECT_GE(sum, 94.9);
    EXPECT_LE(sum, 100.1);
  }
}

// The last reduction but one runs beside the last pass over a layer; what is left of it when that
// is done is the tail, for what the pass makes can leave by then.
TEST(StageTime, TheTailIsWhatTransfersTakeBeyondCompute) {
  const model::Config model = samples::small_model(4);
  hardware::Profile profile = unit_profile(model);
  plan::Plan plan = on_groups({"", ""}, 2);
  for (plan::Stage& stage : plan.stages) stage.dp = stage.devices_per_node = 2;
  const auto tail_s = [&] { return analyze(plan, model, profile).stages[1].time.last_tail_s; };
  EXPECT_NEAR(tail_s(), 0.0, 1e-12);
  for (hardware::OperatorRow& row : profile.operators) row.forward_s = row.backward_s = 0.0;
  profile.bytes_per_s = 1e30;
  EXPECT_NEAR(tail_s(),
              hardware::link_time(profile, hardware::LinkKind::all_reduce, 1, 2,
                                  4.0 * double(elements(model, 1))),
              1e-12);
}

// --- against the event simulation ----------------------------------------------------------------

/// Predicted over simulated iteration time.
double ratio(const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine) {
  return analyze(plan, model, machine).iteration_s /
         schedule::simulate(schedule::compile_all(plan, model), plan, model, machine).iteration_s;
}

// A microbatch's gradients are reduced in far more time than they are computed or added up in: each
// sum runs beside the next reduction.
TEST(StageTime, SumsOfGradientsRunBesideTheNextReduction) {
  const model::Config model = samples::small_model(8);
  hardware::Profile profile = unit_profile(model);
  for (hardware::OperatorRow& row : profile.operators) row.forward_s = row.backward_s = 0.0;
  plan::Plan plan = one_stage(8);
  plan.stages[0].dp = plan.stages[0].devices_per_node = 2;
  plan.stages[0].zero_level = 2;
  const double bytes = 4.0 * double(elements(model, 1));
  // Of three passes over its bytes, a sum takes a third of a reduction.
  profile.bytes_per_s =
      9.0 * bytes / hardware::link_time(profile, hardware::LinkKind::reduce_scatter, 1, 2, bytes);
  const auto simulated_s = [&](int microbatches) {
    plan.microbatches = microbatches, plan.global_batch = 2 * microbatches;
    return schedule::simulate(schedule::compile_all(plan, model), plan, model, profile).iteration_s;
  };
  const double added_s = (simulated_s(12) - simulated_s(8)) / 4.0;
  EXPECT_NEAR(times(plan, model, profile).stable_s() / added_s, 1.0, 0.03);
}

// --- groups --------------------------------------------------------------------------------------

const hardware::Cluster two_kinds = std::vector<hardware::NodeGroup>{{.name = "a"}, {.name = "b"}};

/// Group "b" computes at `speed` of "a"; a message between them takes one second and its bytes.
hardware::Machine two_groups(double speed, double latency_s = 1.0) {
  hardware::Profile a = samples::round_profile(1), b = a;
  b.flops_per_s *= speed;
  b.bytes_per_s *= speed;
  return hardware::Machine(two_kinds, {a, b},
                           {{.between = {"a", "b"}, .gib_per_s = 1e3, .latency_s = latency_s}});
}

// A message between groups takes a second, and no stage's passes count it.
TEST(StageTime, MessagesBetweenGroupsTakeTheirLink) {
  const model::Config model = samples::small_model(4, false);
  const plan::Plan mixed = on_groups({"a", "b", "b", "a"}), alone = on_groups({"a", "a", "a", "a"});
  const hardware::Machine machine = two_groups(1.0);
  const Prediction of_mixed = analyze(mixed, model, machine),
                   of_alone = analyze(alone, model, machine);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(of_mixed.messages_s[i] - of_alone.messages_s[i], i == 1 ? 0.0 : 1.0, 1e-3);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(of_mixed.stages[i].time.stable_s(), of_alone.stages[i].time.stable_s());
}

// The table of a tied head comes over the link too, when the ends lie on different groups.
TEST(StageTime, ATiedTableTakesTheLinkOfTheEnds) {
  const model::Config model = samples::small_model(3, true);
  const hardware::Machine machine = two_groups(1.0);
  const auto tied = [&](const std::vector<std::string>& groups) {
    return analyze(on_groups(groups), model, machine).tied;
  };
  const TiedTimes apart = tied({"a", "a", "b"}), together = tied({"b", "a", "b"});
  EXPECT_NEAR(apart.table_s - together.table_s, 1.0, 1e-3);
  EXPECT_NEAR(apart.gradient_s - together.gradient_s, 1.0, 1e-3);
}

// In 1F1B every microbatch waits for messages, with stages further ahead only the first and the
// last do; in the formula and in the simulation.
TEST(StageTime, MessagesHideWhereStagesRunAhead) {
  const model::Config model = samples::small_model(4, false);
  hardware::Profile profile = samples::round_profile(8);
  profile.interference.assign(profile.interference.size(), 0.0);
  plan::Plan plan = on_groups({"", "", "", ""});
  const double message_s = 7e-4;
  for (hardware::LinkRow& row : profile.links)
    if (row.kind == hardware::LinkKind::send) row.time_s = message_s;
  const auto more_s = [&](int run_ahead) {
    plan.order.run_ahead = run_ahead;
    const auto predicted_s = [&](int microbatches) {
      plan.global_batch = plan.microbatches = microbatches;
      EXPECT_NEAR(ratio(plan, model, profile), 1.0, 0.02) << run_ahead;
      return analyze(plan, model, profile).iteration_s;
    };
    return (predicted_s(24) - predicted_s(12)) / 12.0;
  };
  double slowest_s = 0.0;
  for (const StagePrediction& stage : analyze(plan, model, profile).stages)
    slowest_s = std::max(slowest_s, stage.time.stable_s());
  EXPECT_NEAR(more_s(2), slowest_s, 1e-2 * slowest_s);
  EXPECT_GT(more_s(1), slowest_s + 0.2 * message_s);
}

// Each stage takes its own group's profile, in the expressions and in the simulation.
TEST(StageTime, StagesOfSlowGroupsTakeLonger) {
  const model::Config model = samples::small_model(3, true);
  const hardware::Machine machine = two_groups(0.25, 1e-5);
  const auto iteration_s = [&](const std::vector<std::string>& groups) {
    return analyze(on_groups(groups), model, machine).iteration_s;
  };
  EXPECT_GT(iteration_s({"b", "b", "b"}), 3.0 * iteration_s({"a", "a", "a"}));
  for (const auto& groups : std::vector<std::vector<std::string>>{
           {"a", "a", "b"}, {"b", "a", "a"}, {"a", "b", "a"}, {"b", "a", "b"}})
    EXPECT_NEAR(ratio(on_groups(groups), model, machine), 1.0, 0.1);
}

/// Compute `times` faster, so that transfers matter more.
hardware::Profile faster(double times) {
  hardware::Profile profile = samples::round_profile(64);
  profile.flops_per_s *= times;
  profile.bytes_per_s *= times;
  return profile;
}

struct Off {
  double most = 0.0, mean = 0.0;
};

/// How far predictions of random plans of one stage are off; `change` adds knobs to a plan.
template <typename Change>
Off one_stage_off(unsigned seed, int trials, Change change) {
  std::mt19937 random(seed);
  Off off;
  for (int trial = 0; trial < trials; ++trial) {
    const int num_layers = 1 + int(random() % 6);
    const plan::Plan plan = change(random, samples::random_plan(random, num_layers, 1));
    model::Config model = samples::small_model(num_layers);
    if (trial % 3 == 0) model.head_tokens = 24;
    const double one = std::abs(ratio(plan, model, faster(trial % 2 ? 1 : 10)) - 1.0);
    off.most = std::max(off.most, one);
    off.mean += one / trials;
  }
  return off;
}

// Two nodes of two ranks, where a link within a node is five times as fast.
TEST(StageTime, TensorParallelismOverNodesTakesTheirLinks) {
  const model::Config model = samples::small_model(3);
  hardware::Profile profile = samples::round_profile(2);
  for (const auto kind : {hardware::LinkKind::all_reduce, hardware::LinkKind::reduce_scatter,
                          hardware::LinkKind::all_gather})
    for (std::int64_t bytes : {1000, 1000000})
      profile.links.push_back(
          {kind, 2, 2, bytes, 5.0 * hardware::link_time(profile, kind, 1, 4, double(bytes))});
  plan::Plan plan = one_stage(3);
  plan.stages[0].tp = plan.stages[0].devices_per_node = 4;
  const double within_s = analyze(plan, model, profile).iteration_s;
  plan.stages[0].nodes = plan.stages[0].devices_per_node = 2;
  EXPECT_GT(analyze(plan, model, profile).iteration_s, 1.2 * within_s);
  EXPECT_NEAR(ratio(plan, model, profile), 1.0, 0.02);
}

// A slow pair under a stage's nodes holds its collectives up as slow links between all of them do.
TEST(StageTime, CollectivesTakeAsLongAsTheSlowestPairOfNodesLetsThem) {
  const model::Config model = samples::small_model(3);
  hardware::Profile profile = samples::round_profile(2), slow = profile;
  for (const auto kind : hardware::all_links)
    for (std::int64_t bytes : {1000, 1000000}) {
      const double time_s = hardware::link_time(profile, kind, 1, 4, double(bytes));
      profile.links.push_back({kind, 2, 2, bytes, time_s});
      slow.links.push_back({kind, 2, 2, bytes, 100.0 * time_s});
    }
  plan::Plan plan = one_stage(3);
  plan.stages[0].nodes = plan.stages[0].devices_per_node = 2;
  plan.stages[0].dp = plan.stages[0].microbatch = 2;
  plan.stages[0].tp = 2;
  plan.global_batch = 4 * plan.microbatches;
  const double slow_s = analyze(plan, model, slow).iteration_s;
  EXPECT_GT(slow_s, 1.05 * analyze(plan, model, profile).iteration_s);
  profile.slow_pairs = {{0, 1, 100.0}};
  EXPECT_NEAR(analyze(plan, model, profile).iteration_s, slow_s, 1e-9 * slow_s);
  EXPECT_NEAR(ratio(plan, model, profile), 1.0, 0.02);
}

TEST(StageTime, OneStageIsWithinTwoPercentOfTheSimulation) {
  const Off off = one_stage_off(4, 24, [](std::mt19937&, plan::Plan plan) { return plan; });
  EXPECT_LE(off.most, 0.02);
  EXPECT_LE(off.mean, 0.005);
}

TEST(StageTime, ShardedAndOffloadedStateIsWithinTenPercentOfTheSimulation) {
  const Off off = one_stage_off(8, 32, samples::with_moved_state);
  EXPECT_LE(off.most, 0.09);
  EXPECT_LE(off.mean, 0.012);
}

// Ranks that share a sequence exchange heads, or gather keys, between the runs of a layer.
TEST(StageTime, SharedSequencesAreCloseToTheSimulation) {
  std::mt19937 random(15);
  double most = 0.0, mean = 0.0;
  constexpr int trials = 24;
  for (int compared = 0; compared < trials;) {
    plan::Plan plan = samples::with_moved_state(random, samples::random_plan(random, 4, 1));
    model::Config model = samples::small_model(4);
    if (compared % 4 == 3) samples::make_latent(model);
    if (compared % 5 == 2) model.seq_len -= 3, model.padding = 3;
    if (!test::share_sequences(model, plan, 1, compared % 4 >= 2)) continue;
    const double off = std::abs(ratio(plan, model, faster(compared % 2 ? 1 : 10)) - 1.0);
    most = std::max(most, off), mean += off / trials;
    ++compared;
  }
  EXPECT_LE(most, 0.09);
  EXPECT_LE(mean, 0.015);
}

// Work on whole matrices, here as long as a layer's forward and more, and what it waits for.
TEST(StageTime, StepsOfWholeMatricesAreCloseToTheSimulation) {
  std::mt19937 random(17);
  double most = 0.0, mean = 0.0;
  constexpr int trials = 24;
  for (int trial = 0; trial < trials; ++trial) {
    const int num_layers = 1 + int(random() % 6);
    plan::Plan plan = samples::random_plan(random, num_layers, 1);
    if (trial % 2 == 1) plan = samples::with_moved_state(random, plan);
    model::Config model = samples::small_model(num_layers);
    model.optimizer = &model::muon;
    const double off = std::abs(ratio(plan, model, faster(trial % 3 ? 1 : 10)) - 1.0);
    most = std::max(most, off), mean += off / trials;
  }
  EXPECT_LE(most, 0.09);
  EXPECT_LE(mean, 0.015);
}

// Ranks whose shards have matrices of other sizes all wait for the slowest, so the first rank of a
// large stage stands for them.
TEST(StageTime, StepsOfWholeMatricesTakeAsLongOnAllRanks) {
  model::Config model = samples::small_model(2);
  model.optimizer = &model::muon;
  plan::Plan plan{.global_batch = 128, .microbatches = 1, .stages = {}};
  plan.stages.push_back(
      {.layers = 2, .nodes = 16, .devices_per_node = 8, .dp = 128, .zero_level = 3});
  const hardware::Profile profile = samples::round_profile();
  const double all_s =
      schedule::simulate(schedule::compile_all(plan, model), plan, model, profile).iteration_s;
  EXPECT_NEAR(schedule::steady_time(plan, model, profile), all_s, 1e-6 * all_s);
  model.optimizer = &model::adamw;
  EXPECT_LT(schedule::steady_time(plan, model, profile), 0.9 * all_s);
}

// Where the disk takes most of the time the formula errs on the slow side: transfers hide behind
// more than one window then.
TEST(StageTime, StagesOnDiskAreCloseToTheSimulation) {
  const auto on_disk = [](std::mt19937& random, plan::Plan plan) {
    plan.stages[0].optim_offload_ratio = plan.stages[0].act_offload_ratio = 1.0;
    return samples::with_disk(random, plan);
  };
  const Off off = one_stage_off(11, 24, on_disk);
  EXPECT_LE(off.most, 0.17);
  EXPECT_LE(off.mean, 0.02);
}

// By a processor beside the device, fast and slow, and by the cores that compute everything. Where
// the processor takes most of the time the formula errs on the slow side.
TEST(StageTime, UpdatesOnTheHostAreCloseToTheSimulation) {
  std::mt19937 random(13);
  double mean = 0.0;
  constexpr int trials = 24;
  for (int trial = 0; trial < trials; ++trial) {
    const int num_layers = 1 + int(random() % 6);
    plan::Plan plan = samples::random_plan(random, num_layers, 1);
    plan.stages[0].optim_offload_ratio = samples::pick<double>(random, {0.5, 1.0});
    plan = samples::with_host_updates(random, plan);
    model::Config model = samples::small_model(num_layers);
    if (trial % 2 == 1) model.precision = model::Precision::bf16;
    hardware::Profile profile = faster(trial % 2 ? 1 : 10);
    profile.host_updates_per_s = samples::pick<double>(random, {0.0, 2e8, 2e9});
    const double found = ratio(plan, model, profile);
    EXPECT_GE(found, 0.96) << plan::text(plan) << profile.host_updates_per_s;
    EXPECT_LE(found, 1.09) << plan::text(plan) << profile.host_updates_per_s;
    mean += std::abs(found - 1.0) / trials;
  }
  EXPECT_LE(mean, 0.01);
}

TEST(StageTime, AProfileWithoutADiskIsNamed) {
  hardware::Profile profile = samples::round_profile();
  std::erase_if(profile.copies, [](const auto& row) { return is_of_disk(row.kind); });
  profile.origin = "nowhere";
  plan::Plan plan = one_stage(2);
  EXPECT_NO_THROW(analyze(plan, samples::small_model(2), profile));
  plan.stages[0].optim_offload_ratio = plan.stages[0].optim_disk_ratio = 1.0;
  const std::string what = test::refusal([&] { analyze(plan, samples::small_model(2), profile); });
  EXPECT_NE(what.find("'nowhere' has no measured 'disk_read', which cluster.disk_gib needs"),
            std::string::npos)
      << what;
}

/// The stages of `plan` with the same strategy and the same number of layers.
plan::Plan balanced(plan::Plan plan, int layers) {
  for (int i = 0; i < plan.num_stages(); ++i) {
    plan.stages[std::size_t(i)] = plan.stages[0];
    plan.stages[std::size_t(i)].layers = layers;
    plan.stages[std::size_t(i)].first_layer = i * layers;
    plan.stages[std::size_t(i)].ckpt_layers = std::min(plan.stages[0].ckpt_layers, layers);
  }
  return plan;
}

void expect_balanced_pipeline_close(const plan::Plan& drawn, int trial, double most) {
  const plan::Plan plan = balanced(drawn, 3);
  const double found =
      ratio(plan, samples::small_model(3 * plan.num_stages()), faster(trial % 2 ? 1 : 10));
  EXPECT_NEAR(found, 1.0, most) << plan::text(plan);
}

TEST(StageTime, BalancedPipelinesAreWithinThreePercentOfTheSimulation) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 16; ++trial)
    expect_balanced_pipeline_close(samples::random_plan(random, 4), trial, 0.03);
}

TEST(StageTime, PipelinesWithMovedStateAreWithinFivePercentOfTheSimulation) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 16; ++trial) {
    const plan::Plan drawn = samples::random_plan(random, 4);
    expect_balanced_pipeline_close(samples::with_moved_state(random, drawn), trial, 0.05);
  }
}

TEST(StageTime, UnbalancedPipelinesAreCloseToTheSimulation) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 16; ++trial) {
    const plan::Plan plan = samples::random_plan(random, 6);
    const double found = ratio(plan, samples::small_model(6), faster(1));
    EXPECT_GE(found, 0.96) << plan::text(plan);
    EXPECT_LE(found, 1.06) << plan::text(plan);
  }
}

TEST(StageTime, StagesThatDifferAreCloseToTheSimulation) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 16; ++trial) {
    const model::Config model = samples::small_model(6);
    const plan::Plan plan = test::mixed_plan(random, model, 12);
    const double found = ratio(plan, model, faster(1));
    EXPECT_GE(found, 0.96) << plan::text(plan);
    EXPECT_LE(found, 1.06) << plan::text(plan);
  }
}

TEST(StageTime, StagesWithoutLayersAreCloseToTheSimulation) {
  std::mt19937 random(8);
  for (int trial = 0; trial < test::trials(15); ++trial) {
    model::Config model = samples::small_model(6, trial % 2 == 0);
    plan::Plan plan = trial % 3 == 0   ? test::interleaved_plan(random, model, 12)
                      : trial % 3 == 1 ? test::zero_bubble_plan(random, model, 12)
                                       : test::mixed_plan(random, model, 12);
    test::empty_ends(trial / 3, plan);
    const double found = ratio(plan, model, faster(1));
    EXPECT_GE(found, 0.9) << plan::text(plan);
    EXPECT_LE(found, 1.1) << plan::text(plan);
  }
}

}  // namespace
}  // namespace brume::analyzer
