#include "io/checkpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "checkpoint_samples.hpp"
#include "contract.hpp"
#include "device/device.hpp"
#include "engine/generator.hpp"
#include "io/shared_weights.hpp"
#include "kernels_main.hpp"
#include "trials.hpp"
#include "whole_tensors.hpp"

namespace brume::io {
namespace {

using engine::Engine;
using engine::Slab;
using test::State;

using CheckpointTest = CheckpointFault;

const model::Config small_model = {.num_layers = 4,
                                   .hidden_size = 36,
                                   .num_heads = 6,
                                   .ffn_size = 96,
                                   .seq_len = 12,
                                   .vocab_size = 61,
                                   .tied_head = true};
constexpr int global_batch = 12;

plan::Plan make_plan(int pp, int dp, int tp, int zero_level, double optim_offload,
                     double act_offload = 0.0, int ckpt_layers = 0, double weight_offload = 0.0,
                     double grad_offload = 0.0) {
  return plan::equal_stages(small_model, global_batch, pp,
                            {.dp = dp,
                             .tp = tp,
                             .zero_level = zero_level,
                             .ckpt_layers = ckpt_layers,
                             .weight_offload_ratio = weight_offload,
                             .grad_offload_ratio = grad_offload,
                             .optim_offload_ratio = optim_offload,
                             .act_offload_ratio = act_offload});
}

/// Two stages that differ in b, dp and tp.
plan::Plan mixed_plan() {
  plan::Plan plan = make_plan(2, 3, 1, 1, 0.5);
  plan.stages[1].microbatch = 3;
  plan.stages[1].dp = 1;
  plan.stages[1].tp = plan.stages[1].devices_per_node = 2;
  return plan;
}

/// The same with these shares of what is offloaded on disk, and a half of what stays in memory
/// stepped there.
plan::Plan with_disk(plan::Plan plan, double optim_disk, double act_disk) {
  for (plan::Stage& stage : plan.stages) {
    stage.optim_disk_ratio = optim_disk * stage.optim_offload_ratio;
    stage.host_update_ratio = (stage.optim_offload_ratio - stage.optim_disk_ratio) / 2.0;
    stage.act_disk_ratio = act_disk * stage.act_offload_ratio;
  }
  return plan;
}

/// The same stages, of which each so many lie on the same ranks.
plan::Plan interleaved(plan::Plan plan, int chunks) {
  plan.order.chunks = chunks;
  return plan;
}

plan::Plan with_replicas(plan::Plan plan, int replicas) {
  for (plan::Stage& stage : plan.stages) stage.replicas = replicas;
  return plan;
}

const std::vector<plan::Plan>& plans() {
  static const std::vector<plan::Plan> all = {
      make_plan(1, 1, 1, 0, 0.0),
      make_plan(1, 2, 1, 1, 0.5, 0.0, 0, 0.5),
      make_plan(1, 1, 2, 0, 0.0, 0.0, 0, 1.0, 1.0),
      with_disk(make_plan(2, 1, 2, 0, 0.25, 0.5), 0.5, 1.0),
      make_plan(1, 3, 1, 3, 0.0),
      with_disk(make_plan(2, 2, 1, 3, 1.0, 0.0, 1, 0.25, 0.25), 1.0, 0.0),
      make_plan(1, 2, 2, 2, 0.25),
      make_plan(4, 1, 1, 0, 0.0, 0.0, 0, 0.5),
      mixed_plan(),
      with_disk(make_plan(1, 1, 3, 0, 0.5), 0.6, 0.0),
      make_plan(2, 1, 3, 1, 0.0, 0.5),
      with_replicas(make_plan(1, 4, 1, 3, 0.5), 2),
      with_replicas(make_plan(1, 6, 1, 1, 0.25), 3),
      interleaved(make_plan(4, 1, 2, 0, 0.25, 0.5), 2),
      interleaved(make_plan(4, 2, 1, 3, 0.5, 0.0, 1, 0.25, 0.25), 2),
  };
  return all;
}

/// Elements of slabs, owned or copies, whose bits differ from the state.
int different(const State& state, const std::vector<Slab>& slabs) {
  int count = 0;
  for (const Slab& slab : slabs)
    test::for_each_element(slab, [&](std::size_t at, float value) {
      const float stored = state.at({slab.name, slab.kind})[at];
      const float expected = !slab.rounded                            ? stored
                             : slab.storage == model::Precision::bf16 ? float(bfloat16(stored))
                                                                      : float(float16(stored));
      count += std::memcmp(&expected, &value, sizeof(value)) != 0;
    });
  return count;
}

bool same_bits(const State& a, const State& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [tensor, values] : a)
    if (values.size() != b.at(tensor).size() ||
        std::memcmp(values.data(), b.at(tensor).data(), values.size() * sizeof(float)) != 0)
      return false;
  return true;
}

/// What a part of a training gave.
struct Part {
  std::vector<double> losses;
  std::vector<double> norms;
  State state;
  engine::LossScaling scaling;
};

/// Trains up to `last_step`, from the checkpoint when `resume`, and writes one at the end when
/// `save`.
Part train(const fs::path& directory, const plan::Plan& plan, bool resume, std::int64_t last_step,
           bool save, model::Precision precision = model::Precision::fp32) {
  model::Config model = small_model;
  model.precision = precision;
  const test::TokenFixture tokens(small_model.vocab_size);
  const data::Sampler data = tokens.sampler(small_model.seq_len);
  Part part;
  std::mutex mutex;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, test::contract_settings(20), world);
    std::vector<Slab> slabs = engine.slabs();
    if (resume) {
      const CheckpointInfo info = find_checkpoint(world, directory).value();
      load_slabs(info, slabs);
      engine.resume({.steps = info.step,
                     .samples = info.samples,
                     .scaling = info.scaling,
                     .updates = info.updates,
                     .missed = info.missed});
    } else {
      engine.resume({.scaling = {32.0, engine::steps_before_growth - 4}});  // S grows after 4 steps
    }
    while (engine.steps_done() < last_step) {
      const engine::StepMetrics metrics = engine.step(data);
      if (world.rank() != 0) continue;
      part.losses.push_back(metrics.loss);
      part.norms.push_back(metrics.grad_norm);
    }
    engine.flush();
    {
      const std::lock_guard lock(mutex);
      test::collect(part.state, slabs);
      part.scaling = engine.progress().scaling;
    }
    if (!save) return;
    CheckpointWriter writer(directory, world);
    CheckpointInfo info;
    info.step = last_step;
    info.samples = engine.progress().samples;
    info.scaling = engine.progress().scaling;
    info.updates = engine.progress().updates;
    info.plan_text = plan::text(plan);
    writer.start(info, slabs);
    writer.finish();
  });
  return part;
}

