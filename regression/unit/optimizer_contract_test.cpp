/// @file The numerical contract of optimizers that look beyond an element: every plan trains like
/// one rank does, wherever it cuts matrices and whatever part of the moments it rounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "contract.hpp"
#include "whole_tensors.hpp"

namespace brume {
namespace {

/// A model and a plan for it, by number.
struct Case {
  model::Config model;
  plan::Plan plan;
};

void make_plan(int i, std::mt19937& random, Case& made) {
  made.model.head_tokens = test::head_tokens(i);
  made.plan = i % 7 == 5   ? test::interleaved_plan(random, made.model, 8)
              : i % 7 == 6 ? test::zero_bubble_plan(random, made.model, 8)
                           : test::plan_number(i, random, made.model);
  if (i % 3 == 0) test::share_sequences(made.model, made.plan, 1, i % 6 == 3);
  if (i % 5 == 1 && i % 7 < 5) test::freeze_some(i / 5, made.model);
  made.model.isolated = i % 2 == 0;
}

Case case_number(int i, unsigned seed, const model::OptimizerRow& optimizer) {
  std::mt19937 random(seed + unsigned(i));
  const std::vector<model::Config> special = test::special_models();
  Case made{.model = i % 4 == 0   ? test::random_model(random)
                     : i % 4 == 1 ? test::random_family_model(random)
                     : i % 4 == 2 ? test::random_experts_model(random)
                                  : special[std::size_t(i / 4) % special.size()],
            .plan = {}};
  made.model.optimizer = &optimizer;
  make_plan(i, random, made);
  return made;
}

void expect_contract(const Case& made, double losses = 1e-5, double norms = 1e-4) {
  const test::TokenFixture tokens(made.model.vocab_size);
  const data::Sampler data = tokens.sampler(made.model.seq_len, made.model.isolated);
  engine::Settings settings = test::contract_settings(20);
  settings.optimizer.lr = 5e-3;
  const auto train_plan = [&](const engine::Settings& these) {
    return test::train(made.plan, made.model, these, data);
  };
  test::expect_contract(made.model, made.plan, data, train_plan, settings, losses, norms);
}

class Optimizers : public ::testing::TestWithParam<int> {};

TEST_P(Optimizers, OfWholeMatricesTrainLikeOnOneRank) {
  Case made = case_number(GetParam(), 7000, model::muon);
  for (plan::Stage& stage : made.plan.stages) stage.host_update_ratio = 0.0;
  expect_contract(made);
}

// Sums in another order turn the rounding of a moment, of one in some ten thousand a step.
TEST_P(Optimizers, WithMomentsOf16BitsTrainLikeOnOneRank) {
  const bool muon = GetParam() % 3 == 0;
  Case made = case_number(GetParam(), 9000, muon ? model::muon : model::adamw);
  made.model.moments = Moments::bf16;
  if (muon)
    for (plan::Stage& stage : made.plan.stages) stage.host_update_ratio = 0.0;
  expect_contract(made, 2e-4, 3e-3);  // 48 trials differed by 5.5e-5 and 9.0e-4 at most
}

/// The losses and the state that a plan has trained after some steps.
struct Outcome {
  test::Trained trained;
  test::State state;
};

Outcome outcome(const plan::Plan& plan, const model::Config& model,
                const engine::Settings& settings, const data::Sampler& data) {
  Outcome found;
  std::mutex mutex;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    engine::Engine engine(plan, model, settings, world);
    const test::Trained mine = test::train(engine, settings, plan.global_batch, data);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) found.trained = mine;
    test::collect(found.state, engine.slabs());
  });
  return found;
}

/// Share of values that differ by a thousandth of their tensor's largest, as by another rounding of
/// what is not very small.
double share_of_other_roundings(const test::State& one, const test::State& all) {
  double other = 0.0, values = 0.0;
  for (const auto& [tensor, expected] : one) {
    const std::vector<float>& found = all.at(tensor);
    float largest = 0.0f;
    for (const float value : expected) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < expected.size(); ++i)
      other += !(std::abs(found[i] - expected[i]) <= 1e-3f * largest);
    values += double(expected.size());
  }
  return other / values;
}

