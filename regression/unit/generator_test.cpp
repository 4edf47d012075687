/// @file Passes over pieces of sequences compute what training's forward computes.
#include "engine/generator.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "../../src/engine/state.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "contract.hpp"
#include "engine/key_moves.hpp"
#include "plan/shapes.hpp"

namespace brume::engine {
namespace {

constexpr int num_sequences = 3, block_tokens = 4;

/// Tokens and targets of some sequences.
struct Text {
  std::vector<std::vector<std::int32_t>> tokens, targets;
};

Text text_of(const data::Sampler& data, int seq_len) {
  Text text;
  for (int s = 0; s < num_sequences; ++s) {
    std::vector<std::int32_t> tokens(std::size_t(seq_len), 0), targets = tokens;
    data.sample(s, tokens, targets);
    text.tokens.push_back(tokens), text.targets.push_back(targets);
  }
  return text;
}

using Logits = std::map<std::pair<int, int>, std::vector<float>>;  ///< by sequence and place

/// Pieces of up to `longest` tokens of each sequence, pass by pass, up to some place.
class Pieces {
 public:
  /// @param shares  sequence 1 has the first block of sequence 0
  Pieces(const model::Config& model, const Text& text, int longest, unsigned seed, bool shares)
      : model_(model), text_(text), longest_(longest), shares_(shares), random_(seed) {
    const auto blocks = std::size_t(ceil_div(model.seq_len, block_tokens));
    tables_.resize(blocks * (num_sequences + 1));
    std::iota(tables_.begin(), tables_.end(), 0);
    std::ranges::shuffle(tables_, random_);
    shift_ = int(random_() % 2);
    if (!shares) return;
    tables_[std::size_t(1 + shift_) * blocks] = tables_[std::size_t(shift_) * blocks];
    done_[1] = block_tokens;
  }

  void run(Generator& generator, int end, Logits& found) {
    while (std::ranges::any_of(done_, [&](int d) { return d < end; })) {
      GeneratorPass pass{.tables = tables_};
      std::vector<GeneratorPass::Token> others;
      std::vector<std::pair<int, int>> ends;
      for (int s = 0; s < num_sequences; ++s) {
        const int left = 8 - int(pass.tokens.size() + others.size());
        const int count = std::min({left, end - done_[s], int(random_() % unsigned(longest_)) + 1});
        if (count <= 0 || random_() % 4 == 0) continue;
        // Keys may come in the same pass in which others read them.
        if (shares_ && s == 1 && done_[0] < block_tokens) continue;
        for (int i = 0; i < count; ++i) {
          const int place = done_[s] + i;
          (i + 1 == count ? pass.tokens : others)
              .push_back({text_.tokens[s][std::size_t(place)], s + shift_, place});
        }
        done_[s] += count;
        ends.emplace_back(s, done_[s] - 1);
      }
      pass.wanted = int(ends.size());
      pass.tokens.insert(pass.tokens.end(), others.begin(), others.end());
      const std::span<const float> logits = generator.run(pass);
      const bool samples = generator.copy().rank() == generator.sampler();
      const auto vocab = std::size_t(model_.vocab_size);
      EXPECT_EQ(logits.size(), samples ? ends.size() * vocab : 0);
      if (!samples || generator.copy_index() != 0) continue;
      for (std::size_t i = 0; i < ends.size(); ++i) {
        const auto own = logits.subspan(i * vocab, vocab);
        found[ends[i]].assign(own.begin(), own.end());
      }
    }
  }

  /// Gives sequences other blocks, in another cache. @return the block there of each block
  std::vector<std::int32_t> move() {
    std::vector<std::int32_t> moved(tables_.size());
    std::iota(moved.begin(), moved.end(), 0);
    std::ranges::shuffle(moved, random_);
    for (std::int32_t& block : tables_) block = moved[std::size_t(block)];
    return moved;
  }

