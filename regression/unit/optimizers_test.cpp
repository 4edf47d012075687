#include "model/optimizers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "contract.hpp"
#include "device/device.hpp"
#include "io/checkpoint.hpp"
#include "model/storage.hpp"
#include "own_folder.hpp"
#include "price/price.hpp"
#include "refusal.hpp"
#include "schedule/compile.hpp"
#include "whole_tensors.hpp"

namespace brume {
namespace {

using kernels::Update;
using kernels::UpdatedElements;
using model::Precision;
using model::StateField;

// --- optimizers of this test alone --------------------------------------------------------------

double grad_scale(const Update& update, const double* squares) {
  const double norm = std::sqrt(*squares) / update.loss_scale;
  return std::min(1.0, update.clip_norm / (norm + 1e-6)) / update.loss_scale;
}

/// SGD with a momentum of 16 bits.
void sgd_bf16(const Update& update, const double* squares, const UpdatedElements& elements) {
  const double scale = grad_scale(update, squares);
  auto* const m = elements.field<bfloat16>(0);
  for (std::int64_t i = 0; i < elements.count; ++i) {
    float& w = elements.weight[i];
    m[i] = float(update.beta1) * float(m[i]) + float(scale) * elements.grad[i] +
           update.weight_decay * w;
    w -= update.lr * float(m[i]);
    std::visit(
        [&](auto* rounded) {
          if (rounded != nullptr) rounded[i] = w;
        },
        elements.rounded);
  }
}

constexpr StateField bf16_momentum[] = {{"momentum", Precision::bf16}};

/// A row and its kernels.
struct Optimizer {
  model::OptimizerRow row;
  kernels::UpdateKernel kernel;
};
const Optimizer sgd{model::sgd, kernels::update_kernels("sgd").here};
const Optimizer lion{model::lion, kernels::update_kernels("lion").here};
const Optimizer muon{model::muon, kernels::update_kernels("adamw").here};
const Optimizer muon_bf16{model::muon, kernels::update_kernels("adamw", Moments::bf16).here};
constexpr Optimizer in_bf16{{.name = "sgd_bf16", .fields = bf16_momentum, .flops = 4.0}, sgd_bf16};

// --- trainings with them ------------------------------------------------------------------------

constexpr int global_batch = 8;

model::Config model_with(const Optimizer& optimizer, Precision precision = Precision::fp32) {
  return {.num_layers = 4,
          .hidden_size = 36,
          .num_heads = 6,
          .ffn_size = 96,
          .seq_len = 12,
          .vocab_size = 61,
          .tied_head = true,
          .precision = precision,
          .optimizer = &optimizer.row,
          .moments = &optimizer == &muon_bf16 ? Moments::bf16 : Moments::fp32};
}

engine::Settings settings_with(const Optimizer& optimizer, int steps) {
  engine::Settings settings = test::contract_settings(steps);
  const std::string name = optimizer.row.name;
  settings.optimizer.lr = name == "lion" ? 3e-3 : name == "muon" ? 0.02 : 0.1;
  settings.optimizer.kernels = {.here = optimizer.kernel, .on_host = optimizer.kernel};
  return settings;
}

struct Outcome {
  test::Trained trained;
  test::State state;
};

Outcome train(const plan::Plan& plan, const model::Config& model,
              const engine::Settings& settings) {
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  Outcome outcome;
  std::mutex mutex;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    engine::Engine engine(plan, model, settings, world);
    const test::Trained mine = test::train(engine, settings, plan.global_batch, data);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) outcome.trained = mine;
    test::collect(outcome.state, engine.slabs());
  });
  return outcome;
}

/// Largest difference of two states, as a share of the largest value of a tensor.
double largest_difference(const test::State& a, const test::State& b) {
  double most = a.size() == b.size() ? 0.0 : INFINITY;
  for (const auto& [tensor, values] : a) {
    const std::vector<float>& others = b.at(tensor);
    double difference = 0.0, size = 1e-3;
    for (std::size_t i = 0; i < values.size(); ++i) {
      // A NaN, of an element that no rank owns, is the largest of all.
      if (!(std::abs(values[i] - others[i]) <= difference))
        difference = std::abs(double(values[i]) - others[i]);
      size = std::max(size, std::abs(double(values[i])));
    }
    if (!(difference / size <= most)) most = difference / size;
  }
  return most;
}

