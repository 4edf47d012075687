#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../../src/engine/batches.hpp"
#include "../../src/engine/executor.hpp"
#include "../../src/engine/job.hpp"
#include "../../src/engine/zigzag.hpp"
#include "base/bfloat16.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "contract.hpp"
#include "data/token_writer.hpp"
#include "kernels_main.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"
#include "schedule/compile.hpp"

namespace brume::engine {
namespace {

TEST(LearningRate, WarmsUpThenDecaysToTheRatio) {
  const Optimizer o{.lr = 1.0, .min_lr_ratio = 0.1, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(o, 0, 20), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(o, 3, 20), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(o, 4, 20), 1.0);
  EXPECT_NEAR(learning_rate(o, 19, 20), 0.1, 1e-12);
}

TEST(LearningRate, TakesTheWayOfItsSchedule) {
  Optimizer o{.lr = 1.0, .min_lr_ratio = 0.2, .warmup_steps = 4};
  const auto at = [&](const char* name, std::int64_t step) {
    o.schedule = lr_schedule(name);
    return learning_rate(o, step, 25);
  };
  for (const char* name : {"cosine", "linear", "constant", "wsd"}) {
    EXPECT_DOUBLE_EQ(at(name, 1), 0.5) << name;
    EXPECT_DOUBLE_EQ(at(name, 4), 1.0) << name;
    EXPECT_NEAR(at(name, 24), std::string_view(name) == "constant" ? 1.0 : 0.2, 1e-12) << name;
  }
  EXPECT_NEAR(at("linear", 14), 0.6, 1e-12);  // half of the way
  EXPECT_NEAR(at("cosine", 14), 0.6, 1e-12);
  EXPECT_GT(at("cosine", 9), at("linear", 9));
  EXPECT_DOUBLE_EQ(at("wsd", 21), 1.0);  // three steps, a tenth of all, are left to fall
  EXPECT_NEAR(at("wsd", 22), 1.0 - 0.8 / 3, 1e-12);
  o.decay_steps = 10;
  EXPECT_DOUBLE_EQ(at("wsd", 14), 1.0);
  EXPECT_NEAR(at("wsd", 19), 0.6, 1e-12);
  EXPECT_THROW(lr_schedule("stairs"), Error);
}

class Contract : public ::testing::TestWithParam<int> {};

// Ranks are threads here.
void expect_contract(const model::Config& model, const plan::Plan& plan, int head_tokens = 1024) {
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len, model.isolated);
  model::Config in_pieces = model;
  in_pieces.head_tokens = head_tokens;
  test::expect_contract(model, plan, data, [&](const Settings& settings) {
    return test::train(plan, in_pieces, settings, data);
  });
}

TEST_P(Contract, RandomPlanTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 7919 + 13);
  model::Config model = test::random_model(random);
  model.isolated = GetParam() % 3 == 0;
  test::freeze_some(GetParam(), model);
  expect_contract(model, test::plan_number(GetParam(), random, model),
                  test::head_tokens(GetParam()));
}

TEST_P(Contract, RandomPlanOfAnotherFamilyTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 104729 + 7);
  model::Config model = test::random_family_model(random);
  model.isolated = GetParam() % 3 == 1;
  test::freeze_some(GetParam(), model);
  expect_contract(model, test::plan_number(GetParam(), random, model),
                  test::head_tokens(GetParam()));
}

// Isolated or not by the parity of i, which meets each model both ways; of every third, layers
// exchange.
TEST_P(Contract, RandomPlanOfASpecialModelTrainsLikeOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 15485863 + 3);
  const std::vector<model::Config> models = test::special_models();
  model::Config model = models[std::size_t(i) % models.size()];
  model.isolated = i % 2 == 1;
  model.exchanges_normed = i % 3 == 0;
  test::freeze_some(i, model);
  expect_contract(model, test::plan_number(i, random, model), test::head_tokens(i));
}

/// A model of some family for a plan by its number.
model::Config model_number(int i, std::mt19937& random) {
  const std::vector<model::Config> special = test::special_models();
  return i % 4 == 0   ? test::random_model(random)
         : i % 4 == 1 ? test::random_family_model(random)
                      : special[std::size_t(i / 2) % special.size()];
}

// Linear layers of all families, in plans of all kinds but those that need all blocks trained.
TEST_P(Contract, RandomPlanOfAnAdapterTrainsLikeOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 6700417 + 19);
  model::Config model = model_number(i, random);
  model.isolated = i % 5 == 0;
  test::adapt(i, model, i % 5 != 2);
  expect_contract(model, test::plan_number(i, random, model), test::head_tokens(i));
}

class ExpertAdaptersContract : public ::testing::TestWithParam<int> {};

// A term of each expert, also where tokens take several rounds.
TEST_P(ExpertAdaptersContract, RandomPlanTrainsLikeOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 86028121 + 31);
  model::Config model = test::random_experts_model(random);
  model.isolated = i % 5 == 0;
  if (i % 2 == 0) model.rank_load_factor = 1.0;
  test::adapt(i, model, i % 5 != 2 || i % 4 == 3, true);  // a split backward needs all layers
  expect_contract(
      model,
      i % 4 == 3 ? test::zero_bubble_plan(random, model, 8) : test::plan_number(i, random, model),
      test::head_tokens(i));
}

INSTANTIATE_TEST_SUITE_P(Engine, ExpertAdaptersContract, ::testing::Range(0, test::trials(5)));

class QuantizedContract : public ::testing::TestWithParam<int> {};

// The same of layers in blocks of 4 or 8 bits.
TEST_P(QuantizedContract, RandomPlanTrainsLikeOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 86028121 + 29);
  model::Config model = model_number(i, random);
  model.isolated = i % 5 == 0;
  test::quantize(i, model);
  expect_contract(model, test::plan_number(i, random, model), test::head_tokens(i));
}

INSTANTIATE_TEST_SUITE_P(Engine, QuantizedContract, ::testing::Range(0, test::trials(5)));

/// A model of one rank that is quantized, or computes with the same weights as they are.
test::Trained trained_with(const model::Config& model,
                           const std::map<std::string, std::vector<float>>& weights) {
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const Settings settings = test::contract_settings(10);
  test::Trained trained;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(test::one_rank_plan(model, 4), model, settings, world);
    for (const Slab& slab : engine.slabs())
      if (slab.kind == "weight") set_values(slab, 0, weights.at(slab.name));
    trained = test::train(engine, settings, 4, data);
  });
  return trained;
}

std::map<std::string, std::vector<float>> weights_of(const model::Config& model) {
  std::map<std::string, std::vector<float>> weights;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(test::one_rank_plan(model, 4), model, test::contract_settings(1), world);
    for (const Slab& slab : engine.slabs())
      if (slab.kind == "weight") weights[slab.name] = values(slab);
  });
  return weights;
}

// Bit for bit, in all precisions: blocks are a way to keep weights, and not to compute with them.
TEST(Engine, QuantizedWeightsTrainLikeTheirValues) {
  for (int i = 0; i < 3; ++i) {
    model::Config model = test::special_models()[std::size_t(i)];
    test::quantize(i, model);
    model.precision = std::array{model::Precision::fp32, model::Precision::bf16,
                                 model::Precision::fp16}[std::size_t(i)];
    SCOPED_TRACE(model::text(model));
    const std::map<std::string, std::vector<float>> blocks = weights_of(model);
    const test::Trained quantized = trained_with(model, blocks);
    model.quantization = Quantization::none;
    EXPECT_NE(weights_of(model), blocks);
    const test::Trained plain = trained_with(model, blocks);
    EXPECT_EQ(quantized.losses, plain.losses);
    EXPECT_EQ(quantized.norms, plain.norms);
  }
}

// Files have other pieces of a parameter than a rank does, in any order.
TEST(Engine, QuantizedWeightsComeInAnyPieces) {
  std::mt19937 random(3);
  model::Config model = test::special_models().front();
  test::quantize(0, model);
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(test::one_rank_plan(model, 4), model, test::contract_settings(1), world);
    for (const Slab& slab : engine.slabs()) {
      if (slab.quantization == Quantization::none) continue;
      std::vector<float> wanted(std::size_t(slab.elements));
      for (float& value : wanted) value = float(random() % 1000) / 500.0f - 1.0f;
      set_values(slab, 0, wanted);
      const std::vector<float> whole = values(slab);
      set_values(slab, 0, std::vector<float>(wanted.size(), 0.0f));
      std::vector<std::int64_t> cuts{0, slab.elements};
      for (int i = 0; i < 40; ++i) cuts.push_back(std::int64_t(random() % wanted.size()));
      std::ranges::sort(cuts);
      std::vector<std::size_t> order(cuts.size() - 1);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::shuffle(order, random);
      for (const std::size_t i : order)
        set_values(
            slab, cuts[i],
            std::span(wanted).subspan(std::size_t(cuts[i]), std::size_t(cuts[i + 1] - cuts[i])));
      EXPECT_EQ(values(slab), whole) << slab.name;
      std::vector<float> part(100);
      get_values(slab, 33, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 33));
      EXPECT_NE(whole, wanted);
    }
  });
}

bool divides_experts(const plan::Plan& plan) {
  return std::ranges::any_of(plan.stages, [](const plan::Stage& stage) { return stage.ep > 1; });
}

bool divides_over_data(const plan::Plan& plan) {
  return std::ranges::any_of(
      plan.stages, [](const plan::Stage& stage) { return stage.expert_data_ranks() > 1; });
}

