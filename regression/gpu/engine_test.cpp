/// @file The engine on a GPU: several ranks share it, so what they exchange goes through the host.
#include "stream_cases.hpp"

#include "device/device.hpp"
#include "gpu.hpp"
#include "kernels/types.hpp"

namespace brume::engine {
namespace {

plan::Plan plan_of(int stages, int dp, int tp, const plan::Stage& knobs) {
  plan::Plan plan;
  plan.global_batch = 8;
  plan.microbatches = 8 / dp;
  for (int s = 0; s < stages; ++s) {
    plan::Stage stage = knobs;
    stage.layers = 2 / stages;
    stage.first_layer = s * stage.layers;
    stage.dp = dp;
    stage.tp = tp;
    stage.devices_per_node = stage.devices();
    plan.stages.push_back(stage);
  }
  return plan;
}

void expect_like(const test::Trained& one, const plan::Plan& plan, const model::Config& model,
                 const Settings& settings, const data::Sampler& data) {
  const test::Trained all = test::train(plan, model, settings, data);
  EXPECT_LE(test::largest_difference(all.losses, one.losses), 1e-5) << plan::text(plan);
  EXPECT_LE(test::largest_difference(all.norms, one.norms), 1e-4) << plan::text(plan);
}

/// Each knob alone, then all of them together, on one rank and on several.
TEST(OnGpu, KnobsAloneAndTogetherTrainLikeOneRank) {
  const model::Config model{.num_layers = 2,
                            .hidden_size = 64,
                            .num_heads = 4,
                            .ffn_size = 256,
                            .seq_len = 8,
                            .vocab_size = 101};
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const Settings settings = test::contract_settings(3);
  const test::Trained one = test::train(test::one_rank_plan(model, 8), model, settings, data);
  EXPECT_LT(one.losses[2], 0.99 * one.losses[0]);
  const std::vector<plan::Stage> knobs{{.ckpt_layers = 1},
                                       {.weight_offload_ratio = 0.5},
                                       {.grad_offload_ratio = 0.5},
                                       {.optim_offload_ratio = 0.5},
                                       {.act_offload_ratio = 0.5}};
  std::vector<plan::Plan> plans{plan_of(1, 1, 1, {}), plan_of(2, 1, 1, {}), plan_of(1, 2, 1, {}),
                                plan_of(1, 1, 2, {})};
  for (const plan::Stage& knob : knobs) plans.push_back(plan_of(1, 1, 1, knob));
  for (int level : {1, 2, 3}) plans.push_back(plan_of(1, 2, 1, {.zero_level = level}));
  for (int level : {1, 3}) plans.push_back(plan_of(1, 4, 1, {.zero_level = level, .replicas = 2}));
  plans.push_back(plan_of(1, 2, 1, {.cp = 2, .zero_level = 3}));
  plans.push_back(plan_of(1, 1, 2, {.cp = 2, .ckpt_layers = 2}));
  plans.push_back(plan_of(2, 2, 2,
                          {.zero_level = 3,
                           .ckpt_layers = 1,
                           .weight_offload_ratio = 0.5,
                           .grad_offload_ratio = 0.5,
                           .optim_offload_ratio = 0.5,
                           .act_offload_ratio = 0.5}));
  for (const plan::Plan& plan : plans) {
    expect_like(one, plan, model, settings, data);
  }
}

/// Experts, and their losses, in plans that cut them, that divide them and that make them again.
TEST(OnGpu, ExpertsTrainLikeOneRank) {
  const model::Config model{.family = &model::family("llama"),
                            .num_layers = 2,
                            .hidden_size = 64,
                            .num_heads = 4,
                            .num_experts = 6,
                            .experts_per_token = 2,
                            .expert_ffn_size = 48,
                            .balance_loss = 0.1,
                            .z_loss = 0.01,
                            .seq_len = 8,
                            .vocab_size = 101,
                            .qkv_bias = false,
                            .linear_bias = false};
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const Settings settings = test::contract_settings(3);
  const test::Trained one = test::train(test::one_rank_plan(model, 8), model, settings, data);
  EXPECT_LT(one.losses[2], 0.99 * one.losses[0]);
  for (const plan::Plan& plan :
       {plan_of(1, 1, 1, {.ckpt_layers = 1, .act_offload_ratio = 0.5}),
        plan_of(1, 2, 2, {.zero_level = 3}), plan_of(2, 1, 2, {.weight_offload_ratio = 0.5}),
        plan_of(1, 2, 1, {.ep = 2}), plan_of(1, 1, 2, {.ep = 2, .ckpt_layers = 2})}) {
    expect_like(one, plan, model, settings, data);
  }
}

/// An adapter of layers in blocks of 4 and 8 bits.
TEST(OnGpu, QuantizedModelsTrainLikeOneRank) {
  for (const int i : {0, 1}) {
    model::Config model{.num_layers = 2,
                        .hidden_size = 64,
                        .num_heads = 4,
                        .ffn_size = 256,
                        .seq_len = 8,
                        .vocab_size = 101};
    test::quantize(i, model);
    model.hidden_size = 64, model.head_size = 16, model.ffn_size = 128;
    const test::TokenFixture tokens(model.vocab_size);
    const data::Sampler data = tokens.sampler(model.seq_len);
    const Settings settings = test::contract_settings(3);
    const test::Trained one = test::train(test::one_rank_plan(model, 8), model, settings, data);
    const plan::Plan plan = i == 0
                                ? plan_of(1, 1, 1, {.ckpt_layers = 1, .weight_offload_ratio = 0.5})
                                : plan_of(1, 2, 1, {.zero_level = 3});
    expect_like(one, plan, model, settings, data);
  }
}

/// In 8 bits plans differ by roundings, within the tolerances of the contract in these formats.
TEST(OnGpu, FactorsOfEightBitsTrainLikeOneRank) {
  model::Config model{.num_layers = 2,
                      .hidden_size = 64,
                      .num_heads = 4,
                      .ffn_size = 256,
                      .seq_len = 16,
                      .vocab_size = 101};
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const Settings settings = test::contract_settings(3);
  model.precision = model::Precision::bf16;
  const test::Trained wide = test::train(test::one_rank_plan(model, 8), model, settings, data);
  model.precision = model::Precision::fp8;
  const test::Trained one = test::train(test::one_rank_plan(model, 8), model, settings, data);
  EXPECT_LT(one.losses[2], one.losses[0]);
  EXPECT_NE(one.losses, wide.losses);
  EXPECT_LE(test::largest_difference(one.losses, wide.losses), 3 * 2.8e-3);
  for (const plan::Plan& plan : {plan_of(2, 2, 1, {.zero_level = 3, .ckpt_layers = 1}),
                                 plan_of(1, 1, 2, {.weight_offload_ratio = 0.5})}) {
    const test::Trained all = test::train(plan, model, settings, data);
    const bool cut = plan.stages[0].tp > 1;
    EXPECT_LE(test::largest_difference(all.losses, one.losses), 3 * (cut ? 5.6e-2 : 1.4e-3))
        << plan::text(plan);
  }
}

/// The arenas are on the device: what the engine takes is gone there, and comes back.
TEST(OnGpu, ArenasAreTheDevices) {
  const model::Config model{.num_layers = 2,
                            .hidden_size = 1024,
                            .num_heads = 8,
                            .ffn_size = 4096,
                            .seq_len = 128,
                            .vocab_size = 1000};
  comm::run_local(1, [&](comm::Communicator& world) {
    std::optional<Engine> engine;
    const auto make = [&] {
      engine.emplace(test::one_rank_plan(model, 1), model, test::contract_settings(1), world);
    };
    make();  // what libraries take at the first use stays with them
    engine.reset();
    const std::int64_t before = device::describe_device().free_bytes;
    make();
    const std::int64_t taken = before - device::describe_device().free_bytes;
    const std::int64_t arena = engine->program().arena_bytes[std::size_t(schedule::Tier::device)];
    EXPECT_NEAR(double(taken), double(arena), 0.02 * double(arena) + double(16 << 20));
    engine.reset();
    EXPECT_GE(device::describe_device().free_bytes, before - (16 << 20));
  });
}

}  // namespace
}  // namespace brume::engine

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  BRUME_NEEDS_GPU();
  const brume::kernels::Runtime runtime(1);
  return RUN_ALL_TESTS();
}