/// Share of values that differ by more than a rounding.
double share_that_differs(const test::State& a, const test::State& b) {
  double differing = 0.0, all = 0.0;
  for (const auto& [tensor, values] : a)
    for (std::size_t i = 0; i < values.size(); ++i) {
      all += 1.0;
      differing += std::abs(double(values[i]) - b.at(tensor)[i]) > 1e-5;
    }
  return differing / all;
}

class SecondRow : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::on_device()) GTEST_SKIP() << "these kernels are for hosts";
  }
};

class ZeroLevels : public SecondRow, public ::testing::WithParamInterface<int> {};

/// Plans of four ranks at a ZeRO level, with nothing and with parts of all state on the host, on
/// disk and updated by the host.
std::vector<plan::Plan> plans_at(int zero_level, const model::Config& model) {
  std::vector<plan::Plan> plans;
  for (const auto& [stages, dp, tp, shares] :
       {std::tuple{1, 4, 1, std::vector{0.0, 0.6}}, {1, 2, 2, {0.6}}, {2, 2, 1, {0.6}}})
    for (const double share : shares) {
      plans.push_back(plan::equal_stages(model, global_batch, stages,
                                         {.microbatch = 2,
                                          .dp = dp,
                                          .tp = tp,
                                          .zero_level = zero_level,
                                          .weight_offload_ratio = share,
                                          .grad_offload_ratio = share,
                                          .optim_offload_ratio = share}));
      for (plan::Stage& stage : plans.back().stages)
        stage.optim_disk_ratio = share / 3,
        stage.host_update_ratio = model.optimizer->of_elements ? 0.0 : share / 2;
    }
  return plans;
}

TEST_P(ZeroLevels, TrainLikeOneRank) {
  for (const Optimizer* const optimizer : {&sgd, &lion, &muon}) {
    const model::Config model = model_with(*optimizer);
    const engine::Settings settings = settings_with(*optimizer, 12);
    const Outcome one = train(test::one_rank_plan(model, global_batch), model, settings);
    EXPECT_LT(one.trained.losses.back(), 0.9 * one.trained.untrained) << optimizer->row.name;
    for (const plan::Plan& plan : plans_at(GetParam(), model)) {
      const Outcome all = train(plan, model, settings);
      EXPECT_TRUE(test::trains_like(one.trained, all.trained)) << optimizer->row.name << "\n"
                                                               << plan::text(plan);
      // A rounding may turn a sign of Lion's.
      if (optimizer == &sgd) {
        EXPECT_LT(largest_difference(one.state, all.state), 1e-5) << plan::text(plan);
      }
    }
  }
}