/// Every third one has whole experts where a model with these experts can, and every third one
/// divides them over data-parallel ranks, of which every second one sends tokens.
std::pair<model::Config, plan::Plan> case_of_experts(int i) {
  std::mt19937 random(unsigned(i) * 49979687 + 23);
  model::Config model = test::random_experts_model(random);
  model.isolated = i % 3 == 0;
  model.exchanges_normed = i % 5 == 0;
  if (i % 4 == 1) model.init_std = 0.1;
  const bool sends = i % 6 == 1;
  test::freeze_some(i, model);
  plan::Plan plan = test::plan_number(i, random, model);
  const auto suits = [&] {
    return i % 3 == 0 || (i % 3 == 1 ? divides_over_data(plan) : divides_experts(plan));
  };
  for (int tries = 0; !suits() && tries < 200; ++tries) plan = test::plan_number(i, random, model);
  for (plan::Stage& stage : plan.stages)
    if (sends) stage.dispatch_tokens = int(stage.expert_data_ranks() > 1);
  return {std::move(model), std::move(plan)};
}

TEST_P(Contract, RandomPlanOfExpertsTrainsLikeOneRank) {
  const auto [model, plan] = case_of_experts(GetParam());
  expect_contract(model, plan, test::head_tokens(GetParam()));
}

/// A plan of 4 or 8 ranks that divide experts, and its model, of which some have a shared expert.
std::pair<model::Config, plan::Plan> case_of_sent_tokens(int i) {
  std::mt19937 random(unsigned(i) * 7368787 + 5);
  model::Config model = test::random_experts_model(random);
  model.num_experts = 8;
  model.experts_per_token = test::pick(random, {1, 2, 3, 8});
  model.expert_groups = model.groups_per_token = 1;
  model.shared_expert_ffn_size = i % 2 == 0 ? 16 : 0;
  model.shared_expert_gate = i % 4 == 2;
  model.seq_len = 12;
  if (i % 4 > 1) model.rank_load_factor = model.num_experts;  // else ranks take rounds
  if (i % 3 == 1) model.init_std = 0.1;
  if (i % 6 == 2) test::adapt(i, model);
  const int tp = i % 4 == 3 && model.num_heads % 2 == 0 && !model.qk_norm_joint ? 2 : 1;
  const int ep = i % 4 == 0 ? 2 : 4;
  plan::Plan plan =
      plan::equal_stages(model, 8, 1, {.microbatch = 2 - i % 2, .dp = 4 / tp, .tp = tp});
  plan::Stage& stage = plan.stages.front();
  stage.ep = ep, stage.dispatch_tokens = 1;
  if (i % 3 > 0) (i % 3 == 1 ? stage.ckpt_layers : stage.stored_layers) = 1 + i % 2;
  return {std::move(model), std::move(plan)};
}

class SentTokens : public ::testing::TestWithParam<int> {};

// The first loss has the bits of ranks that gather all tokens: terms are added in the same order.
// Ranks that gather tokens add parts of a shared expert's inner features.
TEST_P(SentTokens, TrainLikeGatheredOnes) {
  const auto [model, plan] = case_of_sent_tokens(GetParam());
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len, model.isolated);
  plan::Plan gathers = plan;
  gathers.stages.front().dispatch_tokens = 0;
  const test::Trained sent = test::train(plan, model, test::contract_settings(4), data),
                      gathered = test::train(gathers, model, test::contract_settings(4), data);
  SCOPED_TRACE(model::text(model) + "\n" + plan::text(plan));
  if (model.shared_expert_ffn_size == 0) {
    EXPECT_EQ(sent.losses.front(), gathered.losses.front());
  }
  EXPECT_LT(test::largest_difference(sent.losses, gathered.losses), 1e-6);
  EXPECT_LT(test::largest_difference(sent.norms, gathered.norms), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Engine, SentTokens, ::testing::Range(0, test::trials(6)));

// Neither the shared expert nor what else needs no token of other ranks waits for these.
TEST(TokensOnTheirWay, LetTheSharedExpertCompute) {
  for (const int i : {0, 2, 4, 6}) {
    const auto [model, plan] = case_of_sent_tokens(i);
    const schedule::Program program = schedule::compile(plan, model, 0);
    std::vector<int> on_the_way;
    int beside = 0;
    for (int id = 0; id < int(program.tasks.size()); ++id) {
      const schedule::Task& task = program.task(id);
      using enum schedule::Operation;
      if (task.operation == send_rows || task.operation == return_rows) on_the_way.push_back(id);
      if (task.channel != schedule::Channel::compute || on_the_way.empty()) continue;
      const auto waits = std::ranges::find_first_of(task.waits, on_the_way) != task.waits.end();
      if (waits) on_the_way.clear();
      beside += !waits;
    }
    // A layer with experts has two such runs in its forward and three in its backward.
    EXPECT_GE(beside, 5 * (model.num_layers - model.first_dense_layers)) << plan::text(plan);
  }
}

TEST(ContractOfExperts, HasPlansWithWholeExperts) {
  int whole = 0, over_data = 0, sent = 0;
  for (int i = 0; i < 30; ++i) {
    whole += divides_experts(case_of_experts(i).second);
    over_data += divides_over_data(case_of_experts(i).second);
    sent += std::ranges::any_of(case_of_experts(i).second.stages, [](const plan::Stage& stage) {
      return stage.dispatch_tokens == 1;
    });
  }
  EXPECT_GE(whole, 15);
  EXPECT_GE(over_data, 8);
  EXPECT_GE(sent, 2);
}

/// A model of any kind, and a plan for it in which ranks share sequences.
std::pair<model::Config, plan::Plan> case_of_contexts(int i, bool gather_keys = false) {
  std::mt19937 random(unsigned(i) * 32452843 + 31);
  const std::vector<model::Config> special = test::special_models();
  while (true) {
    model::Config model = i % 4 == 0   ? test::random_model(random)
                          : i % 4 == 1 ? test::random_family_model(random)
                          : i % 4 == 2 ? special[std::size_t(i / 4) % special.size()]
                                       : test::random_experts_model(random);
    if (gather_keys && i % 2 == 0) model = special[std::size_t(8 * i + 10) % special.size()];
    model.isolated = i % 3 == 0;
    model.exchanges_normed = i % 5 == 0;
    if (i % 7 == 3)
      test::adapt(i, model);
    else if (i % 7 == 5)
      test::quantize(i, model);
    else if (i % 2 == 1)
      test::freeze_some(i, model);
    plan::Plan plan =
        i % 2 == 0 ? test::random_plan(random, model, 8) : test::mixed_plan(random, model, 8);
    if (gather_keys) model.seq_len = 16;
    if (test::share_sequences(model, plan, 1 + i % 2, gather_keys))
      return {std::move(model), std::move(plan)};
  }
}

