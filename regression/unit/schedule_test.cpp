#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "plan/rules.hpp"
#include "planning_samples.hpp"
#include "random_plan.hpp"
#include "schedule/compile.hpp"
#include "schedule/place.hpp"
#include "schedule/simulate.hpp"
#include "schedule/verify.hpp"
#include "trials.hpp"

namespace brume::schedule {
namespace {

/// One rank, two layers: small enough to read.
model::Config small_model() {
  return {.num_layers = 2,
          .hidden_size = 16,
          .num_heads = 2,
          .ffn_size = 64,
          .seq_len = 8,
          .vocab_size = 32};
}

plan::Plan small_plan(int stages, int dp, int tp, int microbatches) {
  plan::Plan plan{
      .version = 1, .global_batch = dp * microbatches, .microbatches = microbatches, .stages = {}};
  for (int s = 0; s < stages; ++s) {
    plan::Stage stage;
    stage.first_layer = s * (2 / stages);
    stage.layers = 2 / stages;
    stage.devices_per_node = dp * tp;
    stage.dp = dp;
    stage.tp = tp;
    plan.stages.push_back(stage);
  }
  return plan;
}

/// The first ones have equal stages; of the last ones two of three have several on the same ranks,
/// the third has split backwards.
constexpr int num_equal_plans = 60, num_plain_plans = 120;
const int num_plans = num_plain_plans + test::trials(18);

class RandomPlans : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::mt19937 random(unsigned(GetParam()) + 1);
    model = test::random_model(random);
    if (GetParam() % 3 == 0) model.head_tokens = 5;
    if (GetParam() % 5 == 0) {
      const int layers = model.num_layers;
      model = test::special_models().back();
      model.num_layers = layers;
    }
    model.exchanges_normed = GetParam() % 3 == 1;
    model.isolated = GetParam() % 4 == 1;
    if (GetParam() >= num_plain_plans) {
      if (GetParam() % 8 == 0) test::quantize(GetParam(), model);
      if (GetParam() % 8 == 4) test::adapt(GetParam(), model);
      plan = GetParam() % 3 == 2 ? test::zero_bubble_plan(random, model, 8)
                                 : test::interleaved_plan(random, model, 8);
      if (GetParam() % 4 == 2) test::empty_ends(GetParam(), plan);
      return;
    }
    if (GetParam() % 7 == 3)
      test::adapt(GetParam(), model);
    else if (GetParam() % 7 == 5)
      test::quantize(GetParam(), model);
    else
      test::freeze_some(GetParam(), model);
    if (GetParam() % 7 == 1) {
      test::take_rows_of_blocks(GetParam(), model);
      model.moments = Moments::fp8;
    }
    plan = GetParam() < num_equal_plans ? test::random_plan(random, model, 8)
                                        : test::mixed_plan(random, model, 12);
    if (GetParam() % 4 == 3) test::share_sequences(model, plan, 1, GetParam() % 8 == 3);
    if (GetParam() % 4 == 2) test::empty_ends(GetParam(), plan);
  }
  model::Config model;
  plan::Plan plan;
};

TEST_P(RandomPlans, AreOrderedAndFreeOfDeadlock) {
  for (const Options& options :
       {Options{}, Options{.overlap = false}, Options{.mode = Mode::evaluate},
        Options{.one_collective = true}}) {
    const std::vector<Program> programs = compile_all(plan, model, options);
    for (const Program& program : programs)
      EXPECT_EQ(verify(program), std::vector<std::string>{}) << plan::text(plan);
    EXPECT_EQ(verify(programs, plan), std::vector<std::string>{}) << plan::text(plan);
  }
}

// No two buffers that live at the same time share a byte, guards included.
TEST_P(RandomPlans, PlaceLiveBuffersApart) {
  const Program program = compile(plan, model, 0);
  for (std::size_t i = 0; i < program.buffers.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const Buffer &a = program.buffers[i], &b = program.buffers[j];
      const bool meet =
          a.tier == b.tier && (a.persistent || b.persistent ||
                               (a.first_task <= b.last_task && b.first_task <= a.last_task));
      if (!meet || a.offset < 0 || b.offset < 0) continue;
      EXPECT_TRUE(a.offset + a.bytes + guard_bytes <= b.offset ||
                  b.offset + b.bytes + guard_bytes <= a.offset)
          << a.name << " and " << b.name;
    }
}

TEST_P(RandomPlans, TrainAndEvaluateAgreeOnPersistentBuffers) {
  const Program train = compile(plan, model, plan.devices() - 1);
  const Program evaluate = compile(plan, model, plan.devices() - 1, {.mode = Mode::evaluate});
  std::map<std::string, std::int64_t> offsets;
  for (const Buffer& buffer : train.buffers)
    if (buffer.persistent) offsets[buffer.name] = buffer.offset;
  for (const Buffer& buffer : evaluate.buffers) {
    if (buffer.persistent) {
      EXPECT_EQ(offsets.at(buffer.name), buffer.offset) << buffer.name;
    }
  }
  EXPECT_LE(evaluate.arena_bytes[0], train.arena_bytes[0]);
}

