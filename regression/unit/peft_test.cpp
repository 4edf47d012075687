/// @file Adapters in PEFT's files: out and in again, merged into the model's weights, refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "contract.hpp"
#include "hugging_face_files.hpp"
#include "interop/hugging_face.hpp"
#include "io/checkpoint.hpp"
#include "kernels_main.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using engine::Slab;
using nlohmann::json;
using test::config_of;
using test::OwnFolder;

const fs::path models = fs::path(BRUME_REGRESSION_DIR) / "data" / "hugging_face";
const deck::AdapterKeys all_targets{.rank = 3, .alpha = 7.0, .scaling = "rslora"};

/// Base weights of a model in the library's files; random values are added to all that is trained.
using Values = std::map<std::string, std::vector<float>>;
std::set<std::string> trained_names(const model::Config& model) {
  std::set<std::string> names;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& one : block.parameters)
      if (!one.frozen) names.insert(one.name);
  return names;
}
Values values_of(const fs::path& directory, const model::Config& model) {
  const PretrainedWeights base(directory, model);
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.2f);
  const std::set<std::string> trained = trained_names(model);
  Values values;
  for (const Slab& slab : whole_weights(model)) {
    std::vector<float>& all = values[slab.name];
    all.resize(std::size_t(slab.elements));
    if (base.has(slab.name)) base.get(slab, 0, all);
    if (trained.contains(slab.name))
      for (float& value : all) value += normal(random);
  }
  return values;
}

/// Calls work(fill) with a checkpoint of these values in place.
template <class Work>
void with_checkpoint(const model::Config& model, const Values& values, const Work& work) {
  const OwnFolder folder;
  comm::run_local(1, [&](comm::Communicator& world) {
    const std::vector<Slab> slabs = whole_weights(model);
    io::CheckpointInfo info;
    info.deck_text = "deck";
    io::CheckpointWriter(folder.path(), world)
        .write(info, slabs, [&](std::size_t n, std::int64_t first, std::span<float> room) {
          return std::span(values.at(slabs[n].name)).subspan(std::size_t(first), room.size());
        });
    io::CheckpointReader reader(io::find_checkpoint(world, folder.path()).value());
    work([&](std::vector<Slab>& slabs) { reader.fill(slabs); });
  });
}

void write_adapter_of(const fs::path& out, const model::Config& model,
                      const deck::AdapterKeys& keys, const Values& values) {
  with_checkpoint(model, values, [&](const FillSlabs& fill) {
    write_adapter(out, model, keys, "base", Dtype::f32, fill);
  });
}

double loss_of(const model::Config& model, const std::function<void(std::vector<Slab>&)>& fill) {
  const test::TokenFixture tokens(model.vocab_size);
  double loss = 0.0;
  comm::run_local(1, [&](comm::Communicator& world) {
    engine::Engine engine(test::one_rank_plan(model, 1), model, {}, world);
    std::vector<Slab> slabs = engine.slabs();
    std::erase_if(slabs, [](const Slab& slab) { return slab.kind != "weight"; });
    fill(slabs);
    loss = engine.evaluate(tokens.sampler(model.seq_len), 0, 5);
  });
  return loss;
}

json json_of(const fs::path& path) { return json::parse(test::content(path)); }

std::vector<test::RawTensor> raw_tensors(const fs::path& path) {
  const TensorFile file(path);
  const std::string bytes = test::content(path);
  std::vector<test::RawTensor> tensors;
  for (const auto& [name, entry] : file.tensors())
    tensors.push_back({name, entry.dtype, entry.shape,
                       bytes.substr(std::size_t(entry.first_byte), std::size_t(entry.bytes))});
  return tensors;
}