 private:
  const model::Config& model_;
  const Text& text_;
  int longest_;
  bool shares_;
  std::mt19937 random_;
  std::vector<std::int32_t> tables_;
  int shift_;  ///< the place of sequence 0 among the generator's
  std::array<int, num_sequences> done_{};
};

/// Logits at the ends of pieces, as copy 0 makes them.
/// @param first  a plan that computes the first half of each sequence; its keys go to the other one
Logits logits_of(const plan::Plan& given, const model::Config& model, const Text& text, int longest,
                 unsigned seed, bool shares = false, const plan::Plan* first = nullptr) {
  const plan::Plan plan = generating(given);
  const int blocks = int(ceil_div(model.seq_len, block_tokens));
  const model::Config sizes = model::generating(model, {.tokens = 8,
                                                        .sequences = num_sequences + 1,
                                                        .blocks = blocks * (num_sequences + 1),
                                                        .block_tokens = block_tokens});
  Logits found;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Settings settings;
    settings.check_memory = true;
    const auto by_copy = [&](const plan::Plan& one) {
      return world.split(0, ranks_by_copy(one)[std::size_t(world.rank())]);
    };
    const auto make = [&](const plan::Plan& one, comm::Communicator& ranks) {
      auto made = std::make_unique<Generator>(one, sizes, settings, ranks);
      std::vector<Slab> slabs = made->slabs();
      initialise(slabs, model, 1, 1);
      return made;
    };
    Pieces pieces(model, text, longest, seed, shares);
    if (!first) return pieces.run(*make(plan, world), model.seq_len, found);
    const plan::Plan of_first = generating(*first);
    const auto ranks = by_copy(plan), first_ranks = by_copy(of_first);
    const auto generator = make(plan, *ranks), before = make(of_first, *first_ranks);
    pieces.run(*before, model.seq_len / 2, found);
    before->give_keys(*generator, pieces.move());
    pieces.run(*generator, model.seq_len, found);
  });
  return found;
}

/// Mean loss of all targets.
double loss_of(const Logits& logits, const Text& text) {
  double loss = 0.0;
  for (const auto& [at, row] : logits) {
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(double(logit));
    loss += std::log(sum) - row[std::size_t(text.targets[at.first][std::size_t(at.second)])];
  }
  return loss / double(logits.size());
}

/// The largest difference of logits of the same place, relative to the largest logit.
double difference(const Logits& some, const Logits& all) {
  double most = 0.0, largest = 1e-30;
  for (const auto& [at, row] : some)
    for (std::size_t i = 0; i < row.size(); ++i) {
      most = std::max(most, std::abs(double(row[i]) - all.at(at)[i]));
      largest = std::max(largest, std::abs(double(row[i])));
    }
  return most / largest;
}

/// A model, and a plan that its sizes allow.
struct Case {
  model::Config model;
  plan::Plan plan;
};

/// The special models with latent attention.
std::vector<model::Config> latent_models() {
  std::vector<model::Config> models = test::special_models();
  std::erase_if(models, [](const model::Config& one) { return !one.latent(); });
  return models;
}

constexpr int first_latent = 1000;  // trial of a model that keeps latent features, or cannot

Case random_case(std::mt19937& random, int trial) {
  const bool latent = trial >= first_latent;
  const std::vector<model::Config> special = latent ? latent_models() : test::special_models();
  const int kind = latent ? 3 : trial % 4;
  Case made{.model = kind == 0   ? test::random_model(random)
                     : kind == 1 ? test::random_family_model(random)
                     : kind == 2
                         ? test::random_experts_model(random)
                         : special[std::size_t(latent ? trial : trial / 4) % special.size()],
            .plan = {}};
  model::Config& model = made.model;
  model.head_tokens = 5;
  if (latent ? trial / 2 % 2 == 1 : trial % 10 == 1) test::adapt(trial, model);
  if (trial % 10 == 6) test::quantize(trial / 10, model);
  if (trial % 5 == 2) model.precision = model::Precision::bf16;
  std::vector<int> stages{1};
  if (model.num_layers % 2 == 0) stages.push_back(2);
  const int tp = test::pick(random, {1, 2}), dp = test::pick(random, {1, 1, 2});
  const bool whole_experts = model.num_experts > 0 && model.num_experts % tp == 0;
  made.plan = plan::equal_stages(
      model, dp, test::pick(random, stages),
      {.devices_per_node = dp * tp, .dp = dp, .tp = tp, .ep = whole_experts ? tp : 1});
  return made;
}

class GeneratorContract : public ::testing::TestWithParam<int> {};