// The waits are all needed: without any one of them two tasks touch the same bytes in no order.
// Each wait of a small Program, a sample of a large one's.
TEST_P(RandomPlans, MissingWaitIsFound) {
  Program program = compile(plan, model, plan.devices() / 2);
  int num_waits = 0, wait = GetParam();
  for (const Task& task : program.tasks) num_waits += int(task.waits.size());
  const int sampled = 1 + num_waits / test::trials(200);
  for (std::size_t id = 0; id < program.tasks.size(); ++id)
    for (std::size_t w = 0; w < program.tasks[id].waits.size(); ++w) {
      if (++wait % sampled != 0) continue;
      const std::vector<int> waits = program.tasks[id].waits;
      program.tasks[id].waits.erase(program.tasks[id].waits.begin() + std::ptrdiff_t(w));
      EXPECT_FALSE(verify(program).empty()) << label(program.tasks[id]) << "\n" << plan::text(plan);
      program.tasks[id].waits = waits;
    }
}

// In other orders than 1F1B, of one size: two of a rank to the same peer, or from it, that change
// places.
TEST_P(RandomPlans, SwappedMessagesAreFound) {
  if (plan.order.is_1f1b()) return;
  std::vector<Program> programs = compile_all(plan, model);
  Program& program = programs[std::size_t(GetParam()) % programs.size()];
  std::map<std::tuple<Channel, Operation, int>, std::vector<std::size_t>> alike;
  for (std::size_t id = 0; id < program.tasks.size(); ++id)
    if (const Task& task = program.tasks[id]; task.peer >= 0)
      alike[{task.channel, task.operation, task.peer}].push_back(id);
  for (const auto& [key, ids] : alike)
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      std::swap(program.tasks[ids[i]], program.tasks[ids[i + 1]]);
      EXPECT_FALSE(verify(programs, plan).empty()) << label(program.tasks[ids[i]]) << "\n"
                                                   << plan::text(plan);
      std::swap(program.tasks[ids[i]], program.tasks[ids[i + 1]]);
    }
}

INSTANTIATE_TEST_SUITE_P(Schedule, RandomPlans, ::testing::Range(0, num_plans));

// Blocks that are frozen have weights and forwards, nothing else, and no gradient goes below them.
TEST(Compile, FrozenBlocksHaveForwardsOnly) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 60; ++trial) {
    model::Config model = test::random_model(random);
    const plan::Plan plan = test::random_plan(random, model, 8);
    model.frozen_blocks = 1 + trial % (model.num_layers + 1);
    for (const Program& program : compile_all(plan, model)) {
      const plan::BlockRange range = plan::block_range(plan, plan::stage_index(plan, program.rank));
      std::set<int> updated, backward;
      for (const Task& task : program.tasks) {
        if (task.operation == Operation::optimizer_step || task.operation == Operation::host_step)
          updated.insert(task.block);
        if (task.operation == Operation::backward) backward.insert(task.block);
        const bool gradient = task.channel == Channel::p2p_backward;
        if (gradient && task.operation == Operation::send) {
          EXPECT_GT(range.first, model.frozen_blocks);
        }
      }
      std::set<int> trained;
      for (int block = std::max(range.first, model.frozen_blocks); block <= range.last; ++block)
        trained.insert(block);
      EXPECT_EQ(updated, trained) << plan::text(plan);
      EXPECT_EQ(backward, trained) << plan::text(plan);
      for (const Buffer& buffer : program.buffers)
        if (buffer.content == Content::grads || buffer.content == Content::optimizer) {
          EXPECT_GE(buffer.block, model.frozen_blocks) << buffer.name;
        }
    }
  }
}

// What is trained of a block, rounded up for each shard, is all that has gradients and optimizer
// state, whatever the ZeRO level and wherever it lies.
TEST(Compile, FrozenParametersHaveWeightsOnly) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    model::Config model = test::random_model(random);
    const plan::Plan plan = test::random_plan(random, model, 8);
    constexpr const char* parts[] = {"norm",      "mlp", "weight", "attention",
                                     "embedding", ".0.", "head"};
    test::freeze(model, parts[trial % 7]);
    const std::vector<model::Block> blocks = model::blocks(model);
    for (const Program& program : compile_all(plan, model)) {
      const plan::Stage& stage = plan.stages[std::size_t(plan::stage_index(plan, program.rank))];
      std::map<std::pair<int, Content>, std::int64_t> bytes;
      for (const Buffer& buffer : program.buffers)
        if (buffer.persistent && !buffer.name.starts_with("tied"))
          bytes[{buffer.block, buffer.content}] += buffer.bytes;
      for (auto [block, last] = plan::block_range(plan, plan::stage_index(plan, program.rank));
           block <= last; ++block) {
        const model::Layout layout =
            model::layout(blocks[std::size_t(block)], stage.tp, 0, stage.dp);
        const auto expect = [&](Content content, std::int64_t elements, bool sharded, int size) {
          EXPECT_EQ((bytes[{block, content}]),
                    elements * size / (sharded ? stage.shard_ranks() : 1))
              << parts[trial % 7] << " " << blocks[std::size_t(block)].name;
        };
        const plan::Sharded<bool> shards = plan::sharded(stage);
        expect(Content::weights, layout.elements, shards.weights,
               model::weight_bytes(model.precision));
        expect(Content::grads, layout.trained_elements, shards.grads, model::grad_bytes);
        expect(Content::optimizer, layout.trained_elements, shards.optimizer,
               model::optimizer_bytes(model));
      }
    }
  }
}