TEST_P(Contract, RandomPlanThatSharesSequencesTrainsLikeOneRank) {
  const auto [model, plan] = case_of_contexts(GetParam());
  expect_contract(model, plan, test::head_tokens(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Engine, Contract, ::testing::ValuesIn(test::plan_numbers()));

class GatheredKeysContract : public ::testing::TestWithParam<int> {};

TEST_P(GatheredKeysContract, RandomPlanTrainsLikeOneRank) {
  const auto [model, plan] = case_of_contexts(GetParam(), true);
  expect_contract(model, plan, test::head_tokens(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Engine, GatheredKeysContract, ::testing::Range(0, test::trials(5)));

TEST(GatheredKeys, HavePlansOfMoreRanksThanHeadsAndModelsOfAllKinds) {
  int more = 0, latent = 0, sinks = 0;
  for (int i = 0; i < 12; ++i) {
    const auto [model, plan] = case_of_contexts(i, true);
    more += plan.stages[0].cp > model.num_heads / plan.stages[0].tp;
    latent += model.latent();
    sinks += model.sinks();
  }
  EXPECT_GE(more, 2);
  EXPECT_GE(latent, 1);
  EXPECT_GE(sinks, 1);
}

/// A model whose experts are balanced, and a plan for it in which ranks share sequences.
std::pair<model::Config, plan::Plan> case_of_balanced(int i) {
  std::mt19937 random(unsigned(i) * 86028121 + 3);
  while (true) {
    model::Config model = test::random_experts_model(random);
    model.balance_loss = 0.1;
    model.isolated = i % 3 == 0;
    model.rank_load_factor = i % 2 == 0 ? 1.0 : 1.3;
    if (i % 4 == 3) test::freeze_some(i, model);
    plan::Plan plan =
        i % 3 == 0 ? test::mixed_plan(random, model, 8) : test::random_plan(random, model, 8);
    if (i % 2 == 1) model.seq_len = 16;
    if (i % 3 == 1 && !divides_over_data(plan)) continue;
    if (test::share_sequences(model, plan, 1 + i % 2, i % 2 == 1)) return {model, plan};
  }
}

class BalancedContract : public ::testing::TestWithParam<int> {};

TEST_P(BalancedContract, RandomPlanThatSharesSequencesTrainsLikeOneRank) {
  const auto [model, plan] = case_of_balanced(GetParam());
  expect_contract(model, plan, test::head_tokens(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Engine, BalancedContract, ::testing::Range(0, test::trials(5)));

TEST(BalancedExperts, HavePlansThatSendTokensOrDivideExpertsOverRanksOfSequences) {
  int sent = 0, over_data = 0, gathered = 0;
  for (int i = 0; i < 12; ++i) {
    const auto [model, plan] = case_of_balanced(i);
    over_data += divides_over_data(plan);
    for (const plan::Stage& stage : plan.stages)
      sent += stage.cp > 1 && stage.dispatch_tokens == 1, gathered += stage.gather_keys;
  }
  EXPECT_GE(sent, 2);
  EXPECT_GE(over_data, 4);
  EXPECT_GE(gathered, 4);
}

/// A model of any kind with padded sequences, and a plan for it in which ranks share them.
std::pair<model::Config, plan::Plan> case_of_padded(int i) {
  std::mt19937 random(unsigned(i) * 49979687 + 9);
  const std::vector<model::Config> special = test::special_models();
  while (true) {
    model::Config model = i % 4 == 0   ? test::random_model(random)
                          : i % 4 == 1 ? test::random_experts_model(random)
                          : i % 4 == 2 ? special[std::size_t(i / 4 * 7 + 5) % special.size()]
                                       : test::random_family_model(random);
    if (model.num_experts > 0) model.balance_loss = model.z_loss = 0.05;
    model.isolated = i % 3 == 0;
    if (i % 5 == 4) test::freeze_some(i, model);
    model.seq_len = test::pick(random, {9, 10, 11, 13});
    model.padding = int(round_up(model.seq_len, test::pick(random, {8, 12, 24}))) - model.seq_len;
    plan::Plan plan =
        i % 3 == 0 ? test::mixed_plan(random, model, 8) : test::random_plan(random, model, 8);
    // A single short sequence may have nothing to learn.
    if (test::share_sequences(model, plan, 1 + i % 2, i % 4 != 0) && plan.global_batch > 1)
      return {model, plan};
  }
}

class PaddedContract : public ::testing::TestWithParam<int> {};

// One rank pads nothing.
TEST_P(PaddedContract, RandomPlanThatSharesSequencesTrainsLikeOneRank) {
  const auto [model, plan] = case_of_padded(GetParam());
  expect_contract(model, plan, test::head_tokens(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Engine, PaddedContract, ::testing::Range(0, test::trials(6)));

TEST(PaddedSequences, HaveRanksOfPaddingAloneAndModelsOfAllKinds) {
  int alone = 0, heads = 0, keys = 0, experts = 0, moved = 0, learned = 0;
  for (int i = 0; i < 16; ++i) {
    const auto [model, plan] = case_of_padded(i);
    experts += model.num_experts > 0, moved += model.balance_rate > 0.0;
    learned += !model.rotary();
    for (const plan::Stage& stage : plan.stages) {
      if (stage.cp == 1) continue;
      stage.gather_keys == 1 ? ++keys : ++heads;
      for (int rank = 0; rank < stage.cp; ++rank) {
        int own = 0;
        for (int row = 0; row < model.padded_len() / stage.cp; ++row)
          own += position(stage, model.padded_len(), rank, row) < model.seq_len;
        alone += own == 0;
      }
    }
  }
  EXPECT_GE(alone, 1);
  EXPECT_GE(heads, 2);
  EXPECT_GE(keys, 6);
  EXPECT_GE(experts, 4);
  EXPECT_GE(moved, 1);
  EXPECT_GE(learned, 3);
}

// The last tile has fewer tokens, and a sequence may be shared.
TEST(Tiles, TrainLikeAWholeMlp) {
  for (int i = 0; i < 6; ++i) {
    std::mt19937 random(unsigned(i) + 1);
    model::Config model = i % 2 == 0 ? test::special_models()[0] : test::random_model(random);
    if (model.num_experts > 0 || model.parallel()) continue;
    plan::Plan plan = plan::equal_stages(model, 4, 1, {.dp = 2});
    plan::Stage& stage = plan.stages[0];
    stage.mlp_tiles = 3, stage.zero_level = i % 4, stage.act_offload_ratio = i % 2;
    (i < 3 ? stage.ckpt_layers : stage.stored_layers) = i % 3;
    stage.ckpt_layers = std::min(stage.ckpt_layers, stage.layers);
    stage.stored_layers = std::min(stage.stored_layers, stage.layers);
    expect_contract(model, plan);
  }
}

class InterleavedContract : public ::testing::TestWithParam<int> {};

// Ranks that hold several stages, of three families and of the special models, on 2 to 8 ranks.
TEST_P(InterleavedContract, RandomPlanTrainsLikeOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 6700417 + 5);
  const std::vector<model::Config> special = test::special_models();
  model::Config model = i % 3 == 0   ? test::random_model(random)
                        : i % 3 == 1 ? test::random_family_model(random)
                                     : special[std::size_t(i / 3) % special.size()];
  model.isolated = i % 4 == 0;
  model.exchanges_normed = i % 3 == 2;
  if (i % 5 == 2) test::adapt(i, model);
  plan::Plan plan = test::interleaved_plan(random, model, 8);
  if (i % 2 == 1) test::share_sequences(model, plan, 1, i % 4 == 1);
  expect_contract(model, plan, test::head_tokens(i));
}

INSTANTIATE_TEST_SUITE_P(Engine, InterleavedContract, ::testing::Range(0, test::trials(4)));

class ZeroBubbleContract : public ::testing::TestWithParam<int> {};

// Backwards in two parts add the same numbers in the same order, so that no bit differs; what whole
// ones give, the tests above have. Layers of all kinds, on 2 to 8 ranks.
TEST_P(ZeroBubbleContract, RandomPlanTrainsAsWithWholeBackwards) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 6700417 + 11);
  const std::vector<model::Config> special = test::special_models();
  model::Config model = i % 3 == 0   ? test::random_model(random)
                        : i % 3 == 1 ? test::random_family_model(random)
                                     : special[std::size_t(i / 3) % special.size()];
  model.isolated = i % 4 == 0;
  model.exchanges_normed = i % 2 == 1;
  model.head_tokens = test::head_tokens(i);
  if (i % 5 == 1) model.precision = model::Precision::bf16;
  if (i % 5 == 3) model.precision = model::Precision::fp8;
  if (i % 4 == 3) test::freeze(model, "mlp");
  if (i % 4 == 2) test::adapt(i, model);
  if (i % 12 == 0) test::quantize(i / 12, model);
  plan::Plan plan = test::zero_bubble_plan(random, model, 8);
  if (i % 2 == 0) test::share_sequences(model, plan, 1, i % 4 == 0);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len, model.isolated);
  const Settings settings = test::contract_settings(6);
  const test::Trained split = test::train(plan, model, settings, data);
  plan.order.zero_bubble = 0;
  const test::Trained whole = test::train(plan, model, settings, data);
  const std::string both = model::text(model) + "\n" + plan::text(plan);
  EXPECT_EQ(split.losses, whole.losses) << both;
  EXPECT_EQ(split.norms, whole.norms) << both;
}

// In some microbatches experts take rounds and in others not, so that gradients of their weights
// are made in different parts.
TEST_P(ZeroBubbleContract, RandomPlanOfExpertsTrainsLikeOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 15485863 + 5);
  model::Config model = test::random_experts_model(random);
  model.rank_load_factor = i % 2 == 0 ? 1.0 : 1.2;
  plan::Plan plan = test::zero_bubble_plan(random, model, 8);
  while (!(i % 2 == 0 ? divides_experts(plan) : divides_over_data(plan)) ||
         plan.microbatches == 1) {
    model = test::random_experts_model(random);
    plan = test::zero_bubble_plan(random, model, 8);
  }
  if (i % 3 == 2) test::freeze(model, "router");
  expect_contract(model, plan, test::head_tokens(i));
}

INSTANTIATE_TEST_SUITE_P(Engine, ZeroBubbleContract, ::testing::Range(0, test::trials(4)));

class LoneEndsContract : public ::testing::TestWithParam<int> {};

// The embedding alone on the first stage, the head alone on the last one, or both, in all orders of
// passes, on 2 to 8 ranks.
TEST_P(LoneEndsContract, RandomPlanTrainsLikeOneRank) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) * 6700417 + 23);
  model::Config model = i % 2 == 0 ? test::random_model(random) : test::random_family_model(random);
  model.tied_head = i / 2 % 2 == 0;
  plan::Plan plan;
  do {
    if (i % 4 == 1) {
      plan = test::interleaved_plan(random, model, 8);
    } else if (i % 4 == 2) {
      plan = test::zero_bubble_plan(random, model, 8);
    } else {
      plan = test::mixed_plan(random, model, 8);
    }
  } while (plan.num_stages() < 2);
  if (i % 8 == 3) test::freeze_some(i - 1, model);
  test::empty_ends(i / 4, plan);
  expect_contract(model, plan, test::head_tokens(i));
}

INSTANTIATE_TEST_SUITE_P(Engine, LoneEndsContract, ::testing::Range(0, test::trials(5)));

class ReplicasContract : public ::testing::TestWithParam<int> {};

// Two replicas on two ranks each, and three, with nothing and with half of all state on the host.
TEST_P(ReplicasContract, ShardsInReplicasTrainLikeOneRank) {
  const int zero_level = GetParam();
  std::mt19937 random(17);
  const model::Config model = test::random_model(random);
  for (const int replicas : {2, 3})
    for (const double share : {0.0, 0.5}) {
      plan::Plan plan{.global_batch = 4 * replicas, .microbatches = 2, .stages = {}};
      plan.stages = {{.layers = model.num_layers,
                      .devices_per_node = 2 * replicas,
                      .dp = 2 * replicas,
                      .zero_level = zero_level,
                      .replicas = replicas,
                      .weight_offload_ratio = share,
                      .grad_offload_ratio = share,
                      .optim_offload_ratio = share}};
      expect_contract(model, plan);
    }
}

