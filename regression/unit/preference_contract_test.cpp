/// @file The numerical contract of training on pairs: every plan gives their losses and gradients
/// as one rank does, however it cuts batch, sequences and vocabulary.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "contract.hpp"

namespace brume {
namespace {

struct Case {
  model::Config model;
  plan::Plan plan;
  engine::Settings settings;
};

/// Every model and every kind of plan, of both losses; a batch of whole pairs.
Case case_number(int i) {
  std::mt19937 random(unsigned(i) * 7919 + 17);
  const std::vector<model::Config> special = test::special_models();
  Case made{.model = i % 4 == 0   ? test::random_model(random)
                     : i % 4 == 1 ? test::random_family_model(random)
                     : i % 4 == 2 ? test::random_experts_model(random)
                                  : special[std::size_t(i / 4) % special.size()],
            .plan = {},
            .settings = test::contract_settings(20)};
  made.model.pairs = true;
  made.model.isolated = i % 3 == 0;
  made.model.head_tokens = test::head_tokens(i);
  if (i % 5 == 3) test::adapt(i, made.model);
  if (i % 10 == 9) test::quantize(i, made.model);
  made.plan = i % 7 == 5   ? test::interleaved_plan(random, made.model, 8)
              : i % 7 == 6 ? test::zero_bubble_plan(random, made.model, 8)
                           : test::plan_number(i, random, made.model);
  if (i % 3 == 1) test::share_sequences(made.model, made.plan, 1 + i % 2, i % 6 == 4);
  if (i % 6 == 1) made.model.seq_len -= 3, made.model.padding = 3;
  if (i % 5 == 1 && i % 7 < 5) test::freeze_some(i / 5, made.model);
  if (made.plan.global_batch % 2 != 0) made.plan.global_batch *= 2, made.plan.microbatches *= 2;
  made.settings.preference = {.beta = 0.2, .label_smoothing = i % 2 == 0 ? 0.0 : 0.1};
  // A target that 20 steps do not reach: of a loss near 0 roundings are a large share.
  if (i % 6 == 5) made.settings.preference = {.beta = 0.1, .loss = engine::PreferenceLoss::ipo};
  return made;
}

class PreferenceContract : public ::testing::TestWithParam<int> {};

TEST_P(PreferenceContract, RandomPlanTrainsOnPairsLikeOneRank) {
  const Case made = case_number(GetParam());
  const test::PairFixture pairs(made.model.vocab_size);
  const data::Sampler data = pairs.sampler(made.model.seq_len, made.model.isolated);
  const auto train_plan = [&](const engine::Settings& settings) {
    return test::train(made.plan, made.model, settings, data);
  };
  test::expect_contract(made.model, made.plan, data, train_plan, made.settings);
}

INSTANTIATE_TEST_SUITE_P(Contract, PreferenceContract, ::testing::Range(0, test::trials(6)));

/// Relative differences that roundings to 16 or 8 bits make.
struct Spread {
  double first_norm, usual, largest;  ///< the last two of 20 losses and a validation's
};

/// Largest differences of 20 trials.
Spread measured(model::Precision precision) {
  if (precision == model::Precision::fp16) return {2.3e-4, 8.3e-5, 3.0e-4};
  return precision == model::Precision::bf16 ? Spread{2.1e-3, 1.3e-3, 3.9e-3}
                                             : Spread{3.2e-3, 1.2e-3, 7.2e-3};
}

/// A precision and the number of a trial.
class NarrowPreference : public ::testing::TestWithParam<std::tuple<model::Precision, int>> {};

// The first loss has no rounding: the weights are the initial ones.
TEST_P(NarrowPreference, RandomPlanTrainsOnPairsLikeOneRank) {
  const auto [precision, i] = GetParam();
  Case made = case_number(i);
  made.model.precision = precision;
  made.settings.preference = {.beta = 0.2};
  const test::PairFixture pairs(made.model.vocab_size);
  const data::Sampler data = pairs.sampler(made.model.seq_len, made.model.isolated);
  const plan::Plan one_rank = test::one_rank_plan(made.model, made.plan.global_batch);
  const test::Trained one = test::train(one_rank, made.model, made.settings, data);
  const test::Trained all = test::train(made.plan, made.model, made.settings, data);
  SCOPED_TRACE(model::text(made.model) + "\n" + plan::text(made.plan));
  const Spread most = measured(precision);
  constexpr double margin = 3.0;
  EXPECT_NEAR(all.losses[0], std::log(2.0), 1e-4);
  EXPECT_LE(std::abs(all.norms[0] / one.norms[0] - 1.0), margin * most.first_norm);
  EXPECT_LE(test::median_difference(all.losses, one.losses), margin * most.usual);
  EXPECT_LE(brume::largest_difference(all.losses, one.losses), margin * most.largest);
}

INSTANTIATE_TEST_SUITE_P(Contract, NarrowPreference,
                         ::testing::Combine(::testing::Values(model::Precision::bf16,
                                                              model::Precision::fp16,
                                                              model::Precision::fp8),
                                            ::testing::Range(0, test::trials(2))));

}  // namespace
}  // namespace brume