// Placement close to the largest sum of live bytes, on buffers large enough that guards do not
// count. For a few Programs the search finds no packing within 1 %.
TEST(Place, ArenaIsCloseToLiveBytes) {
  std::mt19937 random(5);
  int programs = 0, loose = 0;
  for (int i = 0; i < 50; ++i) {
    model::Config model = test::random_model(random);
    model.hidden_size *= 8;
    model.ffn_size *= 8;
    model.seq_len *= 8;
    const plan::Plan plan =
        i % 2 == 0 ? test::random_plan(random, model, 8) : test::mixed_plan(random, model, 8);
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      const Program program = compile(plan, model, plan::first_rank(plan, stage));
      const double ratio = double(program.arena_bytes[0]) / double(program.live_peak_bytes[0]);
      EXPECT_GE(ratio, 1.0);
      EXPECT_LE(ratio, 1.03) << plan::text(plan);
      ++programs;
      loose += ratio > 1.01;
    }
  }
  EXPECT_LE(loose, programs / 100) << "of " << programs;
}

// One rank of each stage stands for the others: 8 to 64 of them, which differ in what they send,
// where, and, with offload, in what their shards leave on the host. Ranks may begin two
// transfers in another order than the one that stands for them: 1.4 % of a step here.
TEST(Simulate, OneRankOfEachStageTellsTheTime) {
  for (const auto& [speed, most_off] : {std::pair(1.0, 0.02), std::pair(10.0, 0.05)}) {
    std::mt19937 random(5);
    hardware::Profile profile = samples::round_profile(8);
    profile.flops_per_s *= speed;  // the faster it computes, the more transfers count
    profile.bytes_per_s *= speed;
    for (int compared = 0; compared < 20;) {
      model::Config model = samples::small_model(2 + int(random() % 6), random() % 2 == 0);
      model.hidden_size = 256;
      model.ffn_size = 1024;
      const plan::Plan plan =
          compared % 2 == 0
              ? test::mixed_plan(random, model, 32)
              : samples::with_moved_state(random, samples::random_plan(random, model.num_layers));
      if (plan.devices() < 8 || plan.devices() > 64) continue;
      ++compared;
      const std::vector<Program> all = compile_all(plan, model);
      std::vector<Program> some;
      for (int stage = 0; stage < plan.num_stages(); ++stage)
        some.push_back(all[std::size_t(plan::first_rank(plan, stage))]);
      const double whole_s = simulate(all, plan, model, profile).iteration_s;
      EXPECT_NEAR(simulate(some, plan, model, profile).iteration_s, whole_s, most_off * whole_s)
          << plan::text(plan);
    }
  }
}

// A message between unlike meshes is in as many parts as the larger one has ranks for one of the
// other. Where parts take longer than computing, a representative waits for all of them.
TEST(Simulate, ARepresentativeWaitsForAllPartsOfAMessage) {
  const model::Config model = samples::small_model(4, false);
  hardware::Profile profile = samples::round_profile(8);
  for (hardware::LinkRow& row : profile.links)
    if (row.kind == hardware::LinkKind::send) row.time_s = 1e-2;
  for (const auto& [first_tp, last_tp] : {std::pair(4, 1), std::pair(1, 4), std::pair(2, 4)}) {
    plan::Plan plan = plan::equal_stages(model, 8, 2, {.microbatch = 1});
    plan.stages[0].tp = plan.stages[0].devices_per_node = first_tp;
    plan.stages[1].tp = plan.stages[1].devices_per_node = last_tp;
    const double whole_s = simulate(compile_all(plan, model), plan, model, profile).iteration_s;
    const std::vector<Program> some{compile(plan, model, 0), compile(plan, model, first_tp)};
    EXPECT_NEAR(simulate(some, plan, model, profile).iteration_s, whole_s, 0.02 * whole_s)
        << plan::text(plan);
  }
}

TEST(Simulate, RefusesSomeRanksOfAStage) {
  const plan::Plan plan = small_plan(1, 4, 1, 2);
  std::vector<Program> programs = compile_all(plan, small_model());
  programs.resize(2);
  EXPECT_THROW(simulate(programs, plan, small_model(), samples::round_profile(8)), Error);
}

TEST(Verify, SwappedMessagesAreFound) {
  const plan::Plan plan = small_plan(2, 1, 1, 3);
  std::vector<Program> programs = compile_all(plan, small_model());
  std::vector<std::size_t> sends;
  for (std::size_t id = 0; id < programs[1].tasks.size(); ++id)
    if (programs[1].tasks[id].channel == Channel::p2p_backward) sends.push_back(id);
  ASSERT_GE(sends.size(), 3u);
  // The tied table's gradient is larger than a microbatch's: sent first, it meets the wrong
  // receive.
  std::swap(programs[1].tasks[sends.front()], programs[1].tasks[sends.back()]);
  EXPECT_FALSE(verify(programs, plan).empty());
}

