/// @file The numerical contract on MPI ranks: fixed plans that together cover every knob and pair
/// of knobs.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "contract.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"
#include "mpi_main.hpp"

namespace brume::engine {
namespace {

/// Four layers, so that every number of stages divides them unevenly or evenly.
model::Config model_config(bool tied_head) {
  return {.num_layers = 4,
          .hidden_size = 32,
          .num_heads = 4,
          .ffn_size = 96,
          .seq_len = 16,
          .vocab_size = 53,
          .tied_head = tied_head};
}

struct Case {
  int stages, dp, tp, zero_level;
  int ckpt_layers;  ///< of the first stage; the others have one less
  double optim_offload, act_offload;
  double weight_offload = 0.0, grad_offload = 0.0;
};

plan::Plan plan_of(const Case& c, int global_batch, int microbatch) {
  plan::Plan plan;
  plan.global_batch = global_batch;
  plan.microbatches = global_batch / (microbatch * c.dp);
  for (int s = 0; s < c.stages; ++s) {
    plan::Stage stage;
    // Unequal stages: 4; 3 + 1; 2 + 1 + 1 is left to four stages of one layer each.
    stage.layers = c.stages == 2 ? (s == 0 ? 3 : 1) : 4 / c.stages;
    stage.first_layer = s == 0 ? 0 : plan.stages.back().first_layer + plan.stages.back().layers;
    stage.devices_per_node = c.dp * c.tp;
    stage.microbatch = microbatch;
    stage.dp = c.dp;
    stage.tp = c.tp;
    stage.zero_level = c.zero_level;
    stage.ckpt_layers = std::min(stage.layers, std::max(0, c.ckpt_layers - s));
    stage.optim_offload_ratio = c.optim_offload;
    stage.act_offload_ratio = c.act_offload;
    stage.weight_offload_ratio = c.weight_offload;
    stage.grad_offload_ratio = c.grad_offload;
    plan.stages.push_back(stage);
  }
  return plan;
}

const std::vector<Case> cases{
    // stages dp tp zero ckpt optim act
    {1, 1, 1, 0, 2, 0.0, 0.0},
    {1, 1, 1, 1, 4, 1.0, 0.5},
    {1, 1, 1, 0, 1, 0.5, 1.0},
    {1, 2, 1, 0, 0, 0.0, 0.0},
    {1, 2, 1, 1, 0, 0.0, 1.0},
    {1, 2, 1, 1, 3, 1.0, 0.0},
    {1, 1, 2, 0, 0, 0.0, 0.0},
    {1, 1, 2, 0, 2, 0.5, 1.0},
    {2, 1, 1, 0, 0, 0.0, 0.0},
    {2, 1, 1, 0, 2, 1.0, 0.5},
    {1, 4, 1, 1, 2, 0.5, 0.5},
    {1, 4, 1, 0, 4, 1.0, 1.0},
    {1, 2, 2, 1, 1, 1.0, 1.0},
    {1, 2, 2, 0, 3, 0.0, 0.5},
    {1, 1, 4, 0, 2, 1.0, 1.0},
    {2, 2, 1, 1, 1, 0.5, 1.0},
    {2, 2, 1, 0, 3, 1.0, 0.0},
    {2, 1, 2, 0, 2, 1.0, 1.0},
    {2, 1, 2, 0, 0, 0.0, 0.0},
    {4, 1, 1, 0, 1, 1.0, 1.0},
    {4, 1, 1, 0, 0, 0.0, 0.0},
    // ... weights grads
    {1, 1, 1, 0, 2, 0.0, 0.0, 0.5, 0.5},
    {1, 2, 1, 2, 0, 0.0, 0.0},
    {1, 4, 1, 3, 2, 0.0, 0.0},
    {1, 2, 2, 3, 1, 0.5, 0.5, 0.25, 0.75},
    {1, 4, 1, 2, 4, 1.0, 1.0, 1.0, 1.0},
    {1, 1, 4, 0, 1, 0.0, 0.5, 1.0, 1.0},
    {2, 2, 1, 3, 2, 1.0, 1.0, 0.5, 0.0},
    {2, 2, 1, 1, 0, 0.5, 0.0, 0.5, 1.0},
    {2, 1, 2, 0, 3, 0.0, 1.0, 1.0, 0.5},
    {4, 1, 1, 0, 1, 1.0, 0.0, 1.0, 1.0},
};

/// Stages that differ in b, dp and tp, on 3 and 4 ranks.
std::vector<plan::Plan> mixed_plans() {
  const auto stage = [](int first_layer, int layers, int microbatch, int dp, int tp) {
    plan::Stage s{.first_layer = first_layer, .layers = layers, .devices_per_node = dp * tp};
    s.microbatch = microbatch, s.dp = dp, s.tp = tp;
    s.zero_level = first_layer == 0 ? 1 : 0;
    s.ckpt_layers = 1;
    s.act_offload_ratio = 0.5;
    return s;
  };
  return {{.global_batch = 8,
           .microbatches = 4,
           .stages = {stage(0, 2, 1, 2, 1), stage(2, 2, 2, 1, 1)}},
          {.global_batch = 8,
           .microbatches = 2,
           .stages = {stage(0, 1, 4, 1, 2), stage(1, 3, 2, 2, 1)}},
          {.global_batch = 8,
           .microbatches = 4,
           .stages = {stage(0, 1, 2, 1, 1), stage(1, 2, 1, 2, 1), stage(3, 1, 2, 1, 1)}}};
}

/// Those of `cases`, then the mixed ones.
plan::Plan plan_number(std::size_t index) {
  if (index >= cases.size()) return mixed_plans()[index - cases.size()];
  return plan_of(cases[index], 8, index % 2 == 0 ? 1 : 2);
}

/// Lays a plan on nodes of one rank each in any order.
plan::Plan on_nodes(std::mt19937& random, plan::Plan plan) {
  plan.node_order.resize(std::size_t(world().size()));
  std::iota(plan.node_order.begin(), plan.node_order.end(), 0);
  std::ranges::shuffle(plan.node_order, random);
  return plan;
}

/// The ranks that train a plan, in its order; nothing on a rank that it leaves out. Collective.
std::unique_ptr<comm::Communicator> crew(const plan::Plan& plan) {
  const hardware::Cluster nodes(hardware::NodeGroup{.nodes = world().size()});
  int mine = -1;
  for (int rank = 0; rank < plan.devices(); ++rank)
    if (plan::job_rank(plan, nodes, rank) == world().rank()) mine = rank;
  return world().split(mine < 0 ? -1 : 0, mine);
}

class Contract : public ::testing::TestWithParam<std::tuple<std::size_t, bool>> {};

void expect_contract(const model::Config& model, const plan::Plan& plan) {
  device::use_device(mpi_job().session.node_rank(), world().size());
  const kernels::Runtime runtime(1);
  // All ranks read the one file of rank 0.
  std::optional<test::TokenFixture> tokens;
  if (world().rank() == 0) tokens.emplace(model.vocab_size);
  const std::string path =
      comm::broadcast(world(), tokens ? tokens->path().string() : std::string(), 0);
  const data::Sampler data(data::TokenFile(path), data::Order::shuffled, 11, model.seq_len,
                           model.isolated);

  const std::unique_ptr<comm::Communicator> members = crew(plan);
  if (members)
    test::expect_contract(model, plan, data, [&](const Settings& settings) {
      return test::train(plan, model, settings, *members, data);
    });
  world().barrier();
}

TEST_P(Contract, PlanTrainsLikeOneRank) {
  const auto [index, tied] = GetParam();
  const plan::Plan plan = plan_number(index);
  if (plan.devices() > world().size()) GTEST_SKIP() << "needs " << plan.devices() << " ranks";
  expect_contract(model_config(tied), plan);
}

INSTANTIATE_TEST_SUITE_P(Mpi, Contract,
                         ::testing::Combine(::testing::Range(std::size_t{0}, cases.size() + 3),
                                            ::testing::Bool()));

class FamilyContract : public ::testing::TestWithParam<int> {};

TEST_P(FamilyContract, RandomPlanTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 15485863 + 5);
  model::Config model = test::random_family_model(random);
  test::freeze_some(GetParam(), model);
  const plan::Plan plan = world().size() > 2 && GetParam() % 2 == 0
                              ? test::mixed_plan(random, model, world().size())
                              : test::random_plan(random, model, world().size());
  expect_contract(model, on_nodes(random, plan));
}

TEST_P(FamilyContract, RanksThatShareSequencesTrainLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 32452843 + 29);
  model::Config model;
  plan::Plan plan;
  do {
    model = test::random_family_model(random);
    model.isolated = GetParam() % 2 == 0;
    plan = test::random_plan(random, model, world().size());
  } while (!test::share_sequences(model, plan, 1, GetParam() % 4 >= 2));
  expect_contract(model, on_nodes(random, plan));
}