// A checkpoint without them is an older one.
TEST_F(CheckpointTest, KeepsCountsOfUpdates) {
  Memory memory(0, rows);
  for (const bool counted : {true, false}) {
    CheckpointInfo info = info_of(counted ? 10 : 20);
    if (counted) info.updates = 7, info.missed = {{"table", 3}, {"head.weight", 5}};
    comm::run_local(1, [&](comm::Communicator& world) {
      CheckpointWriter writer(directory_, world);
      writer.start(info, memory.slabs);
      writer.finish();
    });
    const CheckpointInfo found = find(directory_).value();
    EXPECT_EQ(found.updates, counted ? 7 : -1);
    EXPECT_EQ(found.missed, info.missed);
    EXPECT_EQ(found.trained, std::set<std::string>{"table"});
  }
}

class AnyPlan : public CheckpointTest, public ::testing::WithParamInterface<int> {};

/// A plan and the next ones in steps of four, which come to all of them.
std::vector<plan::Plan> plan_and_others(int number) {
  std::vector<plan::Plan> found;
  const std::size_t count = std::min(plans().size(), std::size_t(test::trials(3)));
  for (std::size_t i = 0; i < count; ++i)
    found.push_back(plans()[(std::size_t(number) + 4 * i) % plans().size()]);
  return found;
}

