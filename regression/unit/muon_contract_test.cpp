/// @file The numerical contract of updates of whole matrices: every plan trains like one rank does,
/// wherever it cuts them.
#include <gtest/gtest.h>

#include <algorithm>

#include "contract.hpp"

namespace brume {
namespace {

/// By the number of a plan.
model::Config model_number(int i, std::mt19937& random) {
  const std::vector<model::Config> special = test::special_models();
  model::Config model = i % 4 == 0   ? test::random_model(random)
                        : i % 4 == 1 ? test::random_family_model(random)
                        : i % 4 == 2 ? test::random_experts_model(random)
                                     : special[std::size_t(i / 4) % special.size()];
  model.head_tokens = test::head_tokens(i);
  model.optimizer = &model::muon;
  return model;
}

class Matrices : public ::testing::TestWithParam<int> {};

TEST_P(Matrices, TrainLikeOnOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(7000 + i));
  model::Config model = model_number(i, random);
  plan::Plan plan = i % 7 == 5   ? test::interleaved_plan(random, model, 8)
                    : i % 7 == 6 ? test::zero_bubble_plan(random, model, 8)
                                 : test::plan_number(i, random, model);
  for (plan::Stage& stage : plan.stages) stage.host_update_ratio = 0.0;
  if (i % 3 == 0) test::share_sequences(model, plan, 1);
  if (i % 5 == 1 && i % 7 < 5) test::freeze_some(i / 5, model);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len, i % 2 == 0);
  model.isolated = i % 2 == 0;
  engine::Settings settings = test::contract_settings(20);
  settings.optimizer.lr = 5e-3;
  const auto train_plan = [&](const engine::Settings& these) {
    return test::train(plan, model, these, data);
  };
  test::expect_contract(model, plan, data, train_plan, settings);
}

INSTANTIATE_TEST_SUITE_P(Muon, Matrices, ::testing::ValuesIn(test::plan_numbers()));

}  // namespace
}  // namespace brume