// A sum in another order turns the rounding of a moment, of one in a hundred thousand a step, by an
// eighth of it. A block of other elements or another number would turn half of them.
TEST_P(Optimizers, WithMomentsOf8BitsRoundLikeOnOneRank) {
  const int i = GetParam();
  std::mt19937 random(11000 + unsigned(i));
  const std::vector<model::Config> special = test::special_models();
  Case made{.model = i % 4 == 0   ? test::random_family_model(random)
                     : i % 4 == 1 ? test::random_experts_model(random)
                                  : special[std::size_t(i / 2) % special.size()],
            .plan = {}};
  made.model.num_experts = std::min(made.model.num_experts, 4);
  made.model.experts_per_token = std::min(made.model.experts_per_token, 2);
  test::take_rows_of_blocks(i, made.model);
  if (i % 8 == 5) made.model.expert_ffn_size = 48;  // no blocks of second products
  made.model.moments = Moments::fp8;
  if (i % 4 == 3) made.model.optimizer = i % 8 == 3 ? &model::lion : &model::sgd;
  make_plan(i, random, made);
  const test::TokenFixture tokens(made.model.vocab_size);
  const data::Sampler data = tokens.sampler(made.model.seq_len, made.model.isolated);
  const engine::Settings settings = test::contract_settings(5);
  const Outcome one = outcome(test::one_rank_plan(made.model, made.plan.global_batch), made.model,
                              settings, data),
                all = outcome(made.plan, made.model, settings, data);
  const double share = share_of_other_roundings(one.state, all.state);
  // A token that two experts fit equally well may go to the other one. Lion steps by signs, of
  // which one in a hundred turns within some steps, and all gradients follow.
  const bool chooses = made.model.experts_per_token < made.model.num_experts;
  const bool signs = made.model.optimizer == &model::lion;
  EXPECT_LT(share, signs     ? 0.3
                   : chooses ? 0.03
                             : 0.01)
      << model::text(made.model) << "\n"
      << plan::text(made.plan);
  EXPECT_TRUE(test::trains_like(one.trained, all.trained, 1e-3, 1e-2))
      << test::largest_difference(all.trained.losses, one.trained.losses) << " "
      << test::largest_difference(all.trained.norms, one.trained.norms);
}

// In host memory, on disk, updated by the host: the same sums, so the same bits.
TEST(MomentsOf8Bits, AreTheSameWhereverTheyLie) {
  for (const model::Precision precision : {model::Precision::fp32, model::Precision::bf16}) {
    model::Config model = test::special_models().front();
    test::take_rows_of_blocks(0, model);
    model.moments = Moments::fp8;
    model.precision = precision;
    const test::TokenFixture tokens(model.vocab_size);
    const data::Sampler data = tokens.sampler(model.seq_len);
    engine::Settings settings = test::contract_settings(4);
    settings.optimizer.clip_norm = 0.0;  // a norm's sum is of parts
    const auto plan_with = [&](double share) {
      return plan::equal_stages(model, 4, 1,
                                {.microbatch = 4,
                                 .weight_offload_ratio = share,
                                 .grad_offload_ratio = share / 2,
                                 .optim_offload_ratio = share,
                                 .optim_disk_ratio = share / 3,
                                 .host_update_ratio = share / 4});
    };
    const Outcome here = outcome(plan_with(0.0), model, settings, data);
    for (const double share : {0.3, 0.75, 1.0}) {
      const Outcome away = outcome(plan_with(share), model, settings, data);
      EXPECT_EQ(away.trained.losses, here.trained.losses);
      EXPECT_TRUE(away.state == here.state) << share;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Contract, Optimizers, ::testing::ValuesIn(test::plan_numbers()));

}  // namespace
}  // namespace brume