TEST(Verify, MissingPartnerIsFound) {
  const plan::Plan plan = small_plan(1, 2, 1, 1);
  std::vector<Program> programs = compile_all(plan, small_model());
  std::erase_if(programs[1].tasks, [](const Task& task) { return task.group == model::all_axes; });
  EXPECT_FALSE(verify(programs, plan).empty());
}

// 1F1B: stage i of S never holds more than S - i microbatches between forward and backward.
TEST(Compile, InFlightMicrobatchesAreBounded) {
  model::Config model = small_model();
  model.num_layers = 4;
  plan::Plan plan = small_plan(2, 1, 1, 8);
  plan.stages.resize(4, plan.stages[0]);
  for (int s = 0; s < 4; ++s)
    plan.stages[std::size_t(s)].first_layer = s, plan.stages[std::size_t(s)].layers = 1;
  for (int s = 0; s < 4; ++s) {
    const Program program = compile(plan, model, s);
    std::set<int> in_flight;
    std::size_t most = 0;
    for (const Task& task : program.tasks) {
      if (task.operation == Operation::forward) in_flight.insert(task.microbatch);
      if (task.operation == Operation::backward && task.segment == model::SegmentKind::attention)
        in_flight.erase(task.microbatch);
      most = std::max(most, in_flight.size());
    }
    EXPECT_EQ(most, std::size_t(4 - s));
  }
}

TEST(Compile, KnobsAddTheirTasks) {
  const auto count = [](const plan::Plan& plan, Operation operation) {
    int n = 0;
    for (const Task& task : compile(plan, small_model(), 0).tasks) n += task.operation == operation;
    return n;
  };
  plan::Plan plan = small_plan(1, 2, 1, 2);
  const int blocks = 4;
  EXPECT_EQ(count(plan, Operation::recompute), 0);
  EXPECT_EQ(count(plan, Operation::all_reduce), blocks + 1);  // gradients, and loss with norm
  plan.stages[0].zero_level = 1;
  EXPECT_EQ(count(plan, Operation::reduce_scatter), blocks);
  EXPECT_EQ(count(plan, Operation::all_gather), blocks);
  plan.stages[0].ckpt_layers = 1;
  EXPECT_EQ(count(plan, Operation::recompute), 2 * 2);  // two segments, two microbatches
  plan.stages[0].optim_offload_ratio = 1.0;
  EXPECT_EQ(count(plan, Operation::copy_in), blocks);
  EXPECT_EQ(count(plan, Operation::copy_out), blocks);
  plan.stages[0].act_offload_ratio = 1.0;  // of one layer: the last one is needed at once
  EXPECT_EQ(count(plan, Operation::copy_out), blocks + 2);
}

// A stored layer keeps three tensors more: outputs of both norms and of gelu. An evaluation keeps
// nothing for a backward.
TEST(Compile, StoredLayersKeepWhatIsCheap) {
  plan::Plan plan = small_plan(1, 2, 1, 2);
  const auto saved = [&](Mode mode, int block) {
    std::ptrdiff_t n = 0;
    for (const Task& task : compile(plan, small_model(), 0, {.mode = mode}).tasks)
      if (task.operation == Operation::forward && task.block == block && task.microbatch == 0)
        n += std::ranges::count(task.operands, Role::saved, &Operand::role);
    return n;
  };
  const std::ptrdiff_t selective = saved(Mode::train, 1), evaluated = saved(Mode::evaluate, 1);
  plan.stages[0].stored_layers = 1;
  EXPECT_EQ(saved(Mode::train, 1), selective + 3);
  EXPECT_EQ(saved(Mode::train, 2), selective);
  EXPECT_EQ(saved(Mode::evaluate, 1), evaluated);
}

/// Tasks of a kind on tensor-parallel ranks, for a block, in rank 0's Program.
int count_tp(const plan::Plan& plan, Operation operation, int block) {
  int n = 0;
  for (const Task& task : compile(plan, small_model(), 0).tasks)
    n += task.channel == Channel::collective_tp && task.operation == operation &&
         task.block == block;
  return n;
}

// One microbatch; blocks are the embedding, two layers of two segments, the head.
TEST(Compile, StreamsAreScatteredAndGathered) {
  plan::Plan plan = small_plan(1, 1, 2, 1);
  for (int layer : {1, 2}) {
    EXPECT_EQ(count_tp(plan, Operation::reduce_scatter, layer), 4);  // outputs, d normed
    EXPECT_EQ(count_tp(plan, Operation::all_gather, layer), 6);  // normed in both passes, d output
    EXPECT_EQ(count_tp(plan, Operation::all_reduce, layer), 1);  // gradients of norms
  }
  EXPECT_EQ(count_tp(plan, Operation::reduce_scatter, 0), 1);
  EXPECT_EQ(count_tp(plan, Operation::all_gather, 0), 1);  // d output
  EXPECT_EQ(count_tp(plan, Operation::all_gather, 3), 2);  // its input once, and the statistics
  EXPECT_EQ(count_tp(plan, Operation::reduce_scatter, 3), 1);
  plan.stages[0].ckpt_layers = 1;
  EXPECT_EQ(count_tp(plan, Operation::reduce_scatter, 2), 5);
  EXPECT_EQ(count_tp(plan, Operation::all_gather, 2), 7);
  plan.stages[0].ckpt_layers = 0;
  plan.stages[0].stored_layers = 1;
  EXPECT_EQ(count_tp(plan, Operation::all_gather, 1), 4);
}