INSTANTIATE_TEST_SUITE_P(Engine, ReplicasContract, ::testing::Values(1, 2, 3));

/// Four windows of three documents each a step, and the same documents as a sequence each, behind
/// which what is not learned fills it.
struct PackedAndAlone {
  static constexpr int seq_len = 16, windows = 4 * 20, documents = 3;

  explicit PackedAndAlone(int vocab_size) {
    std::mt19937 random(19);
    for (int window = 0; window < windows; ++window) {
      const int first = 1 + int(random() % 8), second = 1 + int(random() % 7);
      for (const int length : {first, second, seq_len - first - second}) add(length, random);
    }
    // The last window needs a token that follows it.
    packed.push_back(0), alone.push_back(0);
    packed_ends.ends.push_back(std::ssize(packed)), alone_ends.ends.push_back(std::ssize(alone));
    alone_ends.answers.push_back(std::ssize(alone));
    write_token_file(path_of("packed"), packed, vocab_size, packed_ends);
    write_token_file(path_of("alone"), alone, vocab_size, alone_ends);
  }
  ~PackedAndAlone() {
    for (const char* name : {"packed", "alone"}) std::filesystem::remove(path_of(name));
  }

  void add(int length, std::mt19937& random) {
    const auto begin = std::int64_t(alone.size());
    for (int i = 0; i < length; ++i) packed.push_back(std::int32_t(random() % 9));
    alone.insert(alone.end(), packed.end() - length, packed.end());
    alone.resize(std::size_t(begin + seq_len));
    packed_ends.ends.push_back(std::ssize(packed));
    for (const std::int64_t end : {begin + length, begin + seq_len}) alone_ends.ends.push_back(end);
    // Nothing comes before a document's first token: the sequence before does not predict it.
    for (const std::int64_t answer : {begin + 1, begin + seq_len})
      alone_ends.answers.push_back(answer);
  }
  static std::filesystem::path path_of(const std::string& name) {
    return std::filesystem::temp_directory_path() /
           ("brume-" + name + "-" + std::to_string(::getpid()) + ".tok");
  }

  std::vector<std::int32_t> packed, alone;
  data::DocumentEnds packed_ends, alone_ends;
};

TEST(Engine, IsolatedDocumentsTrainLikeSequencesOfTheirOwn) {
  std::vector<model::Config> models = test::special_models();
  std::mt19937 random(3);
  models.push_back(test::random_model(random));
  for (model::Config model : models) {
    model.seq_len = PackedAndAlone::seq_len;
    // Whole sequences have a part in these.
    model.balance_loss = model.z_loss = model.balance_rate = 0.0;
    const PackedAndAlone files(model.vocab_size);
    const Settings settings = test::contract_settings(20);
    const auto trained = [&](const char* name, int sequences, bool isolated) {
      model.isolated = isolated;
      const data::Sampler data(data::TokenFile(PackedAndAlone::path_of(name)),
                               data::Order::sequential, 0, model.seq_len, isolated);
      return test::train(test::one_rank_plan(model, sequences), model, settings, data);
    };
    const test::Trained packed = trained("packed", 4, true), alone = trained("alone", 12, false);
    EXPECT_LT(packed.losses[19], 0.95 * packed.losses[0]);
    // The last loss is of other samples.
    for (std::size_t step = 0; step < 20; ++step) {
      EXPECT_NEAR(packed.losses[step] / alone.losses[step], 1.0, 1e-5) << model::text(model);
      EXPECT_NEAR(packed.norms[step] / alone.norms[step], 1.0, 1e-4) << model::text(model);
    }
  }
}

// Documents of 1 to 64 tokens in sequences of 64. Whatever the stages, each sequence is somebody's,
// stages agree, and ranks have equal work where in order they have not.
TEST(Batches, AreDealtToRanksByTheirAttention) {
  constexpr int seq_len = 64, batch = 96;
  std::mt19937 random(11);
  std::vector<std::int32_t> tokens(std::size_t(seq_len * batch + 1), 1);
  data::DocumentEnds documents;
  for (std::int64_t end = 0; end < std::ssize(tokens);)
    documents.ends.push_back(
        end = std::min<std::int64_t>(end + 1 + (random() % 2 == 0 ? random() % 8 : random() % 64),
                                     std::ssize(tokens)));
  const data::Sampler data = data::sampler_of(tokens, 8, documents, seq_len, true);
  model::Config model = test::special_models().front();
  model.seq_len = seq_len, model.isolated = true, model.num_layers = 2;
  for (const auto& [microbatches, first_dp, last_dp] :
       {std::tuple(24, 4, 4), {6, 4, 8}, {4, 8, 2}, {1, 4, 4}, {2, 1, 3}}) {
    const int at_once = batch / microbatches;
    plan::Plan plan = plan::equal_stages(model, batch, 2, {.microbatch = 1});
    plan.microbatches = microbatches;
    for (const auto& [stage, dp] : {std::pair(0, first_dp), {1, last_dp}}) {
      plan.stages[stage].dp = plan.stages[stage].devices_per_node = dp;
      plan.stages[stage].microbatch = at_once / dp;
    }
    std::vector<std::vector<std::int64_t>> by_place(2, std::vector<std::int64_t>(batch));
    std::map<BatchReader::Deal, double> most;
    for (const BatchReader::Deal deal :
         {BatchReader::Deal::in_order, BatchReader::Deal::by_attention})
      for (int rank = 0; rank < plan.devices(); ++rank) {
        const BatchReader reader(plan, model, rank, deal);
        const std::vector<std::int64_t> places = reader.own_sequences(),
                                        own = reader.own_sequences(data, 0);
        double pairs = 0.0;
        for (std::size_t i = 0; i < own.size(); ++i) {
          pairs += data.attention_pairs(own[i]);
          by_place[std::size_t(rank >= first_dp)][std::size_t(places[i])] = own[i];
        }
        const int ranks = rank < first_dp ? first_dp : last_dp;
        most[deal] = std::max(most[deal], pairs * ranks);
      }
    EXPECT_EQ(by_place[0], by_place[1]);
    double all = 0.0;
    for (int i = 0; i < batch; ++i) all += data.attention_pairs(i);
    EXPECT_LT(most[BatchReader::Deal::by_attention], 1.02 * all) << microbatches;
    EXPECT_GT(most[BatchReader::Deal::in_order], 1.02 * all) << microbatches;
    std::ranges::sort(by_place[0]);
    for (int i = 0; i < batch; ++i) EXPECT_EQ(by_place[0][std::size_t(i)], i);
  }
}

// By hand: loads 1 and 3 have a largest one of 1.5 times the mean, 4 and 4 of 1.
TEST(Engine, LoadFactorIsTheLargestLoadOverTheMean) {
  const std::vector<double> loads{1.0, 3.0, 4.0, 4.0};
  EXPECT_DOUBLE_EQ(load_factor(loads, 2), 1.25);
  EXPECT_DOUBLE_EQ(load_factor(loads, 4), 4.0 * 4.0 / 12.0);
  EXPECT_EQ(idle_experts(loads), 0.0);
  EXPECT_EQ(idle_experts(std::vector{0.0, 3.0, 4.0, 0.0}), 0.5);
}

// The mean load is 3.
TEST(Engine, CorrectionsMoveTowardsEvenLoads) {
  const std::vector<double> loads{1.0, 3.0, 8.0, 0.0};
  std::vector<float> corrections{0.5f, 0.5f, 0.5f, -0.25f};
  move_corrections(loads, 0, 0.25f, corrections);
  EXPECT_EQ(corrections, (std::vector<float>{0.75f, 0.5f, 0.25f, 0.0f}));
  std::vector<float> last{0.5f, 0.5f};
  move_corrections(loads, 2, 0.25f, last);
  EXPECT_EQ(last, (std::vector<float>{0.25f, 0.75f}));
}

/// A model whose router chooses by sigmoids that steps correct.
model::Config corrected_model() {
  const std::vector<model::Config> special = test::special_models();
  const auto found =
      std::ranges::find_if(special, [](const auto& one) { return one.balance_rate > 0.0; });
  return *found;
}

// Bit for bit, wherever a correction is kept, and by the loads of all ranks.
TEST(Engine, CorrectionsFollowTheLoads) {
  model::Config model = corrected_model();
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  plan::Plan sharded = plan::equal_stages(model, 8, 2, {.microbatch = 2, .dp = 2, .tp = 2});
  for (plan::Stage& stage : sharded.stages) {
    stage.zero_level = 3;
    stage.weight_offload_ratio = 0.5;
    stage.ckpt_layers = 1;
  }
  plan::Plan divided = plan::equal_stages(model, 8, 1, {.microbatch = 2, .dp = 2, .tp = 2});
  divided.stages[0].ep = 4;
  for (const plan::Plan& plan : {test::one_rank_plan(model, 8), sharded, divided})
    for (const model::Precision precision : {model::Precision::fp32, model::Precision::bf16}) {
      model.precision = precision;
      comm::run_local(plan.devices(), [&](comm::Communicator& world) {
        Engine engine(plan, model, test::contract_settings(4), world);
        const int layers = model.num_layers - model.first_dense_layers;
        std::vector<float> expected(std::size_t(layers * model.num_experts), 0.0f);
        for (int step = 0; step < 4; ++step) {
          engine.step(data);
          const std::vector<std::int64_t>& own = engine.last_loads().copies;
          std::vector<double> loads(own.begin(), own.end());
          world.all_reduce(loads, comm::Reduction::sum);
          const auto experts = std::size_t(model.num_experts);
          for (std::size_t first = 0; first < loads.size(); first += experts)
            move_corrections(std::span(loads).subspan(first, experts), 0, float(model.balance_rate),
                             std::span(expected).subspan(first, experts));
        }
        engine.flush();
        std::int64_t found = 0;
        for (const Slab& slab : engine.slabs()) {
          if (!slab.name.ends_with(".correction")) continue;
          const int layer = slab.name.at(7) - '0' - model.first_dense_layers;
          const auto begin = expected.begin() + std::ptrdiff_t(layer) * model.num_experts +
                             std::ptrdiff_t(slab.first);
          EXPECT_EQ(values(slab), std::vector<float>(begin, begin + slab.elements)) << slab.name;
          EXPECT_EQ(slab.kind, "weight");
          found += slab.owned ? slab.elements : 0;
        }
        std::vector<double> all{double(found)};
        world.all_reduce(all, comm::Reduction::sum);
        EXPECT_EQ(all[0], double(expected.size()));
        EXPECT_NE(expected, std::vector<float>(expected.size(), 0.0f));
      });
    }
}