// Copies are filled as well. Neither 2 nor 3 tensor-parallel ranks divide the 61 tokens.
TEST_P(AnyPlan, LoadsBitwiseUnderOtherPlans) {
  const plan::Plan& saved = plans()[std::size_t(GetParam())];
  const Part part = train(directory_, saved, false, 2, true);
  const CheckpointInfo info = find(directory_).value();
  EXPECT_EQ(info.step, 2);
  EXPECT_EQ(info.ranks, saved.devices());
  EXPECT_EQ(plan::parse(info.plan_text, "manifest"), saved);
  for (const plan::Plan& loaded : plan_and_others(GetParam())) {
    comm::run_local(loaded.devices(), [&](comm::Communicator& world) {
      Engine engine(loaded, small_model, test::contract_settings(20), world);
      std::vector<Slab> slabs = engine.slabs();
      load_slabs(info, slabs);
      EXPECT_EQ(different(part.state, slabs), 0) << plan::text(saved) << "to\n"
                                                 << plan::text(loaded) << "rank " << world.rank();
    });
  }
}

TEST_P(AnyPlan, ResumedRunIsBitwiseTheOneNeverStopped) {
  const plan::Plan& plan = plans()[std::size_t(GetParam())];
  const Part straight = train(directory_, plan, false, 8, false);
  const Part before = train(directory_, plan, false, 5, true);
  Part after = train(directory_, plan, true, 8, false);
  after.losses.insert(after.losses.begin(), before.losses.begin(), before.losses.end());
  after.norms.insert(after.norms.begin(), before.norms.begin(), before.norms.end());
  EXPECT_EQ(after.losses, straight.losses);
  EXPECT_EQ(after.norms, straight.norms);
  EXPECT_TRUE(same_bits(after.state, straight.state));
}

TEST_P(AnyPlan, ResumedUnderAnotherPlanGivesTheSameLosses) {
  const plan::Plan& first = plans()[std::size_t(GetParam())];
  const plan::Plan& second = plans()[(std::size_t(GetParam()) + 2) % plans().size()];
  const Part straight = train(directory_, first, false, 10, false);
  train(directory_, first, false, 5, true);
  const Part after = train(directory_, second, true, 10, false);
  const std::vector<double> expected(straight.losses.begin() + 5, straight.losses.end());
  EXPECT_LE(test::largest_difference(after.losses, expected), 1e-5);
}

class SomePlans : public AnyPlan {};

// Whatever is done with the memory between steps, the next ones have the same bits.
TEST_P(SomePlans, LendMemoryToAGeneratorThatGetsTheWeights) {
  const plan::Plan& plan = plans()[std::size_t(GetParam())];
  const Part straight = train(directory_, plan, false, 4, false);
  const int ranks = plan.devices();
  const plan::Plan copies = engine::generating(plan::equal_stages(
      small_model, ranks, 1, {.devices_per_node = ranks, .microbatch = 1, .dp = ranks}));
  const model::Config sizes =
      model::generating(small_model, {.tokens = 8, .sequences = 1, .blocks = 1});
  const test::TokenFixture tokens(small_model.vocab_size);
  const data::Sampler data = tokens.sampler(small_model.seq_len);
  Part part;
  State then;
  std::mutex mutex;
  comm::run_local(ranks, [&](comm::Communicator& world) {
    engine::Settings settings = test::contract_settings(20);
    settings.lent_bytes = engine::generator_bytes(copies, sizes, world.rank());
    Engine engine(plan, small_model, settings, world);
    const std::vector<Slab> slabs = engine.slabs();
    for (int step = 0; step < 4; ++step) {
      const double loss = engine.step(data).loss;
      if (world.rank() == 0) part.losses.push_back(loss);
      if (step != 1) continue;
      const engine::LentMemory lent = engine.lend();
      engine::Generator generator(copies, sizes, settings, world, &lent);
      const std::vector<Slab> filled = generator.slabs();
      share_weights(world, slabs, filled);
      {
        const std::lock_guard lock(mutex);
        test::collect(then, slabs);
      }
      world.barrier();
      EXPECT_EQ(different(then, filled), 0) << plan::text(plan) << "rank " << world.rank();
      const std::int32_t table = 0;
      const std::span<const float> logits = generator.run(
          {.tokens = {{1, 0, 0}, {2, 0, 1}}, .wanted = 1, .tables = std::span(&table, 1)});
      EXPECT_EQ(std::ssize(logits), small_model.vocab_size);
      const auto spoil = [&](std::byte* memory, schedule::Tier tier) {
        const std::int64_t bytes = settings.lent_bytes[std::size_t(tier)];
        if (bytes > 0) device::fill(memory, std::byte{0xFF}, bytes);  // NaN
      };
      spoil(lent.device, schedule::Tier::device);
      spoil(lent.host, schedule::Tier::host);
      device::finish();
    }
    engine.flush();
    const std::lock_guard lock(mutex);
    test::collect(part.state, slabs);
  });
  EXPECT_EQ(part.losses, straight.losses);
  EXPECT_TRUE(same_bits(part.state, straight.state));
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, SomePlans, ::testing::Values(3, 5, 8, 11, 14));
INSTANTIATE_TEST_SUITE_P(Checkpoint, AnyPlan, ::testing::Range(0, 15));