// What lives from forward to backward of a stream is 1 / tp of it.
TEST(Compile, ShardsAreKept) {
  const model::Config model = small_model();
  const std::int64_t stream = 4 * model.seq_len * model.hidden_size;
  for (int tp : {1, 2}) {
    const Program program = compile(small_plan(1, 1, tp, 1), model, 0);
    std::map<std::string, std::int64_t> bytes;
    for (const Buffer& buffer : program.buffers) bytes[buffer.name] = buffer.bytes;
    for (const char* name : {"embedding.output#0", "layers.0.middle#0", "layers.0.output#0"})
      EXPECT_EQ(bytes.at(name), stream / tp) << name;
  }
}

/// Whether a task surely ends before another one starts.
bool before(const Program& program, int early, int late) {
  std::vector<char> reached(program.tasks.size(), 0);
  reached[std::size_t(late)] = 1;
  for (int id = late; id > early; --id) {
    if (!reached[std::size_t(id)]) continue;
    const Task& task = program.task(id);
    for (int other : task.waits) reached[std::size_t(other)] = 1;
    for (int other = id - 1; other >= 0; --other)
      if (program.task(other).channel == task.channel) {
        reached[std::size_t(other)] = 1;
        break;
      }
  }
  return reached[std::size_t(early)] != 0;
}

// No backward waits for the gather of normed tokens that stands right before it: they are the next
// one's input. Only the gather of the output's gradient is waited for.
TEST(Compile, InputsAreGatheredBesideTheSegmentBefore) {
  for (int ckpt_layers : {0, 2}) {
    plan::Plan plan = small_plan(1, 1, 2, 3);
    plan.stages[0].ckpt_layers = ckpt_layers;
    const Program program = compile(plan, small_model(), 0);
    int found = 0;
    for (int id = 1; id < int(program.tasks.size()); ++id) {
      const Task &task = program.task(id), &last = program.task(id - 1);
      const Operand* const normed = task.find(Role::normed);
      if (task.operation != Operation::backward || last.operation != Operation::all_gather ||
          (normed && normed->writes))
        continue;
      const bool of_normed =
          program.buffer(last.operands[0]).name.find("normed") != std::string::npos;
      EXPECT_NE(before(program, id - 1, id), of_normed) << label(task);
      found += of_normed;
    }
    EXPECT_EQ(found, 3 * 4);  // of all segments but the first layer's, whose embedding needs none
  }
}

// Nodes of two ranks: stage 0 fills the first one, so its neighbours are on the other.
TEST(Simulate, MessagesArePricedByWhereRanksAre) {
  hardware::Profile profile;
  for (int nodes : {1, 2}) {
    profile.links.push_back(
        {hardware::LinkKind::send, nodes, nodes == 1 ? 2 : 1, 1000, nodes == 1 ? 1.0 : 10.0});
    profile.links.push_back(
        {hardware::LinkKind::all_reduce, nodes, nodes == 1 ? 4 : 2, 1000, 100.0 * nodes});
  }
  const plan::Plan plan = small_plan(2, 2, 1, 1);
  const auto seconds = [&](Operation operation, model::AxisSet group) {
    const Program program = compile(plan, small_model(), 0);
    for (const Task& task : program.tasks)
      if (task.operation == operation && task.group == group)
        return task_s(task, program, plan, small_model(), profile);
    return -1.0;
  };
  profile.key.ranks_per_node = 2;
  const double across_s = seconds(Operation::send, model::AxisSet());
  EXPECT_DOUBLE_EQ(seconds(Operation::all_reduce, model::all_axes), 200.0);
  profile.key.ranks_per_node = 4;
  EXPECT_DOUBLE_EQ(across_s, 10.0 * seconds(Operation::send, model::AxisSet()));
  EXPECT_DOUBLE_EQ(seconds(Operation::all_reduce, model::all_axes), 100.0);
}

/// Tasks of an operation on a block in rank 0's Program.
int count(const plan::Plan& plan, Operation operation, int block) {
  int n = 0;
  for (const Task& task : compile(plan, small_model(), 0).tasks)
    n += task.operation == operation && task.block == block;
  return n;
}