// A step that overflows changes no correction, and neither do trainings that freeze it.
TEST(Engine, CorrectionsStayWhereNothingIsTrained) {
  const auto moves = [](const model::Config& model, double scale) {
    const test::TokenFixture tokens(model.vocab_size);
    Settings settings = test::contract_settings(2);
    settings.loss_scale = scale;
    bool moved = false;
    comm::run_local(1, [&](comm::Communicator& world) {
      Engine engine(test::one_rank_plan(model, 4), model, settings, world);
      const data::Sampler data = tokens.sampler(model.seq_len);
      EXPECT_EQ(engine.step(data).skipped, scale > 1.0);
      for (const Slab& slab : engine.slabs())
        if (slab.name.ends_with(".correction"))
          for (const float value : values(slab)) moved = moved || value != 0.0f;
    });
    return moved;
  };
  model::Config model = corrected_model();
  EXPECT_TRUE(moves(model, 1.0));
  model.precision = model::Precision::fp16;
  EXPECT_FALSE(moves(model, 0x1p100));
  model.precision = model::Precision::fp32;
  test::freeze(model, "norm");
  EXPECT_TRUE(moves(model, 1.0));
  EXPECT_FALSE(model::frozen_names(model).contains("layers.1.mlp.router.correction"));
  test::freeze(model, "mlp");
  EXPECT_FALSE(moves(model, 1.0));
  EXPECT_TRUE(model::frozen_names(model).contains("layers.1.mlp.router.correction"));
}

// Neither recomputation nor an evaluation counts, nor a second tensor-parallel rank.
TEST(Engine, CountsEachCopyOfATokenOnce) {
  std::mt19937 random(7);
  model::Config model = test::random_experts_model(random);
  model.num_layers = 3, model.num_experts = 5, model.experts_per_token = 2;
  model.first_dense_layers = 1;
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const auto loads = [&](const plan::Plan& plan) {
    std::vector<std::int64_t> sums(10);
    std::mutex mutex;
    comm::run_local(plan.devices(), [&](comm::Communicator& world) {
      Engine engine(plan, model, test::contract_settings(3), world);
      engine.evaluate(data, 0, 4);
      engine.step(data);
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += engine.last_loads().copies.at(i);
    });
    return sums;
  };
  const std::vector<std::int64_t> one = loads(test::one_rank_plan(model, 8));
  for (std::size_t layer = 0; layer < 2; ++layer)
    EXPECT_EQ(std::accumulate(one.begin() + std::ptrdiff_t(5 * layer),
                              one.begin() + std::ptrdiff_t(5 * layer + 5), std::int64_t{0}),
              8 * model.seq_len * 2);
  plan::Plan plan = plan::equal_stages(model, 8, 1, {.microbatch = 2, .dp = 2, .tp = 2});
  plan.stages[0].ckpt_layers = 2;
  EXPECT_EQ(loads(plan), one);
}

// All tokens are the same, so all go to the same expert, and one rank has all rows.
TEST(Engine, AllTokensMayGoToTheExpertsOfOneRank) {
  std::mt19937 random(7);
  model::Config model = test::random_experts_model(random);
  model.num_layers = 3, model.num_experts = 4, model.experts_per_token = 1;
  model.expert_ffn_size = 12, model.normalize_topk = false;
  model.first_dense_layers = 0;
  const test::OwnFolder folder;
  data::write_token_file(folder / "same.tok", std::vector<std::int32_t>(600, 3), model.vocab_size);
  const data::Sampler data(data::TokenFile(folder / "same.tok"), data::Order::shuffled, 11,
                           model.seq_len, false);
  const engine::Settings settings = test::contract_settings(4);
  const test::Trained one = test::train(test::one_rank_plan(model, 8), model, settings, data);
  for (const int recomputed : {0, 3})
    for (const int tp : {2, 4}) {
      if (model.num_heads % tp != 0) continue;
      plan::Plan plan =
          plan::equal_stages(model, 8, 1, {.microbatch = 2, .dp = 2, .tp = tp, .ep = tp});
      plan.stages[0].ckpt_layers = recomputed;
      comm::run_local(plan.devices(), [&](comm::Communicator& world) {
        Engine engine(plan, model, settings, world);
        const test::Trained mine = test::train(engine, settings, plan.global_batch, data);
        EXPECT_TRUE(test::trains_like(one, mine)) << plan::text(plan);
        if (world.rank() > 0) return;
        const std::vector<std::int64_t>& loads = engine.last_loads().copies;
        EXPECT_EQ(std::ranges::count(loads, 0), 3 * 3) << "a single expert of each layer";
      });
    }
}

/// Stages of three tensor-parallel ranks, alone and beside stages of two and of one.
class ThreeParts : public ::testing::TestWithParam<std::tuple<bool, int>> {};

// 31 tokens are pieces of 11, 11 and 9, or of 16 and 15; 10 are 4, 4 and 2.
TEST_P(ThreeParts, OfTheVocabularyTrainLikeOneRank) {
  const auto [tied, vocab_size] = GetParam();
  std::mt19937 random(5);
  const model::Config model{.num_layers = 2,
                            .hidden_size = 36,
                            .num_heads = 6,
                            .ffn_size = 96,
                            .seq_len = 12,
                            .vocab_size = vocab_size,
                            .tied_head = tied};
  using Splits = std::vector<test::Split>;
  for (const Splits& splits : {Splits{{1, 3, 2}}, Splits{{2, 3, 1}}, Splits{{1, 2, 2}, {1, 3, 2}},
                               Splits{{1, 3, 2}, {2, 1, 1}}})
    expect_contract(model, test::plan_of(random, model, splits));
}

INSTANTIATE_TEST_SUITE_P(Engine, ThreeParts,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(31, 10)));

// Four ranks of which the last has none of nine tokens.
TEST(Engine, ARankWithoutTokensTrainsToo) {
  std::mt19937 random(5);
  model::Config model = test::random_model(random);
  model.num_heads = 4;
  model.vocab_size = 9;
  for (const bool tied : {true, false}) {
    model.tied_head = tied;
    expect_contract(model, test::plan_of(random, model, {{1, 4, 2}}));
  }
}

TEST(LossScaling, HalvesAndAfterManyGoodStepsDoublesWithinItsBounds) {
  EXPECT_EQ(after_step({1024.0, 7}, true), (LossScaling{1024.0, 8}));
  EXPECT_EQ(after_step({1024.0, steps_before_growth - 1}, true), (LossScaling{2048.0, 0}));
  EXPECT_EQ(after_step({1024.0, 7}, false), (LossScaling{512.0, 0}));
  EXPECT_EQ(after_step({least_loss_scale, 7}, false), (LossScaling{least_loss_scale, 0}));
  EXPECT_EQ(after_step({largest_loss_scale, steps_before_growth - 1}, true),
            (LossScaling{largest_loss_scale, 0}));
}

/// A plan with all that a rank can do, and its model and data, for fp16.
struct Scaled {
  Scaled()
      : random(21), model(test::random_model(random)), plan(test::plan_number(21, random, model)) {
    model.precision = model::Precision::fp16;
  }
  std::mt19937 random;
  model::Config model;
  plan::Plan plan;
  test::TokenFixture tokens{model.vocab_size};
  data::Sampler data = tokens.sampler(model.seq_len);
};

// In fp32 a power of two changes no bit of a gradient: whatever is S times too large is divided.
TEST(LossScaling, InFp32ChangesNoBit) {
  for (const int i : {2, 5, 11, 25, 30}) {
    std::mt19937 random(unsigned(i) * 7919 + 13);
    const model::Config model = test::random_family_model(random);
    const plan::Plan plan = test::plan_number(i, random, model);
    const test::TokenFixture tokens(model.vocab_size);
    const data::Sampler data = tokens.sampler(model.seq_len);
    Settings settings = test::contract_settings(5);
    const test::Trained unscaled = test::train(plan, model, settings, data);
    settings.loss_scale = 0x1p20;
    const test::Trained scaled = test::train(plan, model, settings, data);
    EXPECT_EQ(scaled.losses, unscaled.losses) << plan::text(plan);
    EXPECT_EQ(scaled.norms, unscaled.norms) << plan::text(plan);
  }
}

