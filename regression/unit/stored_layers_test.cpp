/// @file Layers that store what others recompute selectively: the same bits, more memory.
#include <gtest/gtest.h>

#include "contract.hpp"
#include "kernels_main.hpp"

namespace brume::engine {
namespace {

/// The same plan with that share of the layers stored that are not recomputed in full.
plan::Plan storing(plan::Plan plan, int parts, int of) {
  for (plan::Stage& stage : plan.stages)
    stage.stored_layers = (stage.layers - stage.ckpt_layers) * parts / of;
  return plan;
}

class StoredLayers : public ::testing::TestWithParam<int> {
 protected:
  /// Kokkos makes what teams of a host share with its first kernel, which must be one thread's.
  static void SetUpTestSuite() {
    std::mt19937 random(1);
    const model::Config model = test::random_model(random);
    const test::TokenFixture tokens(model.vocab_size);
    test::train(test::one_rank_plan(model, 2), model, test::contract_settings(1),
                tokens.sampler(model.seq_len));
  }
};

// Random plans of the contract on 1 to 8 ranks, of all families, by turns in fp32 and bf16. What is
// kept and what is made again come from the same kernels and the same numbers.
TEST_P(StoredLayers, TrainToTheSameBits) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 2654435761u + 5);
  const std::vector<model::Config> special = test::special_models();
  model::Config model = i % 3 == 0   ? test::random_model(random)
                        : i % 3 == 1 ? test::random_family_model(random)
                                     : special[std::size_t(i / 3) % special.size()];
  if (i % 2 == 1) model.precision = model::Precision::bf16;
  model.isolated = i % 5 == 0;
  plan::Plan plan = test::plan_number(i, random, model);
  if (i % 4 < 2)  // few plans would have a layer to store in each stage
    for (plan::Stage& stage : plan.stages) stage.ckpt_layers = stage.layers / 3;
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len, model.isolated);
  const Settings settings = test::contract_settings(5);

  const test::Trained none = test::train(storing(plan, 0, 2), model, settings, data);
  for (const int parts : {1, 2}) {
    const plan::Plan stores = storing(plan, parts, 2);
    const test::Trained some = test::train(stores, model, settings, data);
    EXPECT_EQ(some.losses, none.losses) << model::text(model) << "\n" << plan::text(stores);
    EXPECT_EQ(some.norms, none.norms) << model::text(model) << "\n" << plan::text(stores);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, StoredLayers, ::testing::Range(0, test::trials(10)));

}  // namespace
}  // namespace brume::engine