// Two microbatches; block 1 is a layer whose forward and backward are apart, block 3 the head,
// whose backward follows at once.
/// What a microbatch more takes on four equal stages whose messages take this share of the time of
/// a microbatch's passes, as a share of that time.
double of_a_microbatch(int run_ahead, double message) {
  const model::Config model = samples::small_model(8, false);
  hardware::Profile profile = samples::round_profile();
  profile.interference.assign(profile.interference.size(), 0.0);
  const auto simulated_s = [&](double message_s, int microbatches) {
    for (hardware::LinkRow& row : profile.links)
      if (row.kind == hardware::LinkKind::send) row.time_s = message_s;
    plan::Plan plan = plan::equal_stages(model, microbatches, 4, {.microbatch = 1});
    plan.order.run_ahead = run_ahead;
    return simulate(compile_all(plan, model), plan, model, profile).iteration_s;
  };
  const auto more_s = [&](double message_s) {
    return (simulated_s(message_s, 40) - simulated_s(message_s, 24)) / 16.0;
  };
  const double passes_s = more_s(0.0);
  return more_s(message * passes_s) / passes_s;
}

// Where stages run further ahead, no stage's compute waits for its peer's receive: messages that
// take an eighth of a microbatch's passes cost the fill and the drain alone. Else each is waited
// for.
TEST(Simulate, PassesDoNotWaitForMessagesWhereStagesRunAhead) {
  EXPECT_NEAR(of_a_microbatch(2, 0.125), 1.0, 0.02);
  EXPECT_GT(of_a_microbatch(1, 0.125), 1.05);
  EXPECT_GT(of_a_microbatch(1, 0.25), of_a_microbatch(2, 0.25) + 0.1);
}

TEST(Compile, ShardedWeightsAreGatheredForEachUse) {
  plan::Plan plan = small_plan(1, 2, 1, 2);
  plan.stages[0].zero_level = 3;
  EXPECT_EQ(count(plan, Operation::all_gather, 1), 4);  // the first forward's is the update's
  EXPECT_EQ(count(plan, Operation::all_gather, 3), 2);
  // The update, two heads (tied) and the second forward; an embedding's backward needs no weights.
  EXPECT_EQ(count(plan, Operation::all_gather, 0), 4);
  EXPECT_EQ(count(plan, Operation::reduce_scatter, 1), 2);
  plan.stages[0].zero_level = 2;
  EXPECT_EQ(count(plan, Operation::all_gather, 1), 1);
  EXPECT_EQ(count(plan, Operation::reduce_scatter, 1), 2);
}

/// What a collective of a layer is over, and how much it moves.
struct Moved {
  Operation operation;
  model::AxisSet group;
  int microbatch;
  std::int64_t bytes;
  bool operator==(const Moved&) const = default;
};

/// Those of gradients of block 1 in the Program of a rank, in their order.
std::vector<Moved> gradient_collectives(const plan::Plan& plan, int rank) {
  std::vector<Moved> found;
  for (const Task& task : compile(plan, small_model(), rank).tasks)
    if (task.channel == Channel::collective_dp && task.block == 1 &&
        task.operation != Operation::all_gather)
      found.push_back({task.operation, task.group, task.microbatch, task.operands[0].bytes});
  return found;
}

// Of four ranks two shard a replica; the last microbatch's sums go to the other replica too, which
// takes a shard's bytes.
TEST(Compile, ReplicasSumTheirShardsOnce) {
  plan::Plan plan = small_plan(1, 4, 1, 2);
  plan.stages[0].replicas = 2;
  const std::int64_t all = 4 * model::layout(model::blocks(small_model())[1], 1, 0, 4).elements;
  const Moved scattered{Operation::reduce_scatter, model::Axis::shard, 1, all},
      summed{Operation::all_reduce, model::Axis::replica, 1, all / 2};
  Moved before = scattered;
  before.microbatch = 0;
  for (int rank = 0; rank < 4; ++rank) {
    plan.stages[0].zero_level = 1;
    EXPECT_EQ(gradient_collectives(plan, rank), (std::vector{scattered, summed}));
    for (const int level : {2, 3}) {
      plan.stages[0].zero_level = level;
      EXPECT_EQ(gradient_collectives(plan, rank), (std::vector{before, scattered, summed}));
    }
  }
  EXPECT_EQ(plan::members(plan, 2, model::Axis::shard), (std::vector{2, 3}));
  EXPECT_EQ(plan::members(plan, 2, model::Axis::replica), (std::vector{0, 2}));
}

TEST(Compile, OffloadedWeightsAndGradientsTravel) {
  plan::Plan plan = small_plan(1, 1, 1, 3);
  plan.stages[0].weight_offload_ratio = 1.0;
  EXPECT_EQ(count(plan, Operation::copy_in, 1), 6);  // three forwards and backwards
  EXPECT_EQ(count(plan, Operation::copy_out, 1), 1);
  plan.stages[0].weight_offload_ratio = 0.0;
  plan.stages[0].grad_offload_ratio = 1.0;
  EXPECT_EQ(count(plan, Operation::copy_in, 1), 3);   // the update's, the second and third sum
  EXPECT_EQ(count(plan, Operation::copy_out, 1), 3);  // after each microbatch
}

/// One stage whose optimizer state and activations leave the device; these shares lie on disk.
plan::Plan disk_plan(double optim_disk, double act_disk) {
  plan::Plan plan = small_plan(1, 1, 1, 2);
  plan.stages[0].optim_offload_ratio = plan.stages[0].act_offload_ratio = 1.0;
  plan.stages[0].optim_disk_ratio = optim_disk;
  plan.stages[0].act_disk_ratio = act_disk;
  return plan;
}