TEST(Engine, WithoutOverlapTheBitsAreTheSame) {
  std::mt19937 random(4);
  const model::Config model = test::random_model(random);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  plan::Plan plan = test::random_plan(random, model, 4);
  Settings settings = test::contract_settings(4);

  const test::Trained overlapped = test::train(plan, model, settings, data);
  settings.overlap = false;
  const test::Trained serial = test::train(plan, model, settings, data);
  EXPECT_EQ(serial.losses, overlapped.losses);
  EXPECT_EQ(serial.norms, overlapped.norms);
}

using FrozenSlabs = std::map<std::string, std::vector<float>>;

/// Weights of a one-rank run, by name, as `steps` steps leave them.
FrozenSlabs weights_after(const model::Config& model, const Settings& settings, int steps,
                          const data::Sampler& data, test::Trained& trained) {
  FrozenSlabs weights;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(test::one_rank_plan(model, 4), model, settings, world);
    for (int step = 0; step < steps; ++step) {
      const StepMetrics metrics = engine.step(data);
      trained.losses.push_back(metrics.loss);
      trained.norms.push_back(metrics.grad_norm);
    }
    engine.flush();
    for (const Slab& slab : engine.slabs())
      if (slab.kind == "weight" && slab.owned) weights[slab.name] = values(slab);
  });
  return weights;
}

// A learning rate of zero leaves parameters as they are, too, but counts them in the norm: without
// clipping both train the others to the same bits. What is frozen has its initial value, below fp32
// rounded where nothing of its block is trained.
void expect_frozen(model::Config model, const model::Config& usual_model) {
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  Settings settings = test::contract_settings(8);
  settings.optimizer.clip_norm = 0.0;
  settings.optimizer.groups.clear();
  test::Trained usual, less, none;
  const FrozenSlabs first = weights_after(usual_model, settings, 0, data, none);
  const FrozenSlabs by_freezing = weights_after(model, settings, 8, data, less);
  const std::vector<model::Block> blocks = model::blocks(model);
  for (const model::Block& block : blocks)
    for (const model::Parameter& parameter : block.parameters)
      if (parameter.frozen) settings.optimizer.groups.push_back({parameter.name, 0.0, 0.0});
  const FrozenSlabs by_zero = weights_after(usual_model, settings, 8, data, usual);
  EXPECT_EQ(less.losses, usual.losses) << model::text(model);
  for (std::size_t step = 0; step < 8; ++step) EXPECT_LT(less.norms[step], usual.norms[step]);
  ASSERT_EQ(by_freezing.size(), by_zero.size());
  for (std::size_t block = 0; block < blocks.size(); ++block)
    for (const model::Parameter& parameter : blocks[block].parameters) {
      const std::vector<float>& now = by_freezing.at(parameter.name);
      std::vector<float> expected = first.at(parameter.name);
      if (model.precision == model::Precision::bf16 && parameter.frozen)
        for (float& value : expected) value = float(bfloat16(value));
      EXPECT_EQ(now, parameter.frozen ? expected : by_zero.at(parameter.name)) << parameter.name;
      EXPECT_EQ(now == first.at(parameter.name) || now == expected, parameter.frozen)
          << parameter.name;
    }
}

TEST(Engine, WhatIsFrozenStaysAndDoesNotCount) {
  std::mt19937 random(8);
  std::vector<model::Config> models = test::special_models();
  for (int i = 0; i < 4; ++i) models.push_back(test::random_family_model(random));
  models.push_back(test::random_model(random));
  for (std::size_t i = 0; i < models.size(); ++i) {
    model::Config usual = models[i];
    usual.tied_head = i % 2 == 0;
    usual.balance_rate = 0.0;
    if (i % 3 == 2) usual.precision = model::Precision::bf16;
    model::Config blocks = usual, parts = usual;
    blocks.frozen_blocks = 1 + int(i) % (usual.num_layers + 1);
    expect_frozen(blocks, usual);
    test::freeze(parts, i % 2 == 0 ? "norm" : "mlp");
    test::freeze(parts, i % 3 == 0 ? "embedding" : "weight");
    expect_frozen(parts, usual);
  }
}

// Frozen tensors keep their bits where asked, though layers compute with rounded weights. The parts
// that ranks write to a checkpoint make up each of its tensors once.
TEST(Engine, WhatIsFrozenKeepsItsBits) {
  constexpr float value = 1.0F + 0x1p-20F;  // no value of 16 bits
  std::mt19937 random(6);
  for (const model::Precision precision :
       {model::Precision::bf16, model::Precision::fp16, model::Precision::fp8}) {
    model::Config model = test::random_model(random);
    model.precision = precision;
    model.frozen_blocks = 1;
    test::freeze(model, "norm");
    std::map<std::string, std::int64_t> left;  // elements
    Settings settings = test::contract_settings(2);
    for (const model::Block& block : model::blocks(model))
      for (const model::Parameter& parameter : block.parameters)
        if (parameter.frozen) left[parameter.name] = parameter.elements();
    for (const auto& entry : left) settings.exact.insert(entry.first);
    const plan::Plan plan = test::random_plan(random, model, 4);
    const test::TokenFixture tokens(model.vocab_size);
    const data::Sampler data = tokens.sampler(model.seq_len);
    std::mutex mutex;
    comm::run_local(plan.devices(), [&](comm::Communicator& world) {
      Engine engine(plan, model, settings, world);
      for (const Slab& slab : engine.slabs())
        if (slab.kind == "weight" && slab.name.find("norm") != std::string::npos)
          set_values(slab, 0, std::vector<float>(std::size_t(slab.elements), value));
      engine.step(data);
      engine.step(data);
      engine.flush();
      const std::lock_guard lock(mutex);
      for (const Slab& slab : engine.slabs()) {
        if (!settings.exact.contains(slab.name)) continue;
        EXPECT_EQ(slab.owned, slab.rounded == nullptr) << slab.name;
        if (slab.name.find("norm") != std::string::npos) {
          const std::vector<float> expected(std::size_t(slab.elements), slab.owned ? value : 1.0F);
          EXPECT_EQ(values(slab), expected) << slab.name;
        }
        if (slab.owned) left[slab.name] -= slab.elements;
      }
    });
    for (const auto& [name, elements] : left) EXPECT_EQ(elements, 0) << name;
  }
}

// What only stays as it is has no moments in a checkpoint.
TEST(Engine, WhatIsFrozenHasNoMoments) {
  std::mt19937 random(5);
  model::Config model = test::random_model(random);
  model.frozen_blocks = 1;
  test::freeze(model, "norm");
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(test::one_rank_plan(model, 4), model, test::contract_settings(1), world);
    std::map<std::string, std::set<std::string>> kinds;
    for (const Slab& slab : engine.slabs()) kinds[slab.name].insert(slab.kind);
    for (const model::Block& block : model::blocks(model))
      for (const model::Parameter& parameter : block.parameters)
        EXPECT_EQ(kinds[parameter.name], parameter.frozen
                                             ? std::set<std::string>({"weight"})
                                             : std::set<std::string>({"m", "v", "weight"}))
            << parameter.name;
  });
}

class OnDisk : public ::testing::TestWithParam<int> {};

// Where state and activations lie changes no bit.
TEST_P(OnDisk, PlansTrainToTheSameBits) {
  std::mt19937 random(unsigned(GetParam()) + 1);
  model::Config model = test::random_family_model(random);
  if (GetParam() % 2 == 1) model.precision = model::Precision::bf16;
  plan::Plan plan = test::plan_number(GetParam(), random, model);
  for (plan::Stage& stage : plan.stages) {
    stage.optim_offload_ratio = stage.act_offload_ratio = 1.0;
    stage.optim_disk_ratio = stage.act_disk_ratio = stage.host_update_ratio = 0.0;
  }
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  Settings settings = test::contract_settings(5);
  const test::Trained on_host = test::train(plan, model, settings, data);
  for (const auto& [optim, act] : {std::pair(1.0, 1.0), std::pair(0.3, 0.6)}) {
    for (plan::Stage& stage : plan.stages)
      stage.optim_disk_ratio = optim, stage.act_disk_ratio = act;
    const test::Trained on_disk = test::train(plan, model, settings, data);
    EXPECT_EQ(on_disk.losses, on_host.losses) << plan::text(plan);
    EXPECT_EQ(on_disk.norms, on_host.norms) << plan::text(plan);
  }
  settings.overlap = false;
  EXPECT_EQ(test::train(plan, model, settings, data).losses, on_host.losses) << plan::text(plan);
}

INSTANTIATE_TEST_SUITE_P(Engine, OnDisk, ::testing::Values(0, 3, 6, 9, 12, 17, 25, 30));

class HostUpdateContract : public ::testing::TestWithParam<int> {};

// Who steps what changes no bit: with clipped norms, groups of parameters, gradients and weights of
// which parts are on the host, and a part of the state on disk.
TEST_P(HostUpdateContract, PlansTrainToTheSameBits) {
  const int i = GetParam();
  std::mt19937 random(unsigned(i) + 1);
  model::Config model = test::random_family_model(random);
  if (i % 2 == 1) model.precision = model::Precision::bf16;
  plan::Plan plan = i % 3 == 0   ? test::interleaved_plan(random, model, 6)
                    : i % 3 == 1 ? test::zero_bubble_plan(random, model, 6)
                                 : test::plan_number(i, random, model);
  const auto set = [&](double offloaded, double on_disk, double on_host) {
    for (plan::Stage& stage : plan.stages) {
      stage.optim_offload_ratio = offloaded;
      stage.optim_disk_ratio = on_disk;
      stage.host_update_ratio = on_host;
    }
  };
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  Settings settings = test::contract_settings(5);
  set(0.7, 0.0, 0.0);
  const test::Trained on_device = test::train(plan, model, settings, data);
  for (const auto& [on_disk, on_host] : {std::pair(0.0, 0.7), std::pair(0.2, 0.3)}) {
    set(0.7, on_disk, on_host);
    const test::Trained on_the_host = test::train(plan, model, settings, data);
    EXPECT_EQ(on_the_host.losses, on_device.losses) << plan::text(plan);
    EXPECT_EQ(on_the_host.norms, on_device.norms) << plan::text(plan);
  }
  settings.overlap = false;
  set(1.0, 0.0, 1.0);
  EXPECT_EQ(test::train(plan, model, settings, data).losses, on_device.losses) << plan::text(plan);
}

