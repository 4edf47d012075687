/// @file Random models of all families, exported: the Transformers library computes the same loss,
/// or the export is refused. $BRUME_PYTHON (default: python3) must have torch and transformers 5.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "contract.hpp"
#include "data/token_writer.hpp"
#include "hugging_face_files.hpp"
#include "interop/hugging_face.hpp"
#include "io/checkpoint.hpp"
#include "kernels_main.hpp"
#include "own_folder.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using engine::Slab;
using model::Config;
using nlohmann::json;
using test::pick;

/// A small model with choices that few models, or none, have together.
Config random_config(std::mt19937& random) {
  const auto one_in = [&](int n) { return int(random() % unsigned(n)) == 0; };
  const std::vector<Config> special = test::special_models();
  Config m = one_in(2)   ? special[random() % special.size()]
             : one_in(4) ? test::random_model(random)
             : one_in(4) ? test::random_experts_model(random)
                         : test::random_family_model(random);
  const bool llama = m.family->name == "llama", gemma = m.family->name == "gemma";
  if (one_in(3)) m.norm_eps = 0.01;
  if (one_in(5)) m.init_std = 1.5;
  if (one_in(gemma ? 3 : 8)) m.query_scalar = one_in(3) ? 5.5 : 6.0;
  if (m.family->name == "falcon" && !one_in(6)) m.linear_bias = m.qkv_bias;
  if (!llama && !gemma && !one_in(4)) {
    m.head_size = 0;
    m.hidden_size = 12 * m.num_heads;
  }
  if (m.family->qk_norms && one_in(4)) m.qk_norm = !m.qk_norm;
  m.qk_norm_joint = m.qk_norm_joint && m.qk_norm;
  if (m.qk_norm_joint && !one_in(4)) m.head_size = 0, m.hidden_size = 10 * m.num_heads;
  if (m.num_experts > 0) {
    if (one_in(3) && m.expert_groups == 1)
      m.experts_per_token = 1 + int(random() % unsigned(m.num_experts));
    if (one_in(3)) m.normalize_topk = !m.normalize_topk;
    if (one_in(8)) m.qkv_bias = true;
  }
  if (llama && one_in(3)) {
    m.window = one_in(3) ? 0 : 5;
    m.windows.clear();
    m.window_rope_theta = 0.0;
  }
  if (gemma && one_in(3)) m.window_rope_theta = 0.0;
  if (m.latent()) {
    m.qk_norm = m.qkv_bias = false;
    if (m.num_experts > 0 && one_in(2)) {
      if (one_in(2)) m.router = model::RouterKind::sigmoid;
      m.num_experts = 8, m.experts_per_token = 3, m.expert_groups = 4, m.groups_per_token = 2;
      m.routed_scale = 2.5;
    }
  }
  if (!m.rotary()) return m;
  if (one_in(3)) m.rope_theta = 500.5;
  if (one_in(8)) m.rotary_size = 4;
  if (one_in(8)) m.hidden_size += 2, m.head_size = 10;
  if (one_in(3)) m.rope_scaling = {.kind = model::RopeScaling::Kind::linear, .factor = 4.0};
  if (one_in(3))
    m.rope_scaling = {.kind = model::RopeScaling::Kind::llama3,
                      .factor = 8.0,
                      .high_freq_factor = 3.0,
                      .original_seq_len = 7};
  if (one_in(3))
    m.rope_scaling = {.kind = model::RopeScaling::Kind::yarn,
                      .factor = 4.0,
                      .original_seq_len = 9,
                      .beta_fast = one_in(2) ? 2.0 : 32.0,
                      .beta_slow = 0.5,
                      .truncate = one_in(2),
                      .attention_factor = one_in(2) ? 1.5 : 0.0,
                      .mscale = one_in(2) ? 0.8 : 0.0,
                      .mscale_all_dim = 0.9};
  return m;
}

/// Models of each kind must be exported and refused.
std::string kind_of(const model::Family& family, bool experts) {
  return family.name + (experts ? " of experts" : "");
}

/// A random model's values: no gain is 1, no bias 0.
using Values = std::map<std::string, std::vector<float>>;
Values random_values(const Config& model, std::mt19937& random) {
  Values values;
  std::normal_distribution<float> normal(0.0f, 0.2f);
  for (const Slab& slab : whole_weights(model)) {
    std::vector<float>& all = values[slab.name];
    const float middle = slab.name.ends_with(".gain") ? 1.0f - model.gain_base() : 0.0f;
    for (std::int64_t i = 0; i < slab.elements; ++i) all.push_back(middle + normal(random));
  }
  return values;
}