TEST_P(GeneratorContract, PassesEqualTheForwardOfTraining) {
  std::mt19937 random(unsigned(GetParam()) + 77u);
  const auto [model, plan] = random_case(random, GetParam());
  SCOPED_TRACE(model::text(model) + "\n" + plan::text(plan));
  const test::TokenFixture tokens(model.vocab_size, false);
  const data::Sampler data = tokens.sampler(model.seq_len);
  const Text text = text_of(data, model.seq_len);
  const plan::Plan one = test::one_rank_plan(model, 1);
  double expected = 0.0;
  comm::run_local(1, [&](comm::Communicator& world) {
    Engine engine(one, model, Settings(), world);
    expected = engine.evaluate(data, 0, num_sequences);
  });
  const Logits all = logits_of(one, model, text, 1, 3);
  ASSERT_EQ(std::ssize(all), num_sequences * model.seq_len);
  const bool narrow = model.precision != model::Precision::fp32;
  // In 16 bits a rounding may choose another expert for a token.
  const bool chooses = narrow && model.experts_per_token < model.num_experts;
  const double of_loss = narrow ? 3e-3 : 1e-5, of_logits = chooses ? 6e-2 : narrow ? 3e-2 : 2e-5;
  EXPECT_NEAR(loss_of(all, text), expected, of_loss * expected);
  EXPECT_LT(difference(logits_of(one, model, text, 7, 4), all), of_logits);
  EXPECT_LT(difference(logits_of(plan, model, text, 1, 5), all), of_logits);
  EXPECT_LT(difference(logits_of(plan, model, text, 7, 6), all), of_logits);
  // Two plans work, one after the other.
  const plan::Stage& like = plan.stages.front();
  if (plan.devices() > like.dp && model.num_layers % like.tp == 0 &&
      plan::tensor_fault(model, plan.num_stages()).empty()) {
    const plan::Plan other = plan::equal_stages(model, like.dp, like.tp,
                                                {.devices_per_node = like.dp * plan.num_stages(),
                                                 .dp = like.dp,
                                                 .tp = plan.num_stages(),
                                                 .ep = like.ep > 1 ? plan.num_stages() : 1});
    EXPECT_LT(difference(logits_of(plan, model, text, 7, 9, false, &other), all), of_logits);
  }
  // Two sequences that begin alike may have a block of keys together.
  Text alike = text;
  std::copy_n(alike.tokens[0].begin(), std::min(block_tokens, model.seq_len),
              alike.tokens[1].begin());
  EXPECT_LT(
      difference(logits_of(plan, model, alike, 7, 8, true), logits_of(one, model, alike, 1, 3)),
      of_logits);
}

INSTANTIATE_TEST_SUITE_P(Random, GeneratorContract, ::testing::Range(0, test::trials(24)));
INSTANTIATE_TEST_SUITE_P(Latent, GeneratorContract,
                         ::testing::Range(first_latent, first_latent + 12));

TEST(Generator, KeepsLatentFeaturesUnlessTheirMatrixHasParts) {
  for (const model::Config& model : latent_models()) {
    const model::Generation sizes{.tokens = 4, .sequences = 1, .blocks = 3, .block_tokens = 64};
    model::Config adapted = model, quantized = model;
    adapted.adapter.targets.push_back({model::Module::kv_up, 2, 2.0});
    quantized.quantization = Quantization::int8;
    const auto bytes = [&](const model::Config& one) {
      return model::cache_bytes(model::generating(one, sizes)).evaluate({{"tp", 2.0}});
    };
    EXPECT_EQ(bytes(model), 3 * 64 * 2 * (model.rotary_dim() + model.kv_lora_rank) * 4);
    const double whole = 3 * 64 * 2 * model.attention_size() / 2 * 4;
    EXPECT_EQ(bytes(adapted), whole);
    EXPECT_EQ(bytes(quantized), whole);
    EXPECT_FALSE(model.keeps_latents());
  }
}

// The weights of generation alone are on a rank.
TEST(Generator, HoldsWeightsAndKeysOnly) {
  model::Config model = test::special_models().front();
  const plan::Plan plan = generating(test::one_rank_plan(model, 1));
  const auto bytes = [&](int blocks) {
    const model::Config sizes = model::generating(
        model, {.tokens = 4, .sequences = 1, .blocks = blocks, .block_tokens = 64});
    return generator_bytes(plan, sizes, 0)[std::size_t(schedule::Tier::device)];
  };
  const std::int64_t block = 64 * 2 * model.num_layers * model.kv_heads() * model.head_dim() * 4;
  EXPECT_EQ(bytes(11) - bytes(1), 10 * block);
  EXPECT_GT(bytes(1), 4 * model::num_parameters(model) + block);
  EXPECT_LT(bytes(1), 6 * model::num_parameters(model) + block);
}

TEST(Generator, RefusesPlansThatItCannotRun) {
  model::Config model = test::special_models().front();
  plan::Plan plan = plan::equal_stages(model, 2, 2, {.dp = 1});
  plan.stages[1].dp = 2;
  EXPECT_THROW(generating(plan), Error);
  plan.stages[1].dp = 1;
  plan.order.chunks = 2;
  EXPECT_THROW(generating(plan), Error);
}

}  // namespace
}  // namespace brume::engine