// Below fp32 too, with a field of 16 bits beside the master weight of 32. Each level takes every
// second pair.
TEST_P(ZeroLevels, PlacesOfStateChangeNoBit) {
  const std::pair<const Optimizer*, Precision> pairs[] = {
      {&muon_bf16, Precision::bf16}, {&sgd, Precision::bf16},    {&muon, Precision::bf16},
      {&lion, Precision::bf16},      {&muon, Precision::fp32},   {&muon, Precision::fp16},
      {&in_bf16, Precision::fp32},   {&in_bf16, Precision::bf16}};
  for (std::size_t i = std::size_t(GetParam()) % 2; i < std::size(pairs); i += 2) {
    const auto& [optimizer, precision] = pairs[i];
    const model::Config model = model_with(*optimizer, precision);
    const engine::Settings settings = settings_with(*optimizer, 4);
    for (const plan::Plan& plan : plans_at(GetParam(), model)) {
      plan::Plan here = plan;
      for (plan::Stage& stage : here.stages)
        stage.optim_offload_ratio = stage.optim_disk_ratio = stage.host_update_ratio = 0.0;
      if (plan == here) continue;
      const Outcome one = train(here, model, settings), other = train(plan, model, settings);
      EXPECT_EQ(one.trained.losses, other.trained.losses) << plan::text(plan);
      EXPECT_EQ(largest_difference(one.state, other.state), 0.0) << plan::text(plan);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ZeroLevels, ::testing::Range(0, 4));

/// Clipped gradients at these weights: the first moments that AdamW without memory makes.
test::State gradients(const test::State& state, int step, const engine::Settings& settings) {
  model::Config model = model_with(sgd);
  model.optimizer = &model::adamw;
  engine::Settings forgetful = settings;
  forgetful.optimizer.kernels.reset();
  forgetful.optimizer.beta1 = 0.0;
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  test::State found;
  comm::run_local(1, [&](comm::Communicator& world) {
    engine::Engine engine(test::one_rank_plan(model, global_batch), model, forgetful, world);
    for (const engine::Slab& slab : engine.slabs())
      if (slab.kind == "weight") engine::set_values(slab, 0, state.at({slab.name, slab.kind}));
    engine.resume({.steps = step, .samples = step * global_batch, .updates = step});
    engine.step(data);
    engine.flush();
    test::collect(found, engine.slabs());
  });
  return found;
}

// The reference takes AdamW's gradients at its own weights, and steps in double precision.
TEST_F(SecondRow, TrainsLikeAReference) {
  constexpr int steps = 6;
  const auto step_of_sgd = [](double& m, float& w, double g, double lr, double decay) {
    m = 0.9 * m + g + decay * w;
    w = float(w - lr * m);
  };
  const auto step_of_lion = [](double& m, float& w, double g, double lr, double decay) {
    const double direction = 0.9 * m + (1.0 - 0.9) * g;
    m = 0.95 * m + (1.0 - 0.95) * g;
    w = float(w - lr * decay * w - lr * double((direction > 0.0) - (direction < 0.0)));
  };
  using Step = void (*)(double&, float&, double, double, double);
  for (const auto& [optimizer, reference] :
       {std::pair<const Optimizer*, Step>(&sgd, step_of_sgd), {&lion, step_of_lion}}) {
    const model::Config model = model_with(*optimizer);
    engine::Settings settings = settings_with(*optimizer, steps);
    settings.optimizer.beta2 = 0.95;
    const plan::Plan one = test::one_rank_plan(model, global_batch);
    test::State state = train(one, model, settings_with(*optimizer, 0)).state;
    std::map<std::string, std::vector<double>> momenta;
    for (int step = 0; step < steps; ++step) {
      const test::State grads = gradients(state, step, settings);
      for (const model::Block& block : model::blocks(model))
        for (const model::Parameter& parameter : block.parameters) {
          const engine::UpdateRule rule = engine::update_rule(settings.optimizer, parameter);
          const double lr = rule.lr_scale * engine::learning_rate(settings.optimizer, step, steps);
          const std::vector<float>& g = grads.at({parameter.name, "m"});
          std::vector<float>& w = state.at({parameter.name, "weight"});
          std::vector<double>& m = momenta[parameter.name];
          m.resize(w.size());
          for (std::size_t i = 0; i < w.size(); ++i)
            reference(m[i], w[i], g[i], lr, double(rule.weight_decay));
          state.at({parameter.name, optimizer->row.fields[0].name}).assign(m.begin(), m.end());
        }
    }
    const test::State trained = train(one, model, settings).state;
    if (optimizer == &sgd) {
      EXPECT_LT(largest_difference(state, trained), 1e-5);
    } else {
      // A gradient that is nearly 0, as of biases of keys, may have another sign.
      EXPECT_LT(share_that_differs(state, trained), 0.01);
    }
  }
}

// A checkpoint of four ranks holds the row's fields, and two ranks resume it. A checkpoint with
// AdamW's state is refused.
TEST_F(SecondRow, ResumesFromItsCheckpoints) {
  constexpr int steps = 6, saved = 3;
  for (const Optimizer* const optimizer : {&sgd, &in_bf16, &muon}) {
    const std::string momentum = optimizer->row.fields[0].name;
    const model::Config model = model_with(*optimizer, Precision::bf16);
    const engine::Settings settings = settings_with(*optimizer, steps);
    const plan::Plan four = plans_at(1, model)[1],
                     two = plan::equal_stages(model, global_batch, 1, {.dp = 2, .zero_level = 3});
    const test::TokenFixture tokens(model.vocab_size);
    const data::Sampler data = tokens.sampler(model.seq_len);
    const test::OwnFolder folder;
    test::State written;
    std::mutex mutex;
    comm::run_local(four.devices(), [&](comm::Communicator& world) {
      engine::Engine engine(four, model, settings, world);
      while (engine.steps_done() < saved) engine.step(data);
      engine.flush();
      const std::vector<engine::Slab> slabs = engine.slabs();
      {
        const std::lock_guard lock(mutex);
        test::collect(written, slabs);
      }
      io::CheckpointWriter writer(folder.path(), world);
      io::CheckpointInfo info;
      info.step = saved;
      info.samples = engine.progress().samples;
      info.updates = engine.progress().updates;
      writer.start(info, slabs);
      writer.finish();
    });
    EXPECT_TRUE(written.contains({"layers.0.mlp.in.weight", momentum}));
    EXPECT_EQ(written.contains({"layers.0.mlp.in.bias", "v"}), optimizer == &muon);
    EXPECT_FALSE(written.contains({"layers.0.mlp.in.weight", "v"}));
    test::State read;
    std::vector<double> losses;
    comm::run_local(two.devices(), [&](comm::Communicator& world) {
      engine::Engine engine(two, model, settings, world);
      const io::CheckpointInfo info = io::find_checkpoint(world, folder.path()).value();
      std::vector<engine::Slab> slabs = engine.slabs();
      io::load_slabs(info, slabs);
      engine.resume({.steps = info.step, .samples = info.samples, .updates = info.updates});
      {
        const std::lock_guard lock(mutex);
        test::collect(read, slabs);
      }
      while (engine.steps_done() < steps) {
        const double loss = engine.step(data).loss;
        if (world.rank() == 0) losses.push_back(loss);
      }
    });
    EXPECT_EQ(largest_difference(written, read), 0.0);
    const Outcome whole = train(two, model, settings);
    for (int step = saved; step < steps; ++step)
      EXPECT_NEAR(losses[std::size_t(step - saved)], whole.trained.losses[std::size_t(step)], 2e-3);

    model::Config by_adamw = model;
    by_adamw.optimizer = &model::adamw;
    comm::run_local(1, [&](comm::Communicator& world) {
      engine::Settings usual = settings;
      usual.optimizer.kernels.reset();
      engine::Engine engine(test::one_rank_plan(by_adamw, global_batch), by_adamw, usual, world);
      std::vector<engine::Slab> slabs = engine.slabs();
      const io::CheckpointInfo info = io::find_checkpoint(world, folder.path()).value();
      const std::string why = test::refusal([&] { io::load_slabs(info, slabs); }, Failure::storage);
      EXPECT_NE(why.find("holds " + momentum + " of"), std::string::npos) << why;
    });
  }
}

// --- rows as data -------------------------------------------------------------------------------

TEST(OptimizerRow, SaysBytesFieldsAndPrice) {
  model::Config model;
  EXPECT_EQ(model::optimizer_bytes(model), 8);
  EXPECT_EQ(model.optimizer->moved_bytes(), 28.0);
  model.precision = Precision::bf16;
  EXPECT_EQ(model::optimizer_bytes(model), 12);
  EXPECT_EQ(model::state_fields(model).size(), 3u);
  model.optimizer = &in_bf16.row;
  EXPECT_EQ(model::optimizer_bytes(model), 2 + 4);
  EXPECT_EQ(model::state_fields(model)[0].name, std::string("momentum"));
  EXPECT_EQ(model::state_fields(model)[1].name, std::string("weight"));

  hardware::Profile profile;
  profile.bytes_per_s = 1e9;
  profile.flops_per_s = 1e12;
  EXPECT_DOUBLE_EQ(price::optimizer_s(model, profile, 1e6),
                   1e6 * (4 + 2 * (4 + 2)) / 1e9 + 1e6 * 4.0 / 1e12);
  profile.operators.push_back({.kind = "sgd_bf16", .dims = {1'000'000}, .forward_s = 0.5});
  EXPECT_DOUBLE_EQ(price::optimizer_s(model, profile, 1e6), 0.5);

  model.moments = Moments::bf16;
  model.precision = Precision::fp32;
  model.optimizer = &model::adamw;
  EXPECT_EQ(model::optimizer_bytes(model), 4);
  EXPECT_EQ(model::update_kind(model::muon, model.moments), "adamw_bf16");
  profile.operators = {{.kind = "adamw", .dims = {1'000'000}, .forward_s = 0.7}};
  EXPECT_DOUBLE_EQ(price::optimizer_s(model, profile, 1e6), 0.5);  // 20 bytes of 28
  profile.operators.push_back({.kind = "adamw_bf16", .dims = {1'000'000}, .forward_s = 0.6});
  EXPECT_DOUBLE_EQ(price::optimizer_s(model, profile, 1e6), 0.6);
  model.moments = Moments::fp32;

  // A profile that knows AdamW alone: Lion moves 20 bytes an element instead of 28.
  profile.operators = {{.kind = "adamw", .dims = {1'000'000}, .forward_s = 0.7}};
  model.optimizer = &model::lion;
  EXPECT_DOUBLE_EQ(price::optimizer_s(model, profile, 1e6), 0.5);
}

// One number for a matrix's element, two for others, and below fp32 a master weight of each; layers
// have no more padding than their pieces.
TEST(OptimizerRow, OfWholeMatricesKeepsLessOfThem) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const model::Config model = model_with(muon, precision);
    EXPECT_EQ(model::optimizer_bytes(model), precision == Precision::fp32 ? 8 : 12);
    EXPECT_EQ(model::lean_optimizer_bytes(model), precision == Precision::fp32 ? 4 : 8);
    const plan::Plan plan = test::one_rank_plan(model, global_batch);
    std::map<int, std::int64_t> bytes;
    for (const schedule::Buffer& buffer : schedule::compile(plan, model, 0).buffers)
      if (buffer.persistent && buffer.content == schedule::Content::optimizer)
        bytes[buffer.block] += buffer.bytes;
    const std::vector<model::Block> blocks = model::blocks(model);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::int64_t expected = 0;
      for (const model::Parameter& one : blocks[i].parameters) {
        const bool matrix =
            blocks[i].kind == model::BlockKind::layer && one.name.ends_with("weight");
        expected += one.elements() * ((matrix ? 4 : 8) + (precision == Precision::fp32 ? 0 : 4));
      }
      const std::int64_t padding = std::int64_t(blocks[i].parameters.size()) * 15 * 12;
      EXPECT_GE(bytes.at(int(i)), expected) << blocks[i].name;
      EXPECT_LE(bytes.at(int(i)), expected + padding) << blocks[i].name;
    }
  }
}