INSTANTIATE_TEST_SUITE_P(Engine, HostUpdateContract, ::testing::Range(0, test::trials(4)));

// Before anything is trained, and by its own name.
TEST(Engine, ADirectoryThatCannotHoldTheDiskTierIsAnError) {
  std::mt19937 random(4);
  const model::Config model = test::random_model(random);
  plan::Plan plan = test::one_rank_plan(model, 2);
  plan.stages[0].optim_offload_ratio = plan.stages[0].optim_disk_ratio = 1.0;
  Settings settings;
  settings.scratch = "/proc/nowhere";
  comm::run_local(1, [&](comm::Communicator& world) {
    const std::string what =
        test::refusal([&] { Engine(plan, model, settings, world); }, Failure::storage);
    EXPECT_NE(what.find("/proc/nowhere"), std::string::npos) << what;
  });
}

using Values = std::vector<std::vector<float>>;

/// What a checkpoint would hold.
Values state(Engine& engine) {
  engine.flush();
  Values all;
  for (const Slab& slab : engine.slabs()) all.push_back(values(slab));
  return all;
}

/// Puts `value` into the first element of each of this rank's weights. @return what was there
std::vector<float> poison(Engine& engine, float value) {
  std::vector<float> before;
  for (const Slab& slab : engine.slabs()) {
    if (slab.kind != "weight") continue;
    before.push_back(values(slab)[0]);
    set_values(slab, 0, std::array{value});
  }
  return before;
}

void heal(Engine& engine, const std::vector<float>& before) {
  auto value = before.begin();
  for (const Slab& slab : engine.slabs())
    if (slab.kind == "weight") set_values(slab, 0, std::array{*value++});
}

/// Trains 6 steps in fp16 from the state `scaling` before step `first` on.
struct ScaledRun {
  ScaledRun(const Scaled& setup, std::int64_t first, const LossScaling& scaling,
            double fixed_scale = 0.0)
      : states(std::size_t(setup.plan.devices())) {
    Settings settings = test::contract_settings(40);
    settings.loss_scale = fixed_scale;
    comm::run_local(setup.plan.devices(), [&](comm::Communicator& world) {
      Engine engine(setup.plan, setup.model, settings, world);
      engine.resume(
          {.steps = first, .samples = first * setup.plan.global_batch, .scaling = scaling});
      std::int64_t good = 0;
      while (good < 6 && engine.steps_done() < settings.steps) {
        const StepMetrics metrics = engine.step(setup.data);
        good += !metrics.skipped;
        if (world.rank() == 0) steps.push_back(metrics);
      }
      states[std::size_t(world.rank())] = state(engine);
      if (world.rank() == 0) last = engine.progress().scaling;
    });
  }
  /// Loss, norm and S of the steps that had an update.
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const StepMetrics& m : steps)
      if (!m.skipped) all.insert(all.end(), {m.loss, m.grad_norm, m.loss_scale});
    return all;
  }

  std::vector<StepMetrics> steps;
  std::vector<Values> states;  ///< [rank]
  LossScaling last;
};

// S is too large for fp16, so every step halves it until gradients fit; what follows has the bits
// of a run that began with that S.
TEST(LossScaling, FallsUntilGradientsFit) {
  const Scaled setup;
  const ScaledRun falling(setup, 0, {0x1p30, 100});
  std::int64_t fallen = 0;
  for (const StepMetrics& m : falling.steps) {
    if (!m.skipped) break;
    EXPECT_TRUE(m.scaled_down);
    EXPECT_TRUE(std::isfinite(m.loss));
    EXPECT_EQ(m.loss_scale, std::ldexp(1.0, 30 - int(fallen)));
    ++fallen;
  }
  ASSERT_GE(fallen, 2);
  ASSERT_LT(fallen, 20);
  const ScaledRun fitting(setup, fallen, {std::ldexp(1.0, 30 - int(fallen)), 0});
  EXPECT_EQ(falling.numbers(), fitting.numbers());
  EXPECT_EQ(falling.states, fitting.states);
  EXPECT_EQ(falling.last, fitting.last);
}

TEST(LossScaling, GrowsAfterManyGoodSteps) {
  const ScaledRun run(Scaled(), 0, {64.0, steps_before_growth - 2});
  std::vector<double> scales;
  for (const StepMetrics& m : run.steps) scales.push_back(m.loss_scale);
  EXPECT_EQ(scales, (std::vector<double>{64, 64, 128, 128, 128, 128}));
  EXPECT_EQ(run.last, (LossScaling{128.0, 4}));
}

TEST(LossScaling, AFixedOneDoesNotFall) {
  const ScaledRun run(Scaled(), 36, {}, 0x1p40);
  ASSERT_EQ(run.steps.size(), 4u);
  for (const StepMetrics& m : run.steps) {
    EXPECT_TRUE(m.skipped);
    EXPECT_FALSE(m.scaled_down);
    EXPECT_EQ(m.loss_scale, 0x1p40);
  }
}

// A loss that is not finite is no matter of S.
TEST(LossScaling, StaysWhereTheLossIsNotFinite) {
  const Scaled setup;
  comm::run_local(setup.plan.devices(), [&](comm::Communicator& world) {
    Engine engine(setup.plan, setup.model, test::contract_settings(6), world);
    engine.resume({.scaling = {64.0, 5}});
    poison(engine, INFINITY);
    const StepMetrics metrics = engine.step(setup.data);
    EXPECT_TRUE(metrics.skipped);
    EXPECT_FALSE(metrics.scaled_down);
    EXPECT_EQ(engine.progress().scaling, (LossScaling{64.0, 5}));
  });
}

TEST(NonFinite, NamesWeightsAndGradients) {
  const Scaled setup;
  comm::run_local(setup.plan.devices(), [&](comm::Communicator& world) {
    engine::Settings settings = test::contract_settings(6);
    settings.loss_scale = 0x1p8;
    Engine engine(setup.plan, setup.model, settings, world);
    engine.step(setup.data);
    EXPECT_TRUE(engine.nonfinite().weights.empty());
    EXPECT_TRUE(engine.nonfinite().gradients.empty());
    poison(engine, INFINITY);
    engine.step(setup.data);
    EXPECT_FALSE(engine.nonfinite().weights.empty());
    EXPECT_FALSE(engine.nonfinite().gradients.empty());
  });
  comm::run_local(setup.plan.devices(), [&](comm::Communicator& world) {
    engine::Settings settings = test::contract_settings(6);
    settings.loss_scale = 0x1p40;
    Engine engine(setup.plan, setup.model, settings, world);
    engine.step(setup.data);
    EXPECT_TRUE(engine.nonfinite().weights.empty());
    EXPECT_FALSE(engine.nonfinite().gradients.empty());
  });
}

struct Continued {
  std::vector<double> losses, norms;
  std::vector<Values> states;  ///< [rank]
};

/// Trains 6 steps; the third one goes through infinite weights, or is left out.
Continued train_past(bool poisoned, const plan::Plan& plan, const model::Config& model,
                     const data::Sampler& data) {
  Continued result;
  result.states.resize(std::size_t(plan.devices()));
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, test::contract_settings(6), world);
    const auto step = [&] {
      const StepMetrics metrics = engine.step(data);
      EXPECT_FALSE(metrics.skipped);
      if (world.rank() != 0) return;
      result.losses.push_back(metrics.loss);
      result.norms.push_back(metrics.grad_norm);
    };
    step();
    step();
    engine.flush();
    if (poisoned) {
      const std::vector<float> before = poison(engine, INFINITY);
      EXPECT_TRUE(engine.step(data).skipped) << "rank " << world.rank();
      heal(engine, before);
    } else {
      engine.resume({.steps = 3, .samples = std::int64_t{3} * plan.global_batch, .updates = 2});
    }
    for (int i = 3; i < 6; ++i) step();
    result.states[std::size_t(world.rank())] = state(engine);
  });
  return result;
}

class Skip : public ::testing::TestWithParam<int> {};

TEST_P(Skip, AStepThatIsNotFiniteLeavesNoTrace) {
  std::mt19937 random(unsigned(GetParam()) * 7919 + 13);
  const model::Config model = test::random_model(random);
  const plan::Plan plan = test::plan_number(GetParam(), random, model);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const Continued skipped = train_past(true, plan, model, data);
  const Continued never = train_past(false, plan, model, data);
  EXPECT_EQ(skipped.losses, never.losses) << plan::text(plan);
  EXPECT_EQ(skipped.norms, never.norms);
  EXPECT_EQ(skipped.states, never.states) << plan::text(plan);
}

INSTANTIATE_TEST_SUITE_P(Engine, Skip, ::testing::Range(0, test::num_plans, 4));