double loss_of(const Config& model, const Values& values, const fs::path& tokens, int sequences) {
  double loss = 0.0;
  comm::run_local(1, [&](comm::Communicator& world) {
    engine::Engine engine(test::one_rank_plan(model, 1), model, {}, world);
    for (const Slab& slab : engine.slabs())
      if (slab.kind == "weight") engine::set_values(slab, 0, values.at(slab.name));
    const data::Sampler data(data::TokenFile(tokens), data::Order::sequential, 0, model.seq_len);
    loss = engine.evaluate(data, 0, sequences);
  });
  return loss;
}

void export_to(const fs::path& directory, const Config& model, const Values& values) {
  comm::run_local(1, [&](comm::Communicator& world) {
    io::CheckpointWriter writer(directory, world);
    const std::vector<Slab> slabs = whole_weights(model);
    io::CheckpointInfo info;
    info.deck_text = "deck";
    writer.write(info, slabs, [&](std::size_t n, std::int64_t first, std::span<float> room) {
      return std::span(values.at(slabs[n].name)).subspan(std::size_t(first), room.size());
    });
    io::CheckpointReader reader(io::find_checkpoint(world, directory).value());
    const HuggingFaceWriter out(directory, model, Dtype::f32, 1 << 30);
    out.write_file(0, [&](std::vector<Slab>& filled) { reader.fill(filled); });
    out.finish("");
  });
}

TEST(Exported, TransformersComputeTheSameLoss) {
  const char* python = std::getenv("BRUME_PYTHON");
  const std::string call = python != nullptr ? python : "python3";
  const std::string imports =
      "from importlib.metadata import version; version('torch'); assert version('transformers') >= "
      "'5'";
  if (std::system((call + " -c \"" + imports + "\" 2> /dev/null").c_str()) != 0)
    GTEST_SKIP() << call << " has no transformers of version 5";

  constexpr int models = 40, most = 400, sequences = 3;
  std::vector<std::string> kinds;
  for (const model::Family& family : families::families())
    for (const bool experts : {false, true})
      if (experts ? family.experts : !family.only_experts)
        kinds.push_back(kind_of(family, experts));
  const test::OwnFolder folder;
  std::mt19937 random(50);
  std::map<std::string, int> exported, refused;
  std::string folders;
  const auto is_covered = [&](const std::string& kind) {
    return exported[kind] >= 3 && refused[kind] > 0;
  };
  for (int i = 0; i < most; ++i) {
    if (i >= models && std::ranges::all_of(kinds, is_covered)) break;
    const Config model = random_config(random);
    const std::string kind = kind_of(*model.family, model.num_experts > 0);
    const fs::path out = folder / std::to_string(i);
    fs::create_directory(out);
    try {
      HuggingFaceWriter(out, model, Dtype::f32, 1 << 30);
    } catch (const Error& error) {
      const std::string said = error.what();
      EXPECT_NE(said.find("has no counterpart of this model"), std::string::npos) << said;
      ++refused[kind];
      continue;
    }
    ++exported[kind];
    const Values values = random_values(model, random);
    std::vector<std::int32_t> tokens;
    for (int t = 0; t <= sequences * model.seq_len; ++t)
      tokens.push_back(std::int32_t(random() % unsigned(model.vocab_size)));
    data::write_token_file(out / "a.tok", tokens, model.vocab_size);
    json expected{{"model", model::text(model)},
                  {"loss", loss_of(model, values, out / "a.tok", sequences)}};
    for (int n = 0; n < sequences; ++n) {
      const auto first = tokens.begin() + n * model.seq_len;
      expected["tokens"].push_back(std::vector(first, first + model.seq_len + 1));
    }
    test::put(out / "expected.json", expected.dump());
    export_to(out, model, values);
    EXPECT_EQ(model::text(test::config_of(out)), model::text(model));
    folders += " " + out.string();
  }
  for (const std::string& kind : kinds) EXPECT_TRUE(is_covered(kind)) << kind;
  const std::string script = std::string(BRUME_REGRESSION_DIR) + "/pytorch/exported.py";
  EXPECT_EQ(std::system((call + " " + script + " expected" + folders).c_str()), 0);
}

}  // namespace
}  // namespace brume::interop