// Block 1 is the layer whose activations leave in two microbatches, block 3 the head.
TEST(Compile, WhatLiesOnDiskIsReadAndWritten) {
  EXPECT_EQ(count(disk_plan(0.0, 0.0), Operation::read, 1), 0);
  for (Operation operation : {Operation::read, Operation::write}) {
    EXPECT_EQ(count(disk_plan(1.0, 0.0), operation, 1), 1);
    EXPECT_EQ(count(disk_plan(0.5, 1.0), operation, 1), 3);
    EXPECT_EQ(count(disk_plan(0.5, 1.0), operation, 2), 1);
    EXPECT_EQ(count(disk_plan(0.5, 1.0), operation, 3), 1);
  }
}

TEST(Compile, OptimizerStateIsCutOverThreeTiers) {
  plan::Plan plan = disk_plan(0.25, 0.0);
  plan.stages[0].optim_offload_ratio = 0.75;
  const std::int64_t all = model::layout(model::blocks(small_model())[1], 1, 0, 1).elements;
  std::map<std::string, std::int64_t> bytes;
  for (const Buffer& buffer : compile(plan, small_model(), 0).buffers)
    if (buffer.persistent) bytes[buffer.name] = buffer.bytes;
  const std::int64_t quarter = all / 64 * 16, offloaded = all * 3 / 64 * 16;
  EXPECT_EQ(bytes.at("layers.0.moments"), 8 * (all - offloaded));
  EXPECT_EQ(bytes.at("layers.0.host_moments"), 8 * (offloaded - quarter));
  EXPECT_EQ(bytes.at("layers.0.disk_moments"), 8 * quarter);
}

// Devices see host memory only, and nothing of it changes for them.
TEST(Compile, TheDiskLiesBehindTheHost) {
  const Program program = compile(disk_plan(0.5, 0.5), small_model(), 0);
  for (const Task& task : program.tasks) {
    const bool disk = task.operation == Operation::read || task.operation == Operation::write;
    EXPECT_EQ(disk, task.channel == Channel::disk) << label(task);
    const auto tier = [&](Role role) { return program.buffer(task.at(role)).tier; };
    if (disk) {
      EXPECT_EQ(tier(Role::source), task.operation == Operation::read ? Tier::disk : Tier::host);
      EXPECT_EQ(tier(Role::destination),
                task.operation == Operation::read ? Tier::host : Tier::disk);
    }
    for (const Operand& operand : task.operands) {
      EXPECT_TRUE(disk || program.buffer(operand).tier != Tier::disk);
    }
  }
  const Program without = compile(disk_plan(0.0, 0.0), small_model(), 0);
  EXPECT_EQ(program.live_peak_bytes[std::size_t(Tier::device)],
            without.live_peak_bytes[std::size_t(Tier::device)]);
  const auto on_device = [](const Program& p) {
    std::vector<std::string> labels;
    for (const Task& task : p.tasks)
      if (task.channel != Channel::disk) labels.push_back(label(task));
    return labels;
  };
  EXPECT_EQ(on_device(program), on_device(without));
}

// While one layer's activations are copied in, those of the layer before it are being read; they
// are written while the next ones are copied out.
TEST(Compile, TheDiskWorksBesideCopies) {
  model::Config model = small_model();
  model.num_layers = 6;
  plan::Plan plan = disk_plan(0.0, 1.0);
  plan.stages[0].layers = 6;
  const Program program = compile(plan, model, 0);
  const auto find = [&](Operation operation, int block) {
    for (int id = 0; id < int(program.tasks.size()); ++id) {
      const Task& task = program.task(id);
      if (task.operation == operation && task.block == block && task.microbatch == 0) return id;
    }
    return -1;
  };
  for (int block = 1; block <= 4; ++block) {
    EXPECT_FALSE(before(program, find(Operation::copy_in, block + 1), find(Operation::read, block)))
        << "block " << block;
    EXPECT_FALSE(
        before(program, find(Operation::write, block), find(Operation::copy_out, block + 1)))
        << "block " << block;
  }
}

/// Verifies that each wait of a channel, or for it, is missed. @return how many there are
int expect_waits_missed(const Program& whole, Channel channel) {
  int tried = 0;
  for (std::size_t id = 0; id < whole.tasks.size(); ++id)
    for (std::size_t i = 0; i < whole.tasks[id].waits.size(); ++i) {
      const int other = whole.tasks[id].waits[i];
      if (whole.tasks[id].channel != channel && whole.task(other).channel != channel) continue;
      Program broken = whole;
      auto& waits = broken.tasks[id].waits;
      waits.erase(waits.begin() + std::ptrdiff_t(i));
      EXPECT_FALSE(verify(broken).empty()) << label(whole.tasks[id]);
      ++tried;
    }
  return tried;
}

TEST(Verify, MissingWaitOfTheDiskIsFound) {
  EXPECT_GE(expect_waits_missed(compile(disk_plan(0.5, 0.5), small_model(), 0), Channel::disk), 10);
}