/// A model, and how it is adapted.
struct Case {
  const char* name;
  deck::AdapterKeys keys;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

/// The model's name comes before a point.
class Adapters : public testing::TestWithParam<Case> {
 protected:
  const std::string name = GetParam().name;
  const deck::AdapterKeys& keys = GetParam().keys;
  const fs::path directory = models / name.substr(0, name.find('.'));
  const model::Config model = config_of(directory, keys);
  const Values values = values_of(directory, model);
  const OwnFolder out;
};

TEST_P(Adapters, GoOutAndIn) {
  write_adapter_of(out.path(), model, keys, values);
  const PretrainedWeights adapter(out.path(), model, FileKind::adapter);
  adapter.require_tied();
  const std::set<std::string> trained = trained_names(model);
  for (const Slab& slab : whole_weights(model)) {
    ASSERT_EQ(adapter.has(slab.name), trained.contains(slab.name)) << slab.name;
    if (!trained.contains(slab.name)) continue;
    std::vector<float> found(std::size_t(slab.elements));
    adapter.get(slab, 0, found);
    EXPECT_EQ(found, values.at(slab.name)) << slab.name;
  }
  const bool tied = model.tied_head && model.adapter.saves(model::Module::token);
  EXPECT_EQ(TensorFile(out / "adapter_model.safetensors").tensors().size(), trained.size() + tied);

  const json config = json_of(out / "adapter_config.json");
  EXPECT_EQ(config.at("r"), 3);
  EXPECT_EQ(config.at("lora_alpha"), 7.0);
  EXPECT_EQ(config.at("use_rslora"), true);
  EXPECT_EQ(config.at("ensure_weight_tying"), tied);
  EXPECT_EQ(config.at("fan_in_fan_out"), model.family->name == "gpt");
  EXPECT_EQ(config.at("base_model_name_or_path"), "base");

  // The files alone say what the keys of a deck were.
  const model::Adapter again =
      config_of(directory, adapter_keys(out.path(), config_of(directory))).adapter;
  EXPECT_EQ(again.rslora, model.adapter.rslora);
  EXPECT_EQ(again.targets, model.adapter.targets);
  EXPECT_EQ(again.saved, model.adapter.saved);
  EXPECT_EQ(again.layers, model.adapter.layers);
}

/// Both parts of the files fill an engine, whose loss is that of the merged model.
TEST_P(Adapters, MergedComputeTheSame) {
  write_adapter_of(out.path(), model, keys, values);
  const double apart = loss_of(model, [&](std::vector<Slab>& slabs) {
    PretrainedWeights(directory, model).fill(slabs);
    PretrainedWeights(out.path(), model, FileKind::adapter).fill(slabs);
  });
  with_checkpoint(model, values, [&](const FillSlabs& fill) {
    const HuggingFaceWriter merged(out.path(), model, Dtype::f32, 10'000);
    for (int file = 0; file < merged.num_files(); ++file) merged.write_file(file, fill);
    merged.finish(directory / "config.json");
  });
  const model::Config plain = config_of(out.path());
  const double together = loss_of(
      plain, [&](std::vector<Slab>& slabs) { PretrainedWeights(out.path(), plain).fill(slabs); });
  const double base = loss_of(
      plain, [&](std::vector<Slab>& slabs) { PretrainedWeights(directory, plain).fill(slabs); });
  EXPECT_NEAR(together / apart, 1.0, 1e-6);
  EXPECT_GT(std::abs(base / apart - 1.0), 1e-3);
}

const deck::AdapterKeys own_ranks{
    .rank = 3,
    .alpha = 7.0,
    .scaling = "rslora",
    .groups = {{"attention.[qo]*", 5, 2.0}, {"mlp.*", 2, 0.0}, {"*", 0, 3.0}}};
const deck::AdapterKeys layers_0_and_2{
    .rank = 3, .alpha = 7.0, .scaling = "rslora", .targets = {"*.out"}, .layers = {2, 0}};
/// @return all_targets with these modules
deck::AdapterKeys saving(std::vector<std::string> modules) {
  deck::AdapterKeys keys = all_targets;
  keys.modules_to_save = std::move(modules);
  return keys;
}

/// @return the keys with these targets
deck::AdapterKeys with_experts(deck::AdapterKeys keys, std::vector<std::string> targets) {
  keys.targets = std::move(targets);
  return keys;
}

INSTANTIATE_TEST_SUITE_P(
    Peft, Adapters,
    testing::Values(Case{"gpt2", all_targets}, Case{"llama_grouped", all_targets},
                    Case{"llama_tied", all_targets}, Case{"qwen3", all_targets},
                    Case{"mixtral", all_targets}, Case{"qwen3_moe", all_targets},
                    Case{"qwen2_moe", all_targets}, Case{"olmoe", all_targets},
                    Case{"qwen2_moe.experts", with_experts(own_ranks, {"*"})},
                    Case{"gemma2", all_targets}, Case{"neox", all_targets},
                    Case{"falcon_many_key_heads", all_targets}, Case{"gpt2.groups", own_ranks},
                    Case{"llama_grouped.groups", own_ranks}, Case{"qwen3.groups", own_ranks},
                    Case{"neox.groups", own_ranks}, Case{"gpt2.saved", saving({"*"})},
                    Case{"llama_grouped.saved", saving({"embedding.token", "head"})},
                    Case{"llama_tied.saved", saving({"embedding.token"})},
                    Case{"qwen3.saved", saving({"*norm*"})}, Case{"gemma2.saved", saving({"*"})},
                    Case{"neox.saved", saving({"head*", "norm1"})},
                    Case{"gemma2.layers", layers_0_and_2},
                    Case{"mixtral.experts", with_experts(all_targets, {"*"})},
                    Case{"qwen3_moe.experts", with_experts(own_ranks, {"*"})},
                    Case{"qwen3_moe.in", with_experts(all_targets, {"*.q", "mlp.experts.in"})},
                    Case{"mixtral.out", with_experts(all_targets, {"mlp.experts.out"})}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::ranges::replace(name, '.', '_');
      return name;
    });

TEST(AdapterNames, AreThoseOfPeft) {
  const std::map<std::string, std::vector<std::string>> expected{
      {"gpt2", {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}},
      {"llama_grouped",
       {"mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "self_attn.k_proj", "self_attn.o_proj",
        "self_attn.q_proj", "self_attn.v_proj"}},
      {"mixtral", {"self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"}},
      {"qwen2_moe",
       {"mlp.shared_expert.down_proj", "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
        "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"}},
      {"neox",
       {"attention.dense", "attention.query_key_value", "mlp.dense_4h_to_h", "mlp.dense_h_to_4h"}}};
  const std::map<std::string, std::pair<std::string, std::vector<std::int64_t>>> outputs{
      {"gpt2", {"base_model.model.transformer.h.1.attn.c_attn.lora_B.weight", {135, 3}}},
      {"llama_grouped",
       {"base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight", {18, 3}}},
      {"mixtral", {"base_model.model.model.layers.1.self_attn.o_proj.lora_A.weight", {3, 54}}},
      {"qwen2_moe",
       {"base_model.model.model.layers.1.mlp.shared_expert.down_proj.lora_A.weight", {3, 14}}},
      {"neox",
       {"base_model.model.gpt_neox.layers.1.attention.query_key_value.lora_B.weight", {135, 3}}}};
  for (const auto& [name, modules] : expected) {
    const model::Config model = config_of(models / name, all_targets);
    const OwnFolder out;
    write_adapter_of(out.path(), model, all_targets, values_of(models / name, model));
    EXPECT_EQ(json_of(out / "adapter_config.json").at("target_modules"), json(modules)) << name;
    const auto& [tensor, shape] = outputs.at(name);
    const TensorFile file(out / "adapter_model.safetensors");
    ASSERT_TRUE(file.tensors().contains(tensor)) << tensor;
    EXPECT_EQ(file.tensors().at(tensor).shape, shape);
    EXPECT_EQ(file.tensors().at(tensor).dtype, "F32");
  }
}

/// Each head's rows: its query, its key and its value, as in the weight.
TEST(AdapterNames, NeoxHasRowsByHeads) {
  const model::Config model = config_of(models / "neox", all_targets);
  const Values values = values_of(models / "neox", model);
  const OwnFolder out;
  write_adapter_of(out.path(), model, all_targets, values);
  std::vector<float> found(3 * 45 * 3);
  TensorFile(out / "adapter_model.safetensors")
      .read("base_model.model.gpt_neox.layers.0.attention.query_key_value.lora_B.weight", 0, found);
  const std::vector<float>& ours = values.at("layers.0.attention.qkv.lora_b");
  for (std::size_t head = 0; head < 3; ++head)
    for (std::size_t part = 0; part < 3; ++part)
      for (std::size_t i = 0; i < 45; ++i)  // 15 rows of 3
        EXPECT_EQ(found[(head * 3 + part) * 45 + i], ours[(part * 3 + head) * 45 + i]);
}

/// A change below half of a last digit is lost in bf16, and the sums say so.
TEST(Merging, SaysWhatRoundingKeeps) {
  const fs::path directory = models / "llama_grouped";  // its values are bf16
  const auto kept = [&](double alpha, Dtype dtype) {
    const deck::AdapterKeys keys{.rank = 2, .alpha = alpha, .targets = {"attention.*"}};
    const model::Config model = config_of(directory, keys);
    const OwnFolder out;
    MergeSums sums;
    with_checkpoint(model, values_of(directory, model), [&](const FillSlabs& fill) {
      sums = HuggingFaceWriter(out.path(), model, dtype, 1 << 30).write_file(0, fill);
    });
    EXPECT_NEAR(std::sqrt(sums.terms / sums.weights) / (0.14 * alpha), 1.0, 0.3);
    return sums.kept / sums.terms;
  };
  EXPECT_NEAR(kept(1.0, Dtype::f32), 1.0, 1e-6);
  EXPECT_NEAR(kept(1.0, Dtype::bf16), 1.0, 1e-3);
  EXPECT_NEAR(kept(1e-3, Dtype::f32), 1.0, 1e-3);
  EXPECT_LT(kept(1e-4, Dtype::bf16), 0.5);
}

class AdapterFiles : public testing::Test {
 protected:
  const fs::path directory = models / "llama_tied";
  const deck::AdapterKeys keys{.rank = 2, .alpha = 4.0, .targets = {"attention.q", "mlp.up"}};
  const model::Config model = config_of(directory, keys);
  const OwnFolder folder;

  void SetUp() override {
    write_adapter_of(folder.path(), model, keys, values_of(directory, model));
  }

  /// The message about a key of the deck, or of the file, with another value.
  std::string refused(const deck::AdapterKeys& other) const {
    return test::refusal(
        [&] { PretrainedWeights(folder.path(), config_of(directory, other), FileKind::adapter); });
  }
  std::string refused(const char* key, const json& value) const {
    const std::string before = test::content(folder / "adapter_config.json");
    json config = json::parse(before);
    config[key] = value;
    test::put(folder / "adapter_config.json", config.dump());
    const std::string said = refused(keys);
    test::put(folder / "adapter_config.json", before);
    EXPECT_NE(said.find((folder / "adapter_config.json").string()), std::string::npos) << said;
    return said;
  }
};

void expect_in(const std::string& sentence, const std::string& said) {
  EXPECT_NE(said.find(sentence), std::string::npos) << said;
}

TEST_F(AdapterFiles, OtherRanksAndScalesAreNamed) {
  deck::AdapterKeys other = keys;
  other.rank = 3;
  expect_in("the term of attention.q has rank 2, that of [training.adapter] 3: set rank = 2",
            refused(other));
  other = keys;
  other.alpha = 2.0;
  expect_in("the term of attention.q has the scale 2, that of [training.adapter] 1: set alpha = 4",
            refused(other));
  other = keys;
  other.scaling = "rslora";
  expect_in("set alpha = 4 and scaling = \"standard\"", refused(other));
  expect_in("scaling = \"rslora\"", refused("use_rslora", true));
}

TEST_F(AdapterFiles, OtherTargetsAreNamed) {
  deck::AdapterKeys other = keys;
  other.targets.push_back("mlp.out");
  std::string said = refused(other);
  expect_in("adapter_model.safetensors: lacks 4 tensors of the adapter: ", said);
  expect_in(R"("base_model.model.model.layers.0.mlp.down_proj.lora_A.weight")", said);
  other.targets = {"mlp.up"};
  said = refused(other);
  expect_in("has 4 tensors that the adapter has no place for: ", said);
  expect_in(R"("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")", said);
}

TEST_F(AdapterFiles, SayTheirKeys) {
  const deck::AdapterKeys found = adapter_keys(folder.path(), config_of(directory));
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.alpha, 4.0);
  EXPECT_EQ(found.scaling, "standard");
  EXPECT_EQ(found.targets, keys.targets);
  expect_in("has no tensor of this model's linear layers",
            test::refusal([&] { adapter_keys(folder.path(), config_of(models / "gpt2")); }));
}

/// Patterns are regular expressions of PEFT, which fit names of modules, or their ends.
TEST_F(AdapterFiles, PatternsAreThoseOfPeft) {
  const auto alphas = [&](const json& patterns) {
    json config = json_of(folder / "adapter_config.json");
    config["alpha_pattern"] = patterns;
    test::put(folder / "adapter_config.json", config.dump());
    const deck::AdapterKeys found = adapter_keys(folder.path(), config_of(directory));
    std::vector<double> alphas;
    for (const model::Adapter::Target& one : config_of(directory, found).adapter.targets)
      alphas.push_back(one.alpha);
    return alphas;
  };
  using Alphas = std::vector<double>;  // of attention.q and mlp.up
  EXPECT_EQ(alphas({{"q_proj", 8}}), (Alphas{8, 4}));
  EXPECT_EQ(alphas({{"self_attn.q_proj", 8.5}, {"up_proj", 3}}), (Alphas{8.5, 3}));
  EXPECT_EQ(alphas({{"q_proj|up_proj", 8}}), (Alphas{8, 8}));
  EXPECT_EQ(alphas({{"model\\.layers\\.\\d+\\..*_proj", 8}}), (Alphas{8, 8}));
  EXPECT_EQ(alphas({{"^model.layers.[01].mlp.up_proj", 8}}), (Alphas{4, 8}));
  EXPECT_EQ(alphas({{"proj", 8}, {"q_pro", 8}, {"up_proj.x", 8}, {"self_attn", 8}}),
            (Alphas{4, 4}));
  EXPECT_EQ(alphas({{"q_proj", 8}, {".*attn.q_proj", 8}}), (Alphas{8, 4}));
  EXPECT_EQ(alphas(nullptr), (Alphas{4, 4}));
}

TEST_F(AdapterFiles, PatternsOfLayersAndBadOnesAreNamed) {
  const std::string layer = "layers.1.self_attn.q_proj";
  expect_in(
      "'rank_pattern' or 'alpha_pattern' singles out layers: found rank 2 and alpha 8 for "
      "model.layers.1.self_attn.q_proj, rank 2 and alpha 4 in other layers",
      refused("alpha_pattern", {{layer, 8}}));
  expect_in("singles out layers: found rank 3", refused("rank_pattern", {{layer, 3}}));
  expect_in("the term of attention.q has rank 3, that of [training.adapter] 2: set rank = 3",
            refused("rank_pattern", {{"q_proj", 3}}));
  expect_in("the term of mlp.up has the scale 4, that of [training.adapter] 2: set alpha = 8",
            refused("alpha_pattern", {{"up_proj", 8}}));
  expect_in(
      "'alpha_pattern' has two values for the module model.layers.0.self_attn.q_proj: of the "
      "patterns \"q.*\" and \"q_proj\"",
      refused("alpha_pattern", {{"q.*", 4}, {"q_proj", 8}}));
  expect_in("'rank_pattern': the pattern '\\A(?:.*\\.)?(?:q_(proj)\\z' is refused",
            refused("rank_pattern", {{"q_(proj", 2}}));
  expect_in("'rank_pattern' must be an object", refused("rank_pattern", {1}));
  expect_in("'rank_pattern' = 5000, expected 1 to 4096",
            refused("rank_pattern", {{"q_proj", 5000}}));
  expect_in("'rank_pattern' = 0, expected 1 to 4096", refused("rank_pattern", {{"q_proj", 0}}));
  expect_in("'rank_pattern' must be an integer", refused("rank_pattern", {{"q_proj", 2.5}}));
  expect_in("'alpha_pattern' must be a number", refused("alpha_pattern", {{"q_proj", "8"}}));
}

/// A table that PEFT trained apart from the head that shares its values has no counterpart.
TEST_F(AdapterFiles, TablesApartFromTheirHeadAreNamed) {
  const fs::path path = folder / "adapter_model.safetensors";
  deck::AdapterKeys saving = keys;
  saving.modules_to_save = {"embedding.token"};
  const model::Config model = config_of(directory, saving);
  write_adapter_of(folder.path(), model, saving, values_of(directory, model));
  expect_in("has 2 tensors that the adapter has no place for: \"base_model.model.lm_head.weight\"",
            refused(keys));
  const std::vector<test::RawTensor> both = raw_tensors(path);
  const auto is_head = [](const test::RawTensor& one) {
    return one.name == "base_model.model.lm_head.weight";
  };
  std::vector<test::RawTensor> other = both;
  std::ranges::find_if(other, is_head)->bytes[0] ^= 1;
  test::put(path, test::safetensors(other));
  expect_in(
      "tensor \"base_model.model.lm_head.weight\" is not the token table, but this model's head is "
      "tied: save the table with ensure_weight_tying = true",
      test::refusal(
          [&] { PretrainedWeights(folder.path(), model, FileKind::adapter).require_tied(); }));
  std::erase_if(other, is_head);
  test::put(path, test::safetensors(other));
  expect_in("lacks 1 tensor of the adapter: \"base_model.model.lm_head.weight\"", refused(saving));
  expect_in("; but this model's head is tied", refused(saving));
}

TEST(AdapterKeysOfDecks, NameWhatFitsNothing) {
  const auto refused = [](const deck::AdapterKeys& keys) {
    return test::refusal([&] { config_of(models / "llama_tied", keys); });
  };
  expect_in("training.adapter.groups: \"mlp.*\" fits none of this model's targets: attention.q",
            refused({.rank = 2, .targets = {"attention.q"}, .groups = {{"mlp.*", 4, 0.0}}}));
  expect_in(
      "training.adapter.modules_to_save: \"head\" fits none of this model's tables and norms: "
      "embedding.token, norm1, norm2, head.norm",
      refused({.rank = 2, .modules_to_save = {"embedding.token", "head"}}));
  expect_in("rank must be given", refused({.modules_to_save = {"head.norm"}}));
  expect_in("rank must be given", refused({.groups = {{"mlp.*", 4, 0.0}}}));
  expect_in("rank must be given", refused({.layers = {0}}));
  for (const std::vector<int>& layers : {std::vector{0, 2}, std::vector{1, 1}})
    expect_in("training.adapter.layers: found " + std::to_string(layers[1]) +
                  ", expected different numbers from 0 to 1",
              refused({.rank = 2, .layers = layers}));
}

TEST_F(AdapterFiles, OtherShapesAndFormatsAreNamed) {
  const fs::path path = folder / "adapter_model.safetensors";
  std::vector<test::RawTensor> tensors = raw_tensors(path);
  std::swap(tensors[0].shape[0], tensors[0].shape[1]);
  test::put(path, test::safetensors(tensors));
  expect_in("mlp.up_proj.lora_A.weight\" has shape [45, 2], the adapter needs [2, 45]: ",
            refused(keys));
  std::swap(tensors[0].shape[0], tensors[0].shape[1]);
  tensors[0].dtype = "I32";
  test::put(path, test::safetensors(tensors));
  expect_in("has dtype I32: only F32, BF16, F16", refused(keys));
}

TEST_F(AdapterFiles, OtherAdaptersAreRefused) {
  expect_in("'peft_type' must be \"LORA\"", refused("peft_type", "IA3"));
  for (const char* key : {"use_dora", "use_qalora", "lora_bias"})
    expect_in("'" + std::string(key) + "' = true is not supported", refused(key, true));
  expect_in("'bias' = \"all\" is not supported", refused("bias", "all"));
  expect_in("'init_lora_weights' = \"pissa\" changed the base",
            refused("init_lora_weights", "pissa"));
  expect_in(
      "'target_parameters' = a list is not supported: adapters fit linear layers, and mlp.experts.",
      refused("target_parameters", {"mlp.gate.weight"}));
  expect_in("'r' must be an integer", refused("r", "2"));
  expect_in("'lora_alpha' must be a number", refused("lora_alpha", nullptr));
}

TEST_F(AdapterFiles, FilesThatAreNoneAreNamed) {
  test::put(folder / "adapter_config.json", "[1]");
  expect_in("'peft_type' must be \"LORA\"", refused(keys));
  test::put(folder / "adapter_config.json", "{");
  expect_in("is not JSON", refused(keys));
  fs::remove(folder / "adapter_config.json");
  expect_in("adapter_config.json: cannot be opened", refused(keys));
}

TEST_F(AdapterFiles, PickledFactorsAreNamed) {
  fs::rename(folder / "adapter_model.safetensors", folder / "adapter_model.bin");
  expect_in("found adapter_model.bin in Python's pickle format", refused(keys));
}

/// Older versions of the library have a linear layer for each matrix of experts.
TEST(AdapterNames, ExpertsAreStacked) {
  const fs::path directory = models / "mixtral";
  const deck::AdapterKeys keys{.rank = 2, .targets = {"attention.q"}};
  const model::Config model = config_of(directory, keys);
  const OwnFolder out;
  write_adapter_of(out.path(), model, keys, values_of(directory, model));
  const std::string expert =
      "base_model.model.model.layers.0.block_sparse_moe.experts.3.w1.lora_A.weight";
  std::vector<test::RawTensor> tensors = raw_tensors(out / "adapter_model.safetensors");
  tensors.push_back({expert, "F32", {2, 1}, std::string(8, '\0')});
  test::put(out / "adapter_model.safetensors", test::safetensors(tensors));
  expect_in("has 1 tensor that the adapter has no place for: \"" + expert + "\"",
            test::refusal([&] { PretrainedWeights(out.path(), model, FileKind::adapter); }));

  const deck::AdapterKeys all{.rank = 2, .targets = {"*"}};
  const model::Config adapted = config_of(directory, all);
  const Values values = values_of(directory, adapted);
  write_adapter_of(out.path(), adapted, all, values);
  const json config = json_of(out / "adapter_config.json");
  EXPECT_EQ(config.at("target_parameters"),
            json({"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
  // The expert is the fastest index of B [outputs, rank experts].
  const std::string inner = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight";
  const TensorFile file(out / "adapter_model.safetensors");
  const std::vector<float>& ours = values.at("layers.0.mlp.experts.in.lora_b");
  const std::int64_t experts = adapted.num_experts, outputs = 2 * adapted.expert_ffn_size;
  ASSERT_EQ(file.tensors().at(inner).shape, (std::vector<std::int64_t>{outputs, 2 * experts}));
  std::vector<float> found(ours.size());
  file.read(inner, 0, found);
  for (std::int64_t expert = 0; expert < experts; ++expert)
    for (std::int64_t output = 0; output < outputs; ++output)
      for (std::int64_t k = 0; k < 2; ++k)
        EXPECT_EQ(found[std::size_t((output * 2 + k) * experts + expert)],
                  ours[std::size_t((expert * outputs + output) * 2 + k)]);
}

/// PEFT has one first factor where Brume has two.
TEST(AdapterNames, FalconsFewerKeyHeadsHaveNone) {
  const fs::path directory = models / "falcon_grouped";
  const deck::AdapterKeys mlp{.rank = 2, .targets = {"mlp.*"}};
  const model::Config some = config_of(directory, mlp), all = config_of(directory, all_targets);
  const OwnFolder out;
  EXPECT_NO_THROW(write_adapter_of(out.path(), some, mlp, values_of(directory, some)));
  expect_in("PEFT has no counterpart of layers.0.attention.q.lora_a",
            test::refusal([&] { HuggingFaceWriter(out.path(), all, Dtype::f32, 1 << 30); }));
}

}  // namespace
}  // namespace brume::interop