// Products and passes of each matrix, on the ranks that hold a part of it.
TEST(OptimizerRow, OfWholeMatricesHasAPriceForEachShard) {
  model::Config model = model_with(muon);
  hardware::Profile profile;
  profile.flops_per_s = 1e9, profile.bytes_per_s = 1e30;
  const std::vector<model::Block> blocks = model::blocks(model);
  const auto step_s = [&](int shards) {
    return price::matrix_step_s(model, profile, blocks[1], {}, shards);
  };
  const double c = model.hidden_size, f = model.ffn_size;
  const auto iterations = [](double m, double n) {
    return 5.0 * (4.0 * m * m * n + 2.0 * m * m * m);
  };
  const double square_s = iterations(c, c) / 1e9, wide_s = iterations(c, f) / 1e9;
  EXPECT_NEAR(step_s(1), 4.0 * square_s + 2.0 * wide_s, 1e-9);
  // The first of two shards has the square ones and a part of mlp's first, the second both of
  // mlp's.
  EXPECT_NEAR(step_s(2), std::max(4.0 * square_s + wide_s, 2.0 * wide_s), 1e-9);
  EXPECT_EQ(price::matrix_step_s(model, profile, blocks[0], {}, 1), 0.0);
  EXPECT_EQ(price::optimizer_s(model, profile, 1e6, model::UpdateUnit::matrix), 6e6 / 1e9);
}

TEST(OptimizerRow, IsFoundByItsName) {
  EXPECT_EQ(&model::optimizer("adamw"), &model::adamw);
  EXPECT_EQ(&model::optimizer("lion"), &model::lion);
  EXPECT_EQ(&model::optimizer("sgd"), &model::sgd);
  EXPECT_EQ(&model::optimizer("muon"), &model::muon);
  EXPECT_NE(test::refusal([] { model::optimizer("adam"); }).find("'adam'"), std::string::npos);
  EXPECT_THROW(kernels::update_kernels("adam"), Error);
}

}  // namespace
}  // namespace brume