constexpr auto bf16 = model::Precision::bf16, fp16 = model::Precision::fp16,
               fp32 = model::Precision::fp32;

/// A narrow precision and the number of a plan.
class NarrowState : public CheckpointTest,
                    public ::testing::WithParamInterface<std::tuple<model::Precision, int>> {
 protected:
  const model::Precision precision_ = std::get<0>(GetParam());
  const int number_ = std::get<1>(GetParam());
};

TEST_P(NarrowState, ResumedRunIsBitwiseTheOneNeverStopped) {
  const plan::Plan& plan = plans()[std::size_t(number_)];
  const Part straight = train(directory_, plan, false, 6, false, precision_);
  const Part before = train(directory_, plan, false, 3, true, precision_);
  Part after = train(directory_, plan, true, 6, false, precision_);
  after.losses.insert(after.losses.begin(), before.losses.begin(), before.losses.end());
  EXPECT_EQ(after.losses, straight.losses);
  EXPECT_TRUE(same_bits(after.state, straight.state));
  EXPECT_EQ(after.scaling, straight.scaling);
  if (precision_ == fp16) {
    EXPECT_EQ(after.scaling, (engine::LossScaling{64.0, 2}));
  }
}

// Masters are what a checkpoint holds, so a precision reads what another wrote: the same bits, and
// below fp32 weights that are the rounded masters.
TEST_P(NarrowState, LoadsUnderOtherPlansInEveryPrecision) {
  const std::vector<std::pair<model::Precision, model::Precision>> pairs{
      {precision_, precision_}, {precision_, fp32}, {fp32, precision_}};
  const auto& [saved, loaded] = pairs[std::size_t(number_) % 3];
  const Part part = train(directory_, plans()[std::size_t(number_)], false, 2, true, saved);
  const CheckpointInfo info = find(directory_).value();
  model::Config model = small_model;
  model.precision = loaded;
  for (const plan::Plan& plan : plan_and_others(number_))
    comm::run_local(plan.devices(), [&](comm::Communicator& world) {
      Engine engine(plan, model, test::contract_settings(20), world);
      std::vector<Slab> slabs = engine.slabs();
      load_slabs(info, slabs);
      EXPECT_EQ(different(part.state, slabs), 0) << plan::text(plan) << "rank " << world.rank();
    });
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, NarrowState,
                         ::testing::Combine(::testing::Values(bf16, fp16),
                                            ::testing::Values(1, 3, 8, 14)));

TEST_F(CheckpointTest, AnotherModelIsRefusedByTensor) {
  train(directory_, plans()[0], false, 1, true);
  const CheckpointInfo info = find(directory_).value();
  model::Config wider = small_model;
  wider.ffn_size *= 2;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(plans()[0], wider, test::contract_settings(20), world);
    std::vector<Slab> slabs = engine.slabs();
    try {
      load_slabs(info, slabs);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::storage);
      EXPECT_NE(std::string(error.what()).find("layers.0.mlp"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace brume::io