/// One stage whose processor steps this share of the optimizer state, all of which is offloaded.
plan::Plan host_update_plan(double share) {
  plan::Plan plan = small_plan(1, 1, 1, 2);
  plan.stages[0].optim_offload_ratio = 1.0;
  plan.stages[0].host_update_ratio = share;
  return plan;
}

const Task& only(const Program& program, Operation operation, int block) {
  const auto is = [&](const Task& t) { return t.operation == operation && t.block == block; };
  EXPECT_EQ(std::ranges::count_if(program.tasks, is), 1);
  return *std::ranges::find_if(program.tasks, is);
}

// Of n elements of a layer of which the host steps all: 4 n bytes of gradients go down and 2 n of
// weights come up, where 12 n of moments and masters would have come and gone. In fp32 the weights
// go down, too, because there is no master. Block 1 is a layer.
TEST(Compile, GradientsGoDownAndWeightsComeUpForTheHost) {
  model::Config model = small_model();
  const std::int64_t n = model::layout(model::blocks(model)[1], 1, 0, 1).elements;
  for (const auto& [precision, down, up] :
       {std::tuple(model::Precision::bf16, 4, 2), std::tuple(model::Precision::fp32, 8, 4)}) {
    model.precision = precision;
    const Program program = compile(host_update_plan(1.0), model, 0);
    EXPECT_EQ(amount_bytes(only(program, Operation::copy_out, 1)), down * n);
    EXPECT_EQ(amount_bytes(only(program, Operation::copy_in, 1)), up * n);
    EXPECT_EQ(only(program, Operation::host_step, 1).channel, Channel::host);
    EXPECT_EQ(count(host_update_plan(1.0), Operation::optimizer_step, 1), 0);
  }
  EXPECT_EQ(count(host_update_plan(0.5), Operation::optimizer_step, 1), 1);
  EXPECT_EQ(count(host_update_plan(0.5), Operation::host_step, 1), 1);
}

// What the host steps of gradients that it keeps does not travel.
TEST(Compile, GradientsOnTheHostAreSteppedThere) {
  model::Config model = small_model();
  model.precision = model::Precision::bf16;
  plan::Plan plan = host_update_plan(1.0);
  plan.stages[0].grad_offload_ratio = 1.0;
  const Program program = compile(plan, model, 0);
  for (const Task& task : program.tasks) {
    EXPECT_FALSE(task.phase == Phase::update && task.operation == Operation::copy_out)
        << label(task);
    if (task.operation != Operation::host_step) continue;
    for (const Operand& operand : task.operands)
      EXPECT_EQ(program.buffer(operand).tier, Tier::host);
  }
}

// Neither a gradient that is not down, nor a weight that is not stepped, nor one that is not up is
// used.
TEST(Verify, MissingWaitOfTheHostIsFound) {
  for (const double share : {0.5, 1.0})
    EXPECT_GE(
        expect_waits_missed(compile(host_update_plan(share), small_model(), 0), Channel::host), 6);
}

// A processor beside the device takes the update off it. One that computes everything itself, or of
// which nothing is known, gains nothing, whatever stays on the host.
TEST(Simulate, AHostStepsBesideADeviceOnly) {
  const model::Config model = samples::small_model(4, false);
  hardware::Profile profile = samples::round_profile(1);
  plan::Plan plan = plan::equal_stages(model, 4, 1, {.microbatch = 4});
  const auto seconds = [&](double offloaded, double on_host) {
    plan.stages[0].optim_offload_ratio = offloaded;
    plan.stages[0].host_update_ratio = on_host;
    return simulate(compile_all(plan, model), plan, model, profile).iteration_s;
  };
  for (const double share : {0.25, 0.5, 1.0}) EXPECT_GE(seconds(share, share), seconds(share, 0.0));
  profile.host_updates_per_s = 1e9;
  for (const double share : {0.25, 0.5, 1.0}) EXPECT_LT(seconds(share, share), seconds(share, 0.0));
}

// What is kept on the device shrinks to the shard, less what lies on the host.
TEST(Compile, StateIsShardedAndCut) {
  plan::Plan plan = small_plan(1, 2, 1, 2);
  plan.stages[0].zero_level = 3;
  plan.stages[0].weight_offload_ratio = 0.25;
  plan.stages[0].grad_offload_ratio = 0.5;
  const std::int64_t shard = model::layout(model::blocks(small_model())[1], 1, 0, 2).elements / 2;
  std::map<std::string, std::int64_t> bytes;
  for (const Buffer& buffer : compile(plan, small_model(), 1).buffers)
    if (buffer.persistent) bytes[buffer.name] = buffer.bytes;
  const std::int64_t quarter = shard / 64 * 16, half = shard / 32 * 16;
  EXPECT_EQ(bytes.at("layers.0.weights"), 4 * (shard - quarter));
  EXPECT_EQ(bytes.at("layers.0.host_weights"), 4 * quarter);
  EXPECT_EQ(bytes.at("layers.0.grads"), 4 * (shard - half));
  EXPECT_EQ(bytes.at("layers.0.host_grads"), 4 * half);
  EXPECT_EQ(bytes.at("layers.0.moments"), 8 * shard);
}

}  // namespace
}  // namespace brume::schedule
