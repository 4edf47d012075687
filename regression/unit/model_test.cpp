#include "model/model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.hpp"
#include "random_plan.hpp"
#include "refusal.hpp"

namespace brume::model {
namespace {

Config small(bool tied_head = true) {
  return {.num_layers = 3,
          .hidden_size = 24,
          .num_heads = 4,
          .ffn_size = 80,
          .seq_len = 10,
          .vocab_size = 37,
          .tied_head = tied_head};
}

// GPT-2: V C + T C, a layer 4 C^2 + 2 C F + 9 C + F, a final norm 2 C; 124 M for the small one.
TEST(Model, CountsTheParametersOfGpt2) {
  const Config gpt2{.num_layers = 12,
                    .hidden_size = 768,
                    .num_heads = 12,
                    .ffn_size = 3072,
                    .seq_len = 1024,
                    .vocab_size = 50257};
  EXPECT_EQ(num_parameters(gpt2), 124'439'808);
}

/// A model of three layers with groups of parameters; those of `trained` come first.
Config with_groups(const std::vector<std::string>& frozen,
                   const std::vector<std::string>& trained = {}) {
  deck::ModelKeys keys;
  keys.num_layers = 3;
  keys.hidden_size = 24;
  keys.num_heads = 4;
  keys.seq_len = 10;
  keys.vocab_size = 37;
  for (const std::string& pattern : trained) keys.groups.push_back({.pattern = pattern});
  for (const std::string& pattern : frozen)
    keys.groups.push_back({.pattern = pattern, .frozen = true});
  return config(keys, "fp32");
}

std::string refused(const std::vector<std::string>& frozen) {
  try {
    with_groups(frozen);
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(Model, TheFirstBlocksMayBeFrozen) {
  EXPECT_EQ(with_groups({}).frozen_blocks, 0);
  EXPECT_EQ(with_groups({}, {"*"}).frozen_blocks, 0);
  EXPECT_EQ(with_groups({"embedding.*"}).frozen_blocks, 1);
  EXPECT_EQ(with_groups({"embedding.*", "layers.[01].*"}).frozen_blocks, 3);
  EXPECT_EQ(with_groups({"embedding.*", "layers.*"}).frozen_blocks, 4);
  EXPECT_EQ(with_groups({"*"}, {"head.*"}).frozen_blocks, 4) << "the first group that fits counts";
  EXPECT_EQ(with_groups({"*"}, {"layers.2.*", "head.*"}).frozen_blocks, 3);
  EXPECT_TRUE(with_groups({"embedding.*", "layers.[01].*"}).frozen_parameters.empty());

  EXPECT_NE(refused({"*"}).find("there is nothing to train"), std::string::npos);
}

TEST(Model, ParametersWithinBlocksMayBeFrozen) {
  const Config norms = with_groups({"*.norm1.*", "embedding.*"});
  EXPECT_EQ(norms.frozen_blocks, 1);
  EXPECT_EQ(norms.frozen_parameters,
            (std::vector<std::string>{"layers.0.norm1.bias", "layers.0.norm1.gain",
                                      "layers.1.norm1.bias", "layers.1.norm1.gain",
                                      "layers.2.norm1.bias", "layers.2.norm1.gain"}));
  for (const Block& block : blocks(norms))
    for (const Parameter& parameter : block.parameters)
      EXPECT_EQ(parameter.frozen, block.kind == BlockKind::embedding ||
                                      parameter.name.find("norm1") != std::string::npos)
          << parameter.name;
  // A gradient goes through a whole block behind one that is trained.
  const Config later = with_groups({"embedding.*", "layers.1.*"});
  EXPECT_EQ(later.frozen_blocks, 1);
  EXPECT_EQ(later.frozen_parameters.size(), blocks(later)[2].parameters.size());
}

TEST(Model, SaysWhatIsFrozen) {
  EXPECT_EQ(frozen_text(with_groups({})), "");
  EXPECT_EQ(
      frozen_text(with_groups({"embedding.*"})),
      "1.13 k of 22.85 k parameters: embedding without gradients, optimizer state and backward");
  EXPECT_EQ(
      frozen_text(with_groups({"embedding.*", "layers.0.*", "head.*"})),
      "8.40 k of 22.85 k parameters: embedding to layers.0 without gradients, optimizer state "
      "and backward; 48 without gradients and optimizer state");
  EXPECT_EQ(frozen_text(with_groups({"*.norm1.*"})),
            "144 of 22.85 k parameters: 144 without gradients and optimizer state");
}

/// A llama of two key heads, and H D = 24, K D = 12 and F = 96.
Config adapted(const deck::AdapterKeys& adapter) {
  deck::ModelKeys keys;
  keys.family = "llama";
  keys.num_layers = 3;
  keys.hidden_size = 24;
  keys.num_heads = 4;
  keys.num_kv_heads = 2;
  keys.seq_len = 10;
  keys.vocab_size = 37;
  keys.qkv_bias = keys.linear_bias = keys.tied_head = false;
  keys.adapter = adapter;
  return config(keys, "fp32");
}

std::int64_t num_trained(const Config& model) {
  std::int64_t sum = 0;
  for (const Block& block : blocks(model))
    for (const Parameter& one : block.parameters)
      if (!one.frozen) sum += one.elements();
  return sum;
}

TEST(Model, TermsMayHaveRanksOfTheirOwn) {
  const Config all = adapted({.rank = 4});
  const Config more = adapted({.rank = 4, .groups = {{"attention.[qk]", 7}, {"attention.out", 1}}});
  // A layer has 3 more rows and columns of q and k, and 3 fewer of out.
  const std::int64_t added = 3 * (24 + 24) + 3 * (24 + 12) - 3 * (24 + 24);
  EXPECT_EQ(num_trained(more) - num_trained(all), 3 * added);
  // 2 FLOPs an element and token, in the forward and in both gradients.
  EXPECT_NEAR(flops_per_sequence(more) - flops_per_sequence(all), 3 * 3 * 2 * 10 * added, 1e-6);
  EXPECT_EQ(frozen_text(more).substr(frozen_text(more).find("trained: ")),
            "trained: an adapter of rank 7 for attention.q, attention.k and of rank 4 for "
            "attention.v, mlp.gate, mlp.up, mlp.out and of rank 1 for attention.out");
  EXPECT_NE(text(more), text(all));
}

TEST(Model, ModulesAreTrainedBesidesAnAdapter) {
  const Config terms = adapted({.rank = 4});
  const auto added = [&](const std::vector<std::string>& modules) {
    return num_trained(adapted({.rank = 4, .modules_to_save = modules})) - num_trained(terms);
  };
  EXPECT_EQ(added({"embedding.token"}), 37 * 24);
  EXPECT_EQ(added({"head"}), 37 * 24);
  EXPECT_EQ(added({"head*"}), 37 * 24 + 24);
  EXPECT_EQ(added({"norm*"}), 3 * 2 * 24);
  EXPECT_EQ(added({"*"}), 2 * 37 * 24 + 7 * 24);
  // Below the first term there is no backward, unless the table is trained.
  EXPECT_EQ(terms.frozen_blocks, 1);
  const Config table = adapted({.rank = 4, .modules_to_save = {"embedding.token"}});
  EXPECT_EQ(table.frozen_blocks, 0);
  EXPECT_TRUE(frozen_text(table).ends_with(", and all of embedding.token"));
  EXPECT_EQ(text(table), text(terms)) << "checkpoints of both fit";
}

TEST(Model, TermsMayBeInSomeLayers) {
  const Config all = adapted({.rank = 4}), one = adapted({.rank = 4, .layers = {1}});
  EXPECT_EQ(num_trained(one), num_trained(all) / 3);
  EXPECT_EQ(one.frozen_blocks, 2) << "embedding and layer 0";
  EXPECT_FALSE(trains_layers_alike(one));
  EXPECT_TRUE(frozen_text(one).ends_with("mlp.out in layers 1"));
  EXPECT_NE(text(one), text(all)) << "terms of other layers must stay zero";
}

// Of a frozen layer the forward counts only: a third of a trained one's.
TEST(Model, FrozenBlocksHaveNoBackward) {
  Config model = small();
  const double all = flops_per_sequence(model);
  model.frozen_blocks = 1;  // the embedding has no products, but the head is tied to its table
  const double head = all - flops_per_sequence(model);
  EXPECT_NEAR(head, 2.0 * model.seq_len * model.hidden_size * model.vocab_size, 1e-6 * all);
  model.frozen_blocks = 2;
  const double less = all - head - flops_per_sequence(model);
  model.frozen_blocks = 4;
  EXPECT_NEAR(all - head - flops_per_sequence(model), 3.0 * less, 1e-6 * all);
  Config longer = small();
  longer.num_layers = 4;
  EXPECT_NEAR(less, 2.0 / 3.0 * (flops_per_sequence(longer) - all), 1e-6 * all);
}

/// A llama whose two key heads tp = 4 does not divide, and falcons with one norm and with two.
std::vector<Config> other_families() {
  Config llama = small(false);
  llama.family = &family("llama");
  llama.num_kv_heads = 2;
  llama.linear_bias = false;
  Config falcon = small();
  falcon.family = &family("falcon");
  falcon.num_kv_heads = falcon.layer_norms = 1;
  Config grouped = falcon;
  grouped.num_kv_heads = grouped.layer_norms = 2;
  return {llama, falcon, grouped};
}

std::vector<Config> all_families() {
  std::vector<Config> all = other_families();
  all.push_back(small());
  return all;
}

// The published sizes of Llama 2 7B, Llama 3 8B, Falcon 7B and Falcon 40B.
TEST(Model, CountsTheParametersOfOtherFamilies) {
  Config llama{.family = &family("llama"),
               .num_layers = 32,
               .hidden_size = 4096,
               .num_heads = 32,
               .ffn_size = 11008,
               .seq_len = 4096,
               .vocab_size = 32000,
               .tied_head = false,
               .qkv_bias = false,
               .linear_bias = false};
  EXPECT_EQ(num_parameters(llama), 6'738'415'616);
  llama.num_kv_heads = 8;
  llama.ffn_size = 14336;
  llama.vocab_size = 128256;
  EXPECT_EQ(num_parameters(llama), 8'030'261'248);
  Config falcon{.family = &family("falcon"),
                .num_layers = 32,
                .hidden_size = 4544,
                .num_heads = 71,
                .num_kv_heads = 1,
                .ffn_size = 4 * 4544,
                .seq_len = 2048,
                .vocab_size = 65024,
                .qkv_bias = false,
                .linear_bias = false,
                .layer_norms = 1};
  EXPECT_EQ(num_parameters(falcon), 6'921'720'704);
  falcon.num_layers = 60;
  falcon.hidden_size = 8192;
  falcon.num_heads = 128;
  falcon.num_kv_heads = 8;
  falcon.ffn_size = 4 * 8192;
  falcon.layer_norms = 2;
  EXPECT_EQ(num_parameters(falcon), 41'303'293'952);
}

// Published: 46.7 and 12.9 billion of Mixtral 8x7B, 30.5 and 3.3 of Qwen3-30B-A3B, whose router has
// 128 experts, 14.3 and 2.7 of Qwen1.5-MoE-A2.7B, 6.9 of OLMoE-1B-7B.
TEST(Model, CountsTheParametersOfMixtures) {
  Config mixtral{.family = &family("llama"),
                 .num_layers = 32,
                 .hidden_size = 4096,
                 .num_heads = 32,
                 .num_kv_heads = 8,
                 .num_experts = 8,
                 .experts_per_token = 2,
                 .expert_ffn_size = 14336,
                 .seq_len = 4096,
                 .vocab_size = 32000,
                 .tied_head = false,
                 .qkv_bias = false,
                 .linear_bias = false};
  EXPECT_EQ(num_parameters(mixtral), 46'702'792'704);
  EXPECT_EQ(num_active_parameters(mixtral), 12'879'925'248);
  Config qwen3 = mixtral;
  qwen3.num_layers = 48, qwen3.hidden_size = 2048, qwen3.num_kv_heads = 4, qwen3.head_size = 128;
  qwen3.num_experts = 128, qwen3.experts_per_token = 8, qwen3.expert_ffn_size = 768;
  qwen3.vocab_size = 151936, qwen3.qk_norm = true;
  EXPECT_EQ(num_parameters(qwen3), 30'532'122'624);
  EXPECT_NEAR(double(num_active_parameters(qwen3)), 3.35e9, 0.01e9);
  Config qwen2 = qwen3;
  qwen2.num_layers = 24, qwen2.num_heads = qwen2.num_kv_heads = 16, qwen2.qk_norm = false;
  qwen2.num_experts = 60, qwen2.experts_per_token = 4, qwen2.expert_ffn_size = 1408;
  qwen2.shared_expert_ffn_size = 5632, qwen2.shared_expert_gate = qwen2.qkv_bias = true;
  EXPECT_EQ(num_parameters(qwen2), 14'315'784'192);
  EXPECT_NEAR(double(num_active_parameters(qwen2)), 2.69e9, 0.01e9);
  Config olmoe = qwen3;
  olmoe.num_layers = 16, olmoe.num_heads = olmoe.num_kv_heads = 16;
  olmoe.num_experts = 64, olmoe.experts_per_token = 8, olmoe.expert_ffn_size = 1024;
  olmoe.vocab_size = 50304, olmoe.qk_norm_joint = true;
  EXPECT_EQ(num_parameters(olmoe), 6'919'161'856);
}

TEST(Model, ASegmentListPerFamily) {
  using enum SegmentKind;
  EXPECT_EQ(segment_kinds(small()), (std::vector{embedding, attention, mlp, head}));
  for (const Config& m : other_families())
    EXPECT_EQ(segment_kinds(m, BlockKind::layer),
              m.parallel() ? std::vector{parallel} : (std::vector{attention, mlp}));
}

// Plain angles; all divided; and of llama3's three ranges one of each: 8192 tokens are 1304 turns
// of the first, 4.12 and 0.0013 of others at theta 10000 and D = 64.
TEST(Model, RotaryFrequenciesAreStretched) {
  Config m = other_families().front();
  m.head_size = 64;
  const std::vector<double> plain = rope_frequencies(m);
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_DOUBLE_EQ(plain[0], 1.0);
  EXPECT_NEAR(plain[16], 0.01, 1e-15);
  m.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 4.0};
  EXPECT_NEAR(rope_frequencies(m)[16], 0.0025, 1e-15);
  m.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8.0};
  const std::vector<double> mixed = rope_frequencies(m);
  EXPECT_DOUBLE_EQ(mixed[0], 1.0);
  EXPECT_NEAR(mixed[31], plain[31] / 8.0, 1e-18);
  const double turns = 8192.0 * plain[22] / (2.0 * M_PI), kept = (turns - 1.0) / 3.0;
  ASSERT_TRUE(kept > 0.0 && kept < 1.0) << turns;
  EXPECT_NEAR(mixed[22], plain[22] * (kept + (1.0 - kept) / 8.0), 1e-15);
}

// ROPE_INIT_FUNCTIONS["yarn"] of transformers 5.24.0 gives these numbers for heads of 16 features.
TEST(Model, RotaryFrequenciesOfYarnAreThoseOfTransformers) {
  struct Case {
    double theta;
    RopeScaling scaling;
    std::vector<double> frequencies;
    double magnitude;
  };
  const auto yarn = RopeScaling::Kind::yarn;
  const std::vector<Case> cases{
      {150000.0,
       {.kind = yarn, .factor = 32.0, .original_seq_len = 4096, .truncate = false},
       {1.0, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05,
        4.09997847e-06, 9.24208962e-07},
       1.3465735902799727},
      {10000.0,
       {.kind = yarn, .factor = 4.0, .original_seq_len = 512},
       {1.0, 0.25693506, 0.0625, 0.0138349654, 0.00249999994, 0.000790569466, 0.000250000012,
        7.90569466e-05},
       1.138629436111989},
      {10000.0,
       {.kind = yarn,
        .factor = 40.0,
        .original_seq_len = 4096,
        .mscale = 1.0,
        .mscale_all_dim = 0.707},
       {1.0, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176, 2.49999994e-05,
        7.90569447e-06},
       1.0857263992561355},
      {500.0,
       {.kind = yarn,
        .factor = 8.0,
        .original_seq_len = 16,
        .beta_fast = 4.0,
        .beta_slow = 0.5,
        .attention_factor = 1.25},
       {1.0, 0.325736493, 0.0881142616, 0.0121561559, 0.00559017016, 0.0025707141, 0.00118217699,
        0.000543639821},
       1.25}};
  Config m = other_families().front();
  m.head_size = 16;
  for (const Case& one : cases) {
    m.rope_theta = one.theta;
    m.rope_scaling = one.scaling;
    const std::vector<double> found = rope_frequencies(m);
    ASSERT_EQ(found.size(), one.frequencies.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], one.frequencies[i], 3e-7 * found[i]) << text(m) << " " << i;
    EXPECT_NEAR(rope_magnitude(m), one.magnitude, 1e-15) << text(m);
  }
}

TEST(Model, UntiedHeadHasATableOfItsOwn) {
  EXPECT_EQ(num_parameters(small(false)) - num_parameters(small(true)), 37 * 24);
}

// Matrix products cost 6 FLOPs a weight and token in forward and backward.
TEST(Model, FlopsAreSixPerWeightAndTokenAndMore) {
  const Config m = small();
  const double weights = 3.0 * (4 * 24 * 24 + 2 * 24 * 80) + 37 * 24;
  EXPECT_GT(flops_per_sequence(m), 6.0 * weights * 10);
  EXPECT_LT(flops_per_sequence(m), 9.0 * weights * 10);
}

// A model computes padded tokens, but its parameters, text and FLOPs are of the others.
TEST(Model, PaddingChangesTheTokensThatAreComputedOnly) {
  deck::ModelKeys keys;
  keys.num_layers = 2, keys.hidden_size = 24, keys.num_heads = 4;
  keys.seq_len = 13, keys.vocab_size = 37;
  const Config whole = config(keys, "fp32");
  Config padded = whole;
  padded.padding = 3;
  EXPECT_EQ(whole.padding, 0);
  EXPECT_EQ(padded.padded_len(), 16);
  EXPECT_EQ(padded.seq_len, 13);
  EXPECT_EQ(text(padded), text(whole));
  EXPECT_EQ(num_parameters(padded), num_parameters(whole));
  EXPECT_EQ(flops_per_sequence(padded), flops_per_sequence(whole));
  EXPECT_EQ(stream_elements(padded).evaluate(Split{.cp = 8}.values()), 2 * 24);
  EXPECT_EQ(generating(padded, {.tokens = 4, .sequences = 1, .blocks = 1}).padding, 0);
}

TEST(Model, HeadPiecesCoverAMicrobatchAndNoneIsEmpty) {
  Config m = small();
  for (m.seq_len = 1; m.seq_len <= 40; ++m.seq_len)
    for (m.head_tokens = 1; m.head_tokens <= 50; ++m.head_tokens) {
      const Pieces pieces = model::pieces(m, SegmentKind::head);
      const double each = pieces.tokens.evaluate(Split{.microbatch = 2}.values()),
                   tokens = 2.0 * m.seq_len;
      const double count = pieces.count.evaluate(Split{.microbatch = 2}.values());
      EXPECT_LE(each, m.head_tokens);
      EXPECT_GE(each * count, tokens);
      EXPECT_LT(each * (count - 1.0), tokens);
      EXPECT_TRUE(m.head_tokens < tokens || count == 1.0);
    }
}

TEST(Model, PiecesTileEveryTensorOverTensorParallelRanks) {
  for (const Config& m : all_families())
    for (const Block& block : blocks(m))
      for (std::size_t p = 0; p < block.parameters.size(); ++p) {
        const Parameter& parameter = block.parameters[p];
        for (const int ep : {1, 4}) {
          std::int64_t elements = 0;
          std::set<std::vector<std::int64_t>> offsets;
          for (int rank = 0; rank < 4; ++rank) {
            const Layout parts = layout(block, 4, rank, 1, {ep, rank});
            elements += parts.pieces[p].elements;
            offsets.insert(parts.pieces[p].offset);
          }
          const bool split = parameter.splits(4);
          EXPECT_EQ(elements, parameter.elements() * (split ? 1 : 4)) << parameter.name;
          EXPECT_EQ(offsets.size(), split ? 4u : 1u) << parameter.name;
        }
      }
}

TEST(Model, LayoutIsAlignedDisjointAndHasPartialGradientsFirst) {
  std::vector<Block> all;
  for (const Config& m : all_families())
    for (Block& block : blocks(m)) all.push_back(std::move(block));
  for (const Block& block : all) {
    const Layout flat = layout(block, 2, 1, 3);
    std::int64_t end = 0;
    for (const Piece& piece : flat.pieces) {
      EXPECT_EQ(piece.first % 16, 0);
      EXPECT_GE(piece.first, end);
      end = piece.first + piece.elements;
      const bool partial = block.parameters[std::size_t(piece.parameter)].is_partial(2);
      EXPECT_EQ(partial, piece.first < flat.partial_elements);
    }
    EXPECT_GE(flat.elements, end);
    EXPECT_EQ(flat.elements % (3 * 16), 0);
  }
}

TEST(Model, LayoutExpressionEqualsTheLayout) {
  std::vector<Config> models = all_families();
  for (const char* frozen : {"*.bias", "*weight", "*norm*", "layers.1.*"})
    models.push_back(with_groups({frozen}));
  for (Config m : all_families()) m.optimizer = &muon, models.push_back(m);
  for (int i = 0; i < 4; ++i) {
    Config m = test::special_models()[std::size_t(i)];
    test::quantize(i, m);
    if (i < 2) m.precision = Precision::bf16;
    models.push_back(m);
  }
  for (int i = 0; i < int(test::special_models().size()); ++i) {
    Config m = test::special_models()[std::size_t(i)];
    test::take_rows_of_blocks(i, m);
    if (i % 2 == 1) m.precision = Precision::bf16;
    m.moments = Moments::fp8;
    models.push_back(m);
  }
  for (const Config& m : models)
    for (const Block& block : blocks(m))
      for (int tp : {1, 2, 3, 4})
        for (int ep : std::set{1, tp, 2 * tp})
          for (int shards : {1, 2, 3, 8}) {
            const Split split{.tp = tp, .ep = m.num_experts > 0 ? ep : 1};
            if (!quantization_fault(m, tp, split.ep).empty()) continue;
            auto values = split.values();
            values.emplace("dp", shards * split.expert_data_ranks());
            const Layout flat = layout(block, tp, 0, shards, {split.ep});
            const auto [trained, frozen, dense, elementwise] = layout_elements(m, block);
            EXPECT_EQ(dense.evaluate(values), double(flat.dense_elements)) << block.name;
            EXPECT_EQ(elementwise.evaluate(values), double(flat.full_state_elements));
            EXPECT_EQ(trained.evaluate(values), double(flat.trained_elements)) << block.name;
            EXPECT_EQ(frozen.evaluate(values), double(flat.elements - flat.trained_elements));
            EXPECT_EQ(layout(block, tp, tp - 1, shards, {split.ep, split.ep - 1}).elements,
                      flat.elements)
                << block.name;
            EXPECT_EQ(layout_partial_elements(block).evaluate(values),
                      double(flat.partial_elements))
                << block.name << " at tp " << tp;
          }
}

// A correction takes two elements of 16 bits each, behind all that is trained.
TEST(Model, CorrectionsAreKeptInFp32) {
  const std::vector<Config> special = test::special_models();
  Config m = *std::ranges::find(special, RouterKind::sigmoid, &Config::router);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    m.precision = precision;
    const Block layer = blocks(m)[2];
    const Layout flat = layout(layer, 2, 1, 2);
    const Piece& piece = flat.piece(layer, "mlp.router.correction");
    const Parameter& one = layer.parameters[std::size_t(piece.parameter)];
    EXPECT_TRUE(one.frozen && one.in_fp32 && one.balanced);
    EXPECT_EQ(one.shape, std::vector<std::int64_t>{8});
    EXPECT_EQ(piece.elements * weight_bytes(precision), 32);
    EXPECT_GE(piece.first, flat.trained_elements);
    EXPECT_EQ(one.stored_values(piece.elements), 8);
  }
  EXPECT_TRUE(trains_layers_alike(m));
  EXPECT_EQ(frozen_text(m), "");
  EXPECT_TRUE(frozen_names(m).empty());
  m.balance_rate = 0.0;
  EXPECT_EQ(frozen_names(m).size(), 3u) << "a layer has an MLP";
}

TEST(Model, RefusesRoutersThatDoNotFit) {
  const auto refused = [](const auto& change) {
    deck::ModelKeys keys;
    keys.family = "llama";
    keys.num_layers = 2, keys.hidden_size = 32, keys.num_heads = 2, keys.seq_len = 8;
    keys.vocab_size = 31, keys.num_experts = 8, keys.router = "sigmoid";
    keys.qkv_bias = keys.linear_bias = false;
    change(keys);
    return test::refusal([&] { config(keys, "fp32"); });
  };
  using Keys = deck::ModelKeys;
  EXPECT_EQ(refused([](Keys& keys) { keys.router = "softmax", keys.balance = "bias"; }),
            "model: balance = \"bias\" needs router = \"sigmoid\"");
  EXPECT_EQ(refused([](Keys& keys) { keys.num_experts = 0; }),
            "model: router = \"sigmoid\", routed_scale and expert_groups need num_experts");
  EXPECT_EQ(refused([](Keys& keys) { keys.expert_groups = 8; }),
            "model: expert_groups = 8 must divide num_experts = 8 into groups of at least 2");
  EXPECT_EQ(refused([](Keys& keys) { keys.groups_per_token = 2; }),
            "model: groups_per_token = 2 must be at most expert_groups = 1");
  EXPECT_EQ(refused([](Keys& keys) { keys.expert_groups = 4, keys.experts_per_token = 3; }),
            "model: groups_per_token = 1 must be at most expert_groups = 4, and have at least "
            "experts_per_token = 3 experts, found 2");
}

// Shards and parts on the host are cut between blocks, wherever a block's frozen part begins.
TEST(Model, QuantizedPiecesAreWholeBlocks) {
  for (int i = 0; i < 4; ++i)
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      Config m = test::special_models().front();
      test::quantize(i, m);
      m.precision = precision;
      const Block layer = blocks(m)[1];
      const std::int64_t alignment = frozen_alignment(layer);
      EXPECT_EQ(alignment % alignment_elements, 0);
      std::int64_t values = 0;
      const Layout flat = layout(layer, 2, 1, 3);
      for (const Piece& piece : flat.pieces) {
        const Parameter& one = layer.parameters[std::size_t(piece.parameter)];
        if (one.quantization == Quantization::none) continue;
        EXPECT_TRUE(one.frozen);
        EXPECT_EQ((piece.first - flat.trained_elements) % alignment, 0);
        EXPECT_EQ(piece.elements % one.block_elements, 0);
        EXPECT_EQ(alignment % one.block_elements, 0);
        EXPECT_EQ(one.block_elements * weight_bytes(precision), block_bytes(m.quantization));
        std::int64_t of_piece = 1;
        for (const std::int64_t extent : piece.shape) of_piece *= extent;
        EXPECT_EQ(one.stored_values(piece.elements), of_piece);
        values += of_piece;
      }
      EXPECT_GT(values, 0);
      EXPECT_EQ((flat.elements - flat.trained_elements) % (3 * alignment), 0);
    }
}

// Gradients before dense_elements are summed over ranks that divide experts.
TEST(Model, ExpertsComeBehindAllElse) {
  for (int i = 0; i < 24; ++i) {
    std::mt19937 random(unsigned(i) + 3);
    Config m = test::random_experts_model(random);
    if (i % 3 > 0) test::take_rows_of_blocks(i, m);
    if (i % 2 == 0) m.expert_ffn_size = 48;
    if (i % 4 > 1) test::adapt(i, m, true, true);
    if (i % 3 > 0) m.moments = Moments::fp8;
    if (i % 6 == 0) m.optimizer = &muon;
    for (const Block& block : blocks(m)) {
      const Layout flat = layout(block, 2, 0, 3, {2});
      for (const Piece& piece : flat.pieces) {
        const Parameter& one = block.parameters[std::size_t(piece.parameter)];
        if (one.frozen) continue;
        EXPECT_EQ(one.expert_dim >= 0, piece.first >= flat.dense_elements) << one.name;
      }
    }
  }
}

// Behind all that have fp32; shards and pieces begin and end between blocks.
TEST(Model, BlockedMomentsAreWholeBlocks) {
  for (int i = 0; i < int(test::special_models().size()); ++i) {
    Config m = test::special_models()[std::size_t(i)];
    test::take_rows_of_blocks(i, m);
    m.moments = Moments::fp8;
    std::int64_t blocked = 0, all = 0;
    for (const Block& block : blocks(m)) {
      const Layout flat = layout(block, 2, 1, 3);
      for (const Piece& piece : flat.pieces) {
        const Parameter& one = block.parameters[std::size_t(piece.parameter)];
        all += piece.elements;
        EXPECT_EQ(one.blocked_moments, !one.frozen && piece.first >= flat.full_state_elements)
            << one.name;
        if (!one.blocked_moments) continue;
        EXPECT_EQ(piece.first % quantized_block, 0);
        EXPECT_EQ(piece.shape.back() % quantized_block, 0) << one.name;
        EXPECT_NE(block.kind, BlockKind::embedding);
        blocked += piece.elements;
      }
      EXPECT_EQ(flat.trained_elements % (3 * trained_alignment(block)), 0);
    }
    EXPECT_GT(blocked, 3 * all / 4) << i;
  }
}

TEST(Model, TensorParallelismCutsBetweenQuantizedBlocks) {
  Config m = test::special_models().front();
  test::quantize(1, m);  // rows of 128 values
  EXPECT_EQ(quantization_fault(m, 2), "");
  EXPECT_NE(quantization_fault(m, 4).find("tp = 4 must cut rows of "), std::string::npos);
  m.quantization = Quantization::none;
  EXPECT_EQ(quantization_fault(m, 4), "");
  m = test::special_models().front();
  test::take_rows_of_blocks(1, m);
  m.moments = Moments::fp8;
  EXPECT_EQ(quantization_fault(m, 2), "");
  EXPECT_NE(quantization_fault(m, 4).find("between blocks of moments of 64"), std::string::npos);
  // The layer with most trained elements is not the only one that counts.
  m.frozen_parameters.clear();
  freeze(m, [](const Parameter& one) {
    return one.name.find("layers.0.attention") != std::string::npos ||
           (one.name.find("layers.0.") == std::string::npos &&
            one.name.find(".mlp.") != std::string::npos);
  });
  EXPECT_NE(quantization_fault(m, 4), "");
  // Experts stay whole.
  std::mt19937 random(1);
  Config experts = test::random_experts_model(random);
  test::take_rows_of_blocks(1, experts);
  experts.head_size = 64, experts.expert_ffn_size = 64, experts.moments = Moments::fp8;
  EXPECT_NE(quantization_fault(experts, 2), "");
  EXPECT_EQ(quantization_fault(experts, 2, 2), "");
}

TEST(Model, InitialValuesFollowSeedAndPlaceOnly) {
  const std::vector<Block> all = blocks(small());
  const Parameter& qkv = all[1].parameters[4];
  ASSERT_EQ(qkv.name, "layers.0.attention.qkv.weight");
  double sum = 0.0, squares = 0.0;
  for (std::int64_t i = 0; i < qkv.elements(); ++i) {
    const double value = initial_value(qkv, i, 7);
    sum += value;
    squares += value * value;
  }
  const double count = double(qkv.elements());
  EXPECT_NEAR(sum / count, 0.0, 4 * 0.02 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.002);
  EXPECT_EQ(initial_value(qkv, 5, 7), initial_value(qkv, 5, 7));
  EXPECT_NE(initial_value(qkv, 5, 7), initial_value(qkv, 5, 8));
  EXPECT_NE(initial_value(qkv, 5, 7), initial_value(all[2].parameters[4], 5, 7));
}

// What a layer keeps is its segments' inputs, of each a shard, and all they save, each once; what
// is cheap to make again only where it is said to be stored.
TEST(Model, KeptTensorsAreInputsAndSaved) {
  const auto values = Split{.tp = 2, .microbatch = 2}.values();
  const auto kept_bytes = [&](const Config& m, Recompute recompute) {
    double kept = 0.0;
    for (const Kept& tensor : kept_tensors(m, recompute)) kept += tensor.bytes.evaluate(values);
    return kept;
  };
  for (const Config& m : all_families()) {
    double dear = 0.0, cheap = 0.0;
    for (SegmentKind kind : segment_kinds(m, BlockKind::layer)) {
      dear += stream_bytes(m).evaluate(values) / 2.0;
      for (const Saved& saved : segment(m, kind).saved)
        (saved.cheap ? cheap : dear) += saved.bytes().evaluate(values);
    }
    EXPECT_EQ(kept_bytes(m, Recompute::selective), dear);
    EXPECT_EQ(kept_bytes(m, Recompute::none), dear + cheap);
    ASSERT_EQ(kept_tensors(m, Recompute::full).size(), 1u);
    EXPECT_EQ(kept_bytes(m, Recompute::full), 4.0 * 2 * 10 * 24 / 2);
  }
}

// By hand, of one token in bf16 on one rank: a norm's output takes C elements, the MLP's activation
// F, what attention reads behind norms of queries and keys (H + 2 K) D.
TEST(Model, CheapTensorsOfEachFamily) {
  const auto values = Split{}.values();
  const auto cheap = [&](Config m) {
    m.precision = Precision::bf16;
    double bytes = 0.0;
    for (SegmentKind kind : segment_kinds(m, BlockKind::layer))
      for (const Saved& saved : segment(m, kind).saved)
        if (saved.cheap) bytes += saved.bytes().evaluate(values);
    return bytes / m.seq_len;
  };
  Config m{.num_layers = 2,
           .hidden_size = 64,
           .num_heads = 4,
           .num_kv_heads = 2,
           .head_size = 20,
           .ffn_size = 100,
           .seq_len = 8,
           .vocab_size = 30};
  EXPECT_EQ(cheap(m), 2.0 * (2 * 64 + 100));  // gpt: two norms
  m.family = &family("llama");
  EXPECT_EQ(cheap(m), 2.0 * (2 * 64 + 100));
  m.qk_norm = true;  // qwen3
  EXPECT_EQ(cheap(m), 2.0 * (2 * 64 + 100 + (4 + 2 * 2) * 20));
  m.qk_norm = false;
  m.family = &family("gemma");
  EXPECT_EQ(cheap(m), 2.0 * (2 * 64 + 100));
  m.family = &family("falcon");
  m.layer_norms = 1;
  EXPECT_EQ(cheap(m), 2.0 * (64 + 100));
  m.family = &family("neox");
  m.layer_norms = 2;
  EXPECT_EQ(cheap(m), 2.0 * (2 * 64 + 100));
}

// The Transformers library keeps the factor in the format of the weights.
TEST(Model, AnEmbeddingsFactorIsRoundedAsWeightsAre) {
  Config m{.family = &family("gemma"), .hidden_size = 1152};  // sqrt: 33.9411
  EXPECT_EQ(m.embedding_scale(), 33.941124f);
  m.precision = Precision::bf16;
  EXPECT_EQ(m.embedding_scale(), 34.0f);
  m.precision = Precision::fp8;
  EXPECT_EQ(m.embedding_scale(), 34.0f);
  m.precision = Precision::fp16;
  EXPECT_EQ(m.embedding_scale(), 33.9375f);
  m.family = &family("llama");
  EXPECT_EQ(m.embedding_scale(), 1.0f);
}

// Of an attention segment's saved tensors only qkv and attended shrink with the precision.
TEST(Model, StatisticsStayWide) {
  const auto values = Split{}.values();
  Config m = all_families().front();
  const auto bytes = [&](const std::string& name) {
    for (SegmentKind kind : segment_kinds(m, BlockKind::layer))
      for (const Saved& saved : segment(m, kind).saved)
        if (saved.name == name) return saved.bytes().evaluate(values);
    return 0.0;
  };
  std::map<std::string, double> wide;
  const std::vector<std::string> activations{"qkv", "attended", "wide"};
  const std::vector<std::string> statistics{"norm1.rstd", "norm2.rstd", "lse"};
  for (const auto& names : {activations, statistics})
    for (const std::string& name : names) wide[name] = bytes(name);
  m.precision = Precision::bf16;
  for (const std::string& name : activations) EXPECT_EQ(2.0 * bytes(name), wide[name]) << name;
  for (const std::string& name : statistics) {
    EXPECT_GT(bytes(name), 0.0) << name;
    EXPECT_EQ(bytes(name), wide[name]) << name;
  }
}

}  // namespace
}  // namespace brume::model