TEST_P(FamilyContract, RandomPlanOfASpecialModelTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 7907 + 11);
  const std::vector<model::Config> models = test::special_models();
  model::Config model = models[std::size_t(GetParam()) % models.size()];
  model.exchanges_normed = GetParam() % 2 == 0;
  if (GetParam() % 4 == 1)
    test::adapt(GetParam(), model);
  else
    test::freeze_some(GetParam() + 1, model);
  const plan::Plan plan = test::random_plan(random, model, world().size());
  expect_contract(model, on_nodes(random, plan));
}

TEST_P(FamilyContract, RandomPlanOfSeveralStagesARankTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 104729 + 17);
  model::Config model = test::random_family_model(random);
  const plan::Plan plan = test::interleaved_plan(random, model, world().size());
  expect_contract(model, on_nodes(random, plan));
}

TEST_P(FamilyContract, RandomPlanOfSplitBackwardsTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 104729 + 31);
  model::Config model = test::random_family_model(random);
  const plan::Plan plan = test::zero_bubble_plan(random, model, world().size());
  expect_contract(model, on_nodes(random, plan));
}

INSTANTIATE_TEST_SUITE_P(Mpi, FamilyContract, ::testing::Range(0, test::trials(4)));

}  // namespace
}  // namespace brume::engine
