/// @file The numerical contract of optimizers that look beyond an element: every plan trains like
/// one rank does, wherever it cuts matrices and whatever part of the moments it rounds.
#include <gtest/gtest.h>

#include <algorithm>

#include "contract.hpp"

namespace brume {
namespace {

/// A model and a plan for it, by number.
struct Case {
  model::Config model;
  plan::Plan plan;
};

Case case_number(int i, unsigned seed) {
  std::mt19937 random(seed + unsigned(i));
  const std::vector<model::Config> special = test::special_models();
  Case made{.model = i % 4 == 0   ? test::random_model(random)
                     : i % 4 == 1 ? test::random_family_model(random)
                     : i % 4 == 2 ? test::random_experts_model(random)
                                  : special[std::size_t(i / 4) % special.size()],
            .plan = {}};
  made.model.head_tokens = test::head_tokens(i);
  made.plan = i % 7 == 5   ? test::interleaved_plan(random, made.model, 8)
              : i % 7 == 6 ? test::zero_bubble_plan(random, made.model, 8)
                           : test::plan_number(i, random, made.model);
  if (i % 3 == 0) test::share_sequences(made.model, made.plan, 1);
  if (i % 5 == 1 && i % 7 < 5) test::freeze_some(i / 5, made.model);
  made.model.isolated = i % 2 == 0;
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
  Case made = case_number(GetParam(), 7000);
  made.model.optimizer = &model::muon;
  for (plan::Stage& stage : made.plan.stages) stage.host_update_ratio = 0.0;
  expect_contract(made);
}

// Sums in another order turn the rounding of a moment, of one in some ten thousand a step.
TEST_P(Optimizers, WithMomentsOf16BitsTrainLikeOnOneRank) {
  Case made = case_number(GetParam(), 9000);
  made.model.moments = model::Precision::bf16;
  if (GetParam() % 3 == 0) {
    made.model.optimizer = &model::muon;
    for (plan::Stage& stage : made.plan.stages) stage.host_update_ratio = 0.0;
  }
  expect_contract(made, 2e-4, 3e-3);  // 48 trials differed by 5.5e-5 and 9.0e-4 at most
}

INSTANTIATE_TEST_SUITE_P(Contract, Optimizers, ::testing::ValuesIn(test::plan_numbers()));

}  // namespace
}  // namespace brume