// A mean over no token is no loss: such a batch changes no weight.
TEST(Engine, ABatchWithNothingToLearnHasNoLoss) {
  std::mt19937 random(9);
  const model::Config model = test::random_model(random);
  const plan::Plan plan = test::random_plan(random, model, 4);
  const std::int64_t batch = std::int64_t{plan.global_batch} * (model.seq_len + 1);
  const std::vector<std::int32_t> tokens(std::size_t(3 * batch), 1);
  const data::Sampler data =
      data::sampler_of(tokens, model.vocab_size, {{3 * batch}, {batch}}, model.seq_len);
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, test::contract_settings(3), world);
    const Values before = state(engine);
    EXPECT_TRUE(std::isnan(engine.evaluate(data, 0, plan.global_batch)));
    const StepMetrics nothing = engine.step(data);
    EXPECT_TRUE(nothing.nothing_learned && nothing.skipped && !nothing.scaled_down);
    EXPECT_TRUE(std::isnan(nothing.loss) && std::isnan(nothing.grad_norm));
    EXPECT_EQ(state(engine), before);
    const StepMetrics learned = engine.step(data);
    EXPECT_FALSE(learned.nothing_learned || learned.skipped);
    EXPECT_GT(learned.loss, 0.0);
    EXPECT_EQ(engine.progress().updates, 1);
  });
}

class Updates : public ::testing::TestWithParam<int> {};

// AdamW's t counts the updates of a parameter: neither steps that were skipped, nor those before it
// was trained. With moments of zero an update moves weights by at most lr (1 - b1) / (1 - b1^t)
// sqrt((1 - b2^t) / (1 - b2)), and those whose gradient is far above eps by as much.
TEST_P(Updates, AreCountedForEachParameter) {
  constexpr std::int64_t updates = 6;  // before
  std::mt19937 random(unsigned(GetParam()) * 31 + 7);
  const model::Config model = test::random_model(random);
  const plan::Plan plan = test::plan_number(GetParam(), random, model);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  Settings settings = test::contract_settings(40);
  settings.optimizer = {.lr = 1e-2, .schedule = LrSchedule::constant, .beta2 = 0.999, .eps = 1e-12};
  settings.optimizer.weight_decay = settings.optimizer.clip_norm = 0.0;
  const Optimizer& o = settings.optimizer;
  const auto moved_by = [&](double t) {
    return o.lr * (1.0 - o.beta1) / (1.0 - std::pow(o.beta1, t)) *
           std::sqrt((1.0 - std::pow(o.beta2, t)) / (1.0 - o.beta2));
  };
  const std::string late = "layers.0.mlp.out.weight", usual = "layers.0.mlp.in.weight";
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, settings, world);
    engine.resume({.steps = 9, .updates = updates, .missed = {{late, updates}}});
    const auto weights = [&] {
      std::vector<std::vector<float>> all;
      for (const Slab& slab : engine.slabs())
        if (slab.kind == "weight" && (slab.name == late || slab.name == usual))
          all.push_back(values(slab));
      return all;
    };
    const auto before = weights();
    engine.step(data);
    engine.flush();
    const auto after = weights();
    std::size_t i = 0;
    for (const Slab& slab : engine.slabs()) {
      if (slab.kind != "weight" || (slab.name != late && slab.name != usual)) continue;
      double most = 0.0;
      for (std::size_t at = 0; at < before[i].size(); ++at)
        most = std::max(most, std::abs(double(after[i][at]) - double(before[i][at])));
      const double expected = moved_by(slab.name == late ? 1.0 : double(updates + 1));
      EXPECT_NEAR(most, expected, 1e-3 * expected) << slab.name << "\n" << plan::text(plan);
      ++i;
    }
    EXPECT_EQ(engine.progress(), (Progress{.steps = 10,
                                           .samples = plan.global_batch,
                                           .updates = updates + 1,
                                           .missed = {{late, updates}}}));
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, Updates, ::testing::Range(0, test::num_plans, 5));

// The first update throws the weights far away; from then on all ranks skip, and nothing moves.
TEST(Engine, AnExplodedTrainingStandsStill) {
  std::mt19937 random(4);
  const model::Config model = test::random_model(random);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  Settings settings = test::contract_settings(4);
  settings.optimizer.lr = 1e30;
  const plan::Plan plan = test::random_plan(random, model, 4);
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, settings, world);
    EXPECT_FALSE(engine.step(data).skipped);
    const Values exploded = state(engine);
    for (int i = 1; i < 4; ++i) {
      EXPECT_TRUE(engine.step(data).skipped) << "step " << i << ", rank " << world.rank();
      EXPECT_EQ(state(engine), exploded);
    }
    EXPECT_EQ(engine.steps_done(), 4);
  });
}

// Each rank alone would find enough: they ask at the same moment.
TEST(Engine, MemoryIsSummedOverTheRanksOfANode) {
  const std::vector<std::string> needs{need("a", 5LL << 40), need("b", 7), need("a", 3LL << 40)};
  EXPECT_EQ(bytes_of_node("a", needs), 8LL << 40);
  EXPECT_EQ(bytes_of_node("b", needs), 7);
  EXPECT_EQ(bytes_of_node("c", needs), 0);
}

// Before there is an engine, a job reckons with what its ranks will write to checkpoints.
TEST(Engine, ProgramsTellWhatCheckpointsTake) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 8; ++trial) {
    model::Config model = test::random_model(random);
    model.precision = trial % 2 ? model::Precision::bf16 : model::Precision::fp32;
    const plan::Plan plan = test::random_plan(random, model, 4);
    const auto owned = [](const std::vector<Slab>& slabs) {
      std::vector<std::pair<std::string, std::int64_t>> sizes;
      for (const Slab& slab : slabs)
        if (slab.owned) sizes.emplace_back(slab.name + " " + slab.kind, slab.elements);
      return sizes;
    };
    comm::run_local(plan.devices(), [&](comm::Communicator& world) {
      Engine engine(plan, model, test::contract_settings(1), world);
      EXPECT_EQ(owned(slabs_of(engine.program(), plan, model)), owned(engine.slabs())) << trial;
    });
  }
}

// Two stages of eight ranks: 2 x 2 and 4 x 1, of which the second keeps two replicas of its state.
TEST(Executor, KnowsWithWhomATaskCommunicates) {
  const model::Config model{.num_layers = 2, .hidden_size = 8, .num_heads = 2, .vocab_size = 16};
  plan::Plan plan = plan::equal_stages(model, 4, 2, {.microbatch = 1, .dp = 4, .tp = 1});
  plan.stages[0].microbatch = 2;
  plan.stages[0].dp = plan.stages[0].tp = 2;
  plan.stages[1].zero_level = 1;
  plan.stages[1].replicas = 2;
  schedule::Task task{.channel = schedule::Channel::collective_dp,
                      .operation = schedule::Operation::all_reduce};
  const auto of = [&](int rank, model::AxisSet group, int peer = -1) {
    task.group = group;
    task.peer = peer;
    return partners(plan, rank, task);
  };
  using enum model::Axis;
  using Ranks = std::vector<int>;
  EXPECT_EQ(of(1, tp), Ranks({0}));
  EXPECT_EQ(of(1, model::data_axes), Ranks({3}));
  EXPECT_EQ(of(5, tp), Ranks());
  EXPECT_EQ(of(5, model::data_axes), Ranks({4, 6, 7}));
  EXPECT_EQ(of(5, shard), Ranks({4}));
  EXPECT_EQ(of(5, replica), Ranks({7}));
  EXPECT_EQ(of(2, model::all_axes), Ranks({0, 1, 3, 4, 5, 6, 7}));
  EXPECT_EQ(of(2, {}, 5), Ranks({5}));
  EXPECT_EQ(of(2, {}), Ranks());
}

// What they are does not depend on how many cores make them, or on who holds which part of them.
TEST(Engine, InitialValuesAreThoseOfTheirPlacesInTheModel) {
  const model::Config model{.num_layers = 2,
                            .hidden_size = 96,
                            .num_heads = 4,
                            .ffn_size = 288,
                            .seq_len = 16,
                            .vocab_size = 1001,
                            .precision = model::Precision::bf16};
  plan::Plan plan = plan::equal_stages(model, 4, 1, {.microbatch = 1, .dp = 2, .tp = 2});
  plan.stages[0].zero_level = 1;
  std::map<std::string, model::Parameter> parameters;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters)
      parameters[parameter.name] = parameter;
  comm::run_local(4, [&](comm::Communicator& world) {
    Settings settings;
    settings.seed = 5;
    settings.threads = 3;
    Engine engine(plan, model, settings, world);
    for (const Slab& slab : engine.slabs()) {
      if (slab.kind != "weight") continue;
      const std::vector<float> held = values(slab);
      for (std::int64_t i = 0; i < slab.elements; ++i) {
        std::int64_t at = slab.first + i, element = 0, stride = 1;
        for (std::size_t d = slab.shape.size(); d-- > 0; at /= slab.shape[d]) {
          element += (slab.offset[d] + at % slab.shape[d]) * stride;
          stride *= slab.global_shape[d];
        }
        const float first = model::initial_value(parameters.at(slab.name), element, 5);
        ASSERT_EQ(held[std::size_t(i)], slab.rounded ? float(bfloat16(first)) : first)
            << slab.name << " " << i;
      }
    }
  });
}

TEST(Engine, RefusesAWorldOfTheWrongSize) {
  std::mt19937 random(4);
  const model::Config model = test::random_model(random);
  comm::run_local(2, [&](comm::Communicator& world) {
    EXPECT_THROW(Engine(test::one_rank_plan(model, 2), model, {}, world), Error);
  });
}

}  // namespace
}  // namespace brume::engine
