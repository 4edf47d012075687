/// @file Models of Hugging Face's format: those of regression/data/hugging_face, which the
/// Transformers library wrote, give the losses that it computed; files that do not fit are refused.
#include "interop/hugging_face.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "contract.hpp"
#include "data/token_writer.hpp"
#include "engine/generator.hpp"
#include "hugging_face_files.hpp"
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

/// The loss of each sequence alone.
std::vector<double> losses(const model::Config& model, const PretrainedWeights& weights,
                           const std::vector<std::vector<std::int32_t>>& sequences) {
  std::vector<double> losses;
  const OwnFolder folder;
  comm::run_local(1, [&](comm::Communicator& world) {
    engine::Engine engine(test::one_rank_plan(model, 1), model, {}, world);
    std::vector<Slab> slabs = engine.slabs();
    std::erase_if(slabs, [](const Slab& slab) { return slab.kind != "weight"; });
    weights.fill(slabs);
    for (const std::vector<std::int32_t>& tokens : sequences) {
      data::write_token_file(folder / "a.tok", tokens, model.vocab_size);
      const data::Sampler data(data::TokenFile(folder / "a.tok"), data::Order::sequential, 0,
                               model.seq_len);
      losses.push_back(engine.evaluate(data, 0, 1));
    }
  });
  return losses;
}

class Pretrained : public testing::TestWithParam<const char*> {
 protected:
  const fs::path directory = models / GetParam();
  const model::Config model = config_of(directory);
  const PretrainedWeights weights{directory, model};
};

TEST_P(Pretrained, GivesTheLossesOfTransformers) {
  const json expected = json::parse(test::content(directory / "expected.json"));
  const std::vector<double> found =
      losses(model, weights, expected.at("tokens").get<std::vector<std::vector<std::int32_t>>>());
  const double off = test::largest_difference(found, expected.at("losses"));
  RecordProperty("loss of a sequence", fmt::format("{:.2e}", off));
  EXPECT_LE(off, 1e-6);
}

/// Whatever piece of a parameter a rank asks for, it is that of the whole one.
TEST_P(Pretrained, AnyPieceIsThatOfTheWhole) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t end) { return std::int64_t(random() % std::uint64_t(end)); };
  for (const Slab& whole : whole_weights(model)) {
    std::vector<float> values(std::size_t(whole.elements));
    weights.get(whole, 0, values);
    for (int trial = 0; trial < 20; ++trial) {
      Slab slab = whole;
      std::int64_t slice = 1;
      for (std::size_t d = 0; d < slab.shape.size(); ++d) {
        slab.offset[d] = trial % 2 ? 0 : below(whole.shape[d]);
        slab.shape[d] -= slab.offset[d] + below(whole.shape[d] - slab.offset[d]);
        slice *= slab.shape[d];
      }
      slab.first = below(slice);
      slab.elements = 1 + below(slice - slab.first);
      const std::int64_t first = below(slab.elements);
      std::vector<float> part(std::size_t(slab.elements - first));
      weights.get(slab, first, part);
      for (std::size_t i = 0; i < part.size(); ++i) {
        std::int64_t rest = slab.first + first + std::int64_t(i), at = 0, stride = 1;
        for (std::size_t d = slab.shape.size(); d-- > 0;) {
          at += (slab.offset[d] + rest % slab.shape[d]) * stride;
          rest /= slab.shape[d];
          stride *= slab.global_shape[d];
        }
        ASSERT_EQ(part[i], values[std::size_t(at)]) << slab.name;
      }
    }
  }
}

/// The bytes of each tensor, as the files hold them.
std::map<std::string, test::RawTensor> raw_tensors(const fs::path& directory) {
  std::map<std::string, test::RawTensor> tensors;
  for (const auto& file : fs::directory_iterator(directory)) {
    if (file.path().extension() != ".safetensors") continue;
    const std::string bytes = test::content(file.path());
    const TensorFile header(file.path());
    for (const auto& [name, entry] : header.tensors())
      tensors[name] = {name, entry.dtype, entry.shape,
                       bytes.substr(std::size_t(entry.first_byte), std::size_t(entry.bytes))};
  }
  return tensors;
}

/// Through a checkpoint of three ranks and back, in small files or one.
TEST_P(Pretrained, ComesBackWithItsBytes) {
  const OwnFolder folder;
  comm::run_local(3, [&](comm::Communicator& world) {
    std::vector<Slab> slabs;
    for (Slab& slab : whole_weights(model))
      if (slab.elements % 3 == world.rank()) slabs.push_back(std::move(slab));
    io::CheckpointWriter writer(folder.path(), world);
    io::CheckpointInfo info;
    info.deck_text = "deck";
    writer.write(info, slabs, [&](std::size_t n, std::int64_t first, std::span<float> values) {
      weights.get(slabs[n], first, values);
      return values;
    });
    const io::CheckpointInfo checkpoint = io::find_checkpoint(world, folder.path()).value();
    io::CheckpointReader reader(checkpoint);
    for (const std::int64_t max_file_bytes : {1, 9000, 1 << 30}) {
      const fs::path out = folder / std::to_string(max_file_bytes);
      if (world.rank() == 0) fs::create_directory(out);
      world.barrier();
      const HuggingFaceWriter exported(out, model, weights.dtype(), max_file_bytes);
      for (int file = world.rank(); file < exported.num_files(); file += world.size())
        exported.write_file(file, [&](std::vector<Slab>& filled) { reader.fill(filled); });
      world.barrier();
      if (world.rank() == 0) exported.finish(directory / "config.json");
    }
  });
  const std::map<std::string, test::RawTensor> expected = raw_tensors(directory);
  for (const char* out : {"1", "9000", "1073741824"}) {
    EXPECT_TRUE(raw_tensors(folder / out) == expected) << out;
    EXPECT_NO_THROW(PretrainedWeights(folder / out, config_of(folder / out)));
  }
  EXPECT_TRUE(fs::exists(folder / "1073741824/model.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "1073741824/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(folder / "1/model.safetensors.index.json"));
}

TEST_P(Pretrained, AConfigIsKeptOrMadeAnew) {
  const OwnFolder folder;
  const HuggingFaceWriter exported(folder.path(), model, Dtype::f16, 1);
  const json original = json::parse(test::content(directory / "config.json"));
  exported.finish(directory / "config.json");
  json kept = json::parse(test::content(folder / "config.json"));
  EXPECT_EQ(kept.at("dtype"), "float16");
  kept.erase("torch_dtype");
  kept["dtype"] = original.at("dtype");
  EXPECT_EQ(kept, original);

  exported.finish("");
  EXPECT_EQ(model::text(config_of(folder.path())), model::text(model));
  // Another model's is not taken over.
  test::put(folder / "other.json", test::content(models / "mistral" / "config.json"));
  exported.finish(folder / "other.json");
  EXPECT_EQ(model::text(config_of(folder.path())), model::text(model));
}

TEST_P(Pretrained, SaysInWhatFormatItsValuesAre) {
  const json config = json::parse(test::content(directory / "config.json"));
  const std::string expected = config.at("dtype");
  EXPECT_EQ(weights.dtype(), expected == "float32"    ? Dtype::f32
                             : expected == "bfloat16" ? Dtype::bf16
                                                      : Dtype::f16);
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, Pretrained,
                         testing::Values("gpt2", "llama_grouped", "llama_tied", "mistral", "qwen2",
                                         "qwen3", "mixtral", "qwen3_moe", "qwen3_moe_dense",
                                         "qwen2_moe", "olmoe", "glm4_moe", "mistral_window",
                                         "qwen2_window", "gemma2", "gemma3", "neox",
                                         "neox_sequential", "falcon_one_key_head", "gpt_oss",
                                         "deepseek_v2", "deepseek_v3", "falcon_many_key_heads",
                                         "falcon_grouped"),
                         [](const auto& info) { return std::string(info.param); });

/// The most likely tokens behind a prompt, until the model is full.
std::vector<std::int32_t> greedy(const model::Config& model, const PretrainedWeights& weights,
                                 const std::vector<std::int32_t>& prompt) {
  const model::Config sizes =
      model::generating(model, {.tokens = 8, .sequences = 1, .blocks = 5, .block_tokens = 4});
  std::vector<std::int32_t> all = prompt;
  comm::run_local(1, [&](comm::Communicator& world) {
    engine::Generator generator(engine::generating(test::one_rank_plan(model, 1)), sizes, {},
                                world);
    std::vector<Slab> slabs = generator.slabs();
    weights.fill(slabs);
    const std::vector<std::int32_t> tables{3, 1, 4, 0, 2};
    for (int done = 0; int(all.size()) < model.seq_len;) {
      // The last token comes first, for it alone has logits.
      engine::GeneratorPass pass{.tables = tables};
      const int last = int(all.size()) - 1;
      pass.wanted = 1;
      pass.tokens.push_back({all.back(), 0, last});
      for (; done < last; ++done) pass.tokens.push_back({all[std::size_t(done)], 0, done});
      done = last + 1;
      const std::span<const float> logits = generator.run(pass);
      all.push_back(std::int32_t(std::ranges::max_element(logits) - logits.begin()));
    }
  });
  return {all.begin() + std::ssize(prompt), all.end()};
}

TEST(GptOss, MostLikelyTokensAreThoseOfTransformers) {
  const fs::path directory = models / "gpt_oss";
  const model::Config model = config_of(directory);
  const PretrainedWeights weights(directory, model);
  const json expected = json::parse(test::content(directory / "expected.json"));
  for (std::size_t i = 0; i < expected.at("greedy").size(); ++i) {
    auto prompt = expected.at("tokens").at(i).get<std::vector<std::int32_t>>();
    prompt.resize(5);
    EXPECT_EQ(greedy(model, weights, prompt),
              expected.at("greedy").at(i).get<std::vector<std::int32_t>>());
  }
}

// --- weights in 4 bits ---------------------------------------------------------------------------

class FourBits : public testing::TestWithParam<const char*> {
 protected:
  fs::path directory = models / GetParam();
  model::Config model = config_of(directory);
  PretrainedWeights weights{directory, model};
};

TEST_P(FourBits, GiveTheLossesOfDequantizedWeights) {
  const json expected = json::parse(test::content(directory / "expected.json"));
  const std::vector<double> found =
      losses(model, weights, expected.at("tokens").get<std::vector<std::vector<std::int32_t>>>());
  EXPECT_LE(test::largest_difference(found, expected.at("losses")), 1e-6);
  EXPECT_EQ(weights.dtype(), Dtype::f32);
}

TEST_P(FourBits, AnyPieceIsThatOfTheWhole) {
  std::mt19937 random(7);
  for (const Slab& whole : whole_weights(model)) {
    std::vector<float> values(std::size_t(whole.elements));
    weights.get(whole, 0, values);
    for (int trial = 0; trial < 20; ++trial) {
      const std::size_t first = random() % values.size(),
                        count = 1 + random() % (values.size() - first);
      std::vector<float> part(count);
      weights.get(whole, std::int64_t(first), part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + std::ptrdiff_t(first)));
    }
  }
}

// Values that are quantized again have the codes of the file, so that a base is that of its maker.
TEST_P(FourBits, HaveTheCodesOfTheFileAgain) {
  const std::string codes =
      raw_tensors(directory).at("model.layers.0.self_attn.o_proj.weight").bytes;
  for (const Slab& slab : whole_weights(model)) {
    if (slab.name != "layers.0.attention.out.weight") continue;
    std::vector<float> values(std::size_t(slab.elements));
    weights.get(slab, 0, values);
    ASSERT_EQ(values.size(), 2 * codes.size());
    std::string found;
    for (std::size_t i = 0; i < values.size(); i += quantized_block) {
      std::array<std::byte, block_bytes(Quantization::nf4)> block;
      quantize_block(Quantization::nf4,
                     std::span<const float, quantized_block>(&values[i], quantized_block),
                     block.data());
      found.append(reinterpret_cast<const char*>(block.data()) + sizeof(float),
                   std::size_t(code_bytes(Quantization::nf4)));
    }
    EXPECT_TRUE(found == codes);
  }
}

/// The refusal of the model with one tensor changed, or without it.
std::string refusal_with(const fs::path& directory, const model::Config& model,
                         const std::function<bool(test::RawTensor&)>& change) {
  const OwnFolder folder;
  std::vector<test::RawTensor> tensors;
  for (auto& [name, tensor] : raw_tensors(directory))
    if (change(tensor)) tensors.push_back(tensor);
  test::put(folder / "model.safetensors", test::safetensors(tensors));
  return test::refusal([&] { PretrainedWeights(folder.path(), model); });
}

TEST_P(FourBits, PartsThatDoNotFitAreRefused) {
  const std::string tensor = "model.layers.0.mlp.up_proj.weight";
  const std::string state = tensor + ".quant_state.bitsandbytes__nf4";
  for (const char* part : {".absmax", ".quant_map"})
    EXPECT_NE(
        refusal_with(directory, model, [&](const auto& one) { return one.name != tensor + part; })
            .find("lacks its part"),
        std::string::npos);
  const std::string nested = R"("nested_blocksize": 256, "nested_offset": 0.1, )";
  const auto with_state = [&](std::string text) {
    if (text.starts_with("{") && std::string(GetParam()) == "llama_nf4_nested")
      text.insert(1, nested);
    return refusal_with(directory, model, [&](test::RawTensor& one) {
      if (one.name == state) one.bytes = text, one.shape = {std::int64_t(text.size())};
      return true;
    });
  };
  EXPECT_NE(with_state(R"({"shape": [128, 64], "dtype": "float32", "blocksize": 32})")
                .find("must have 256 values of "),
            std::string::npos);
  EXPECT_NE(with_state(R"({"shape": [128, 66], "dtype": "float32", "blocksize": 64})")
                .find("must have 4224 values of U8, found 4096"),
            std::string::npos);
  EXPECT_NE(with_state(R"({"shape": [64, 128], "dtype": "float32", "blocksize": 64})")
                .find("has shape [64, 128]"),
            std::string::npos);
  for (const char* text :
       {"", "[", "{}", R"({"shape": [4000000000000, 4000000000000]})", R"({"shape": [0, 64]})",
        R"({"shape": "all"})", R"({"shape": [128, 64], "dtype": "float32", "blocksize": 0})",
        R"({"shape": [128, 64], "dtype": "float32", "blocksize": 63})"})
    EXPECT_NE(with_state(text).find("quant_state"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, FourBits, testing::Values("llama_nf4", "llama_nf4_nested"),
                         [](const auto& info) { return std::string(info.param); });

// Written by the Transformers library, which makes bf16 of the codes; only experts are in codes.
TEST(Mxfp4, GivesTheLossesOfDequantizedWeights) {
  const fs::path directory = models / "gpt_oss_mxfp4";
  const model::Config model = config_of(directory);
  const PretrainedWeights weights(directory, model);
  const json expected = json::parse(test::content(directory / "expected.json"));
  const std::vector<double> found =
      losses(model, weights, expected.at("tokens").get<std::vector<std::vector<std::int32_t>>>());
  EXPECT_LE(test::largest_difference(found, expected.at("losses")), 1e-6);
  EXPECT_EQ(weights.dtype(), Dtype::bf16);
}

// Values are written in bf16, so the file must not announce codes.
TEST(Mxfp4, AWrittenConfigHasNoCodes) {
  const OwnFolder folder;
  const fs::path directory = models / "gpt_oss_mxfp4";
  const HuggingFaceWriter exported(folder.path(), config_of(directory), Dtype::bf16, 1);
  exported.finish(directory / "config.json");
  json expected = json::parse(test::content(directory / "config.json"));
  ASSERT_EQ(expected.erase("quantization_config"), 1u);
  expected["torch_dtype"] = "bfloat16";
  EXPECT_EQ(json::parse(test::content(folder / "config.json")), expected);
}

// All codes, at any place of a block.
TEST(Mxfp4, ValuesAreThoseOfTheirCodes) {
  const fs::path directory = models / "gpt_oss_mxfp4";
  const model::Config model = config_of(directory);
  const std::map<std::string, test::RawTensor> raw = raw_tensors(directory);
  const PretrainedWeights weights(directory, model);
  constexpr float sizes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  std::mt19937 random(7);
  for (const Slab& slab : whole_weights(model)) {
    const bool in = slab.name == "layers.1.mlp.experts.in.weight";
    if (!in && slab.name != "layers.1.mlp.experts.out.weight") continue;
    const std::string name =
        std::string("model.layers.1.mlp.experts.") + (in ? "gate_up_proj" : "down_proj");
    const std::string &codes = raw.at(name + "_blocks").bytes,
                      &exponents = raw.at(name + "_scales").bytes;
    std::vector<float> values(std::size_t(slab.elements));
    weights.get(slab, 0, values);
    const std::size_t columns = std::size_t(slab.shape.back());
    const std::size_t inner = std::size_t(model.expert_ffn_size);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::size_t row = i / columns;
      if (in) {  // ours are all gates, then all values; theirs take turns
        const std::size_t expert = row / (2 * inner), part = row / inner % 2;
        row = expert * 2 * inner + 2 * (row % inner) + part;
      }
      const std::size_t at = row * columns + i % columns;
      const int pair = std::uint8_t(codes[at / 2]), code = at % 2 == 0 ? pair % 16 : pair / 16;
      const float size = std::ldexp(sizes[code % 8], std::uint8_t(exponents[at / 32]) - 127);
      ASSERT_EQ(values[i], code < 8 ? size : -size) << slab.name << " " << i;
    }
    for (int trial = 0; trial < 50; ++trial) {
      const std::size_t first = random() % values.size(),
                        count = 1 + random() % (values.size() - first);
      std::vector<float> part(count);
      weights.get(slab, std::int64_t(first), part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + std::ptrdiff_t(first)));
    }
  }
}

TEST(Mxfp4, PartsThatDoNotFitAreRefused) {
  const fs::path directory = models / "gpt_oss_mxfp4";
  const model::Config model = config_of(directory);
  const std::string blocks = "model.layers.0.mlp.experts.gate_up_proj_blocks",
                    scales = "model.layers.0.mlp.experts.gate_up_proj_scales";
  EXPECT_NE(refusal_with(directory, model, [&](const auto& one) { return one.name != scales; })
                .find("lacks its part \"" + scales + "\""),
            std::string::npos);
  const auto changed = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                           const char* dtype = "U8") {
    return refusal_with(directory, model, [&](test::RawTensor& one) {
      if (one.name == name) one.shape = shape, one.dtype = dtype;
      return true;
    });
  };
  const std::string fit = "of MXFP4 weights must be U8 [..., 16] with scales U8 [...], found";
  for (const std::string& said :
       {changed(blocks, {3, 64, 1, 32}), changed(blocks, {3 * 64 * 2 * 16}), changed(blocks, {}),
        changed(scales, {3, 64, 1, 2}), changed(scales, {3, 64, 2}, "I8"),
        changed(blocks, {3, 64, 2, 16}, "I8")})
    EXPECT_NE(said.find(said.find("bytes") == std::string::npos ? fit : "bytes"), std::string::npos)
        << said;
  EXPECT_NE(refusal_with(directory, model,
                         [&](test::RawTensor& one) {
                           if (one.name == blocks) one.shape = {3, 32, 4, 16};
                           if (one.name == scales) one.shape = {3, 32, 4};
                           return true;
                         })
                .find("has shape [3, 32, 128], the model needs [3, 64, 64]"),
            std::string::npos);
}

// Written by the Transformers library, which multiplies codes by scales.
TEST(EightBits, GivesTheLossesOfDequantizedWeights) {
  const fs::path directory = models / "qwen3_moe_fp8";
  const model::Config model = config_of(directory);
  const json expected = json::parse(test::content(directory / "expected.json"));
  const std::vector<double> found =
      losses(model, PretrainedWeights(directory, model),
             expected.at("tokens").get<std::vector<std::vector<std::int32_t>>>());
  EXPECT_LE(test::largest_difference(found, expected.at("losses")), 1e-6);
}

/// The model in 8 bits, where one matrix and its scales are others.
class EightBitMatrix : public testing::Test {
 protected:
  static constexpr const char* name = "model.layers.1.self_attn.q_proj.weight";
  static constexpr std::int64_t rows = 32, columns = 48;

  EightBitMatrix() {
    fs::copy(directory / "config.json", folder_ / "config.json");
    std::mt19937 random(3);
    for (std::int64_t i = 0; i < rows * columns; ++i) codes_ += char(random() % 0x7f);
  }

  /// @param bytes  of the scales
  void write(const std::string& suffix, const char* dtype, const std::vector<std::int64_t>& shape,
             const std::string& bytes) {
    std::vector<test::RawTensor> tensors;
    for (auto& [tensor, raw] : raw_tensors(directory)) {
      if (tensor == name) raw.bytes = codes_;
      if (tensor != name + std::string("_scale_inv")) tensors.push_back(raw);
    }
    tensors.push_back({name + suffix, dtype, shape, bytes});
    tensors.push_back({"model.layers.1.self_attn.q_proj.input_scale", "F32", {}, "    "});
    test::put(folder_ / "model.safetensors", test::safetensors(tensors));
  }
  void write(const std::string& suffix, const std::vector<std::int64_t>& shape) {
    std::mt19937 random(5);
    scales_.clear();
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) scales_.push_back(float(random() % 1000) / 999.0f);
    const auto* bytes = reinterpret_cast<const char*>(scales_.data());
    write(suffix, "F32", shape, {bytes, scales_.size() * sizeof(float)});
  }
  void declare(const json& blocks) {
    json config = json::parse(test::content(folder_ / "config.json"));
    config["quantization_config"]["weight_block_size"] = blocks;
    test::put(folder_ / "config.json", config.dump());
  }
  std::string refusal() {
    return test::refusal([&] { PretrainedWeights(folder_.path(), config_of(folder_.path())); });
  }

  /// @param scale_of  the scale of a row and a column
  void expect_values(const std::function<float(std::int64_t, std::int64_t)>& scale_of) {
    const model::Config model = config_of(folder_.path());
    const PretrainedWeights weights(folder_.path(), model);
    const std::vector<Slab> slabs = whole_weights(model);
    const auto slab = std::ranges::find(slabs, "layers.1.attention.q.weight", &Slab::name);
    ASSERT_NE(slab, slabs.end());
    std::vector<float> values(std::size_t(rows * columns));
    weights.get(*slab, 0, values);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const int code = codes_[std::size_t(i)], exponent = code >> 3, fraction = code & 7;
      const float value = exponent == 0 ? std::ldexp(float(fraction), -9)
                                        : std::ldexp(float(8 + fraction), exponent - 10);
      ASSERT_EQ(values[std::size_t(i)], value * scale_of(i / columns, i % columns)) << i;
    }
  }

  const fs::path directory = models / "qwen3_moe_fp8";
  const OwnFolder folder_;
  std::string codes_;
  std::vector<float> scales_;
};

TEST_F(EightBitMatrix, ABlockHasAScale) {
  write("_scale_inv", {4, 3});
  expect_values(
      [&](auto row, auto column) { return scales_[std::size_t(row / 8 * 3 + column / 16)]; });
}

// DeepSeek-V3's latent keys have 576 rows in blocks of 128.
TEST_F(EightBitMatrix, TheLastBlocksMayBeCut) {
  declare({7, 20});  // the other matrices have blocks of 8 x 16, which divide them
  write("_scale_inv", {5, 3});
  expect_values(
      [&](auto row, auto column) { return scales_[std::size_t(row / 7 * 3 + column / 20)]; });
}

TEST_F(EightBitMatrix, ARowHasAScaleOrAllHaveOne) {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{rows, 1}, {rows}}) {
    write("_scale", shape);
    expect_values([&](auto row, auto) { return scales_[std::size_t(row)]; });
  }
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1}, {}, {1, 1}}) {
    write("_scale", shape);
    expect_values([&](auto, auto) { return scales_[0]; });
  }
}

TEST_F(EightBitMatrix, ScalesMayBePowersOfTwo) {
  std::string exponents;
  for (int i = 0; i < 12; ++i) exponents += char(120 + i);
  write("_scale_inv", "F8_E8M0", {4, 3}, exponents);
  expect_values(
      [&](auto row, auto column) { return std::ldexp(1.0f, int(row / 8 * 3 + column / 16) - 7); });
}

TEST_F(EightBitMatrix, ScalesThatDoNotFitAreRefused) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{5, 3}, {0, 3}, {33}, {2}, {1, 4, 3}, {64, 48}}) {
    write("_scale_inv", shape);
    EXPECT_NE(refusal().find("but its scales \"" + std::string(name) + "_scale_inv\" have shape"),
              std::string::npos)
        << refusal();
  }
  write("_scale", "I8", {4, 3}, std::string(12, ' '));
  EXPECT_NE(refusal().find("has dtype I8"), std::string::npos) << refusal();
  write("_scale_inv", {4, 3});
  for (const json& blocks : {json{0, 0}, json{-1, 4}, json{8}, json("8"), json{1e30, 2}}) {
    declare(blocks);
    EXPECT_NE(refusal().find("'weight_block_size' must be a list of two sizes"), std::string::npos)
        << blocks;
  }
}

TEST_F(EightBitMatrix, CodesWithoutScalesAreRefused) {
  const std::string scales = std::string(name) + "_scale_inv";
  EXPECT_NE(refusal_with(directory, config_of(directory),
                         [&](const auto& one) { return one.name != scales; })
                .find(std::string(name) + "\" has dtype F8_E4M3"),
            std::string::npos);
}

// --- files that the test writes
// -------------------------------------------------------------------

/// A llama of one layer, tensor by tensor as its files have them.
struct Files {
  std::vector<test::RawTensor> tensors;

  using Shape = std::vector<std::int64_t>;
  using Shapes = std::vector<std::pair<std::string, Shape>>;

  static Files llama(bool head) {
    return with_mlp({{"gate_proj", {5, 6}}, {"up_proj", {5, 6}}, {"down_proj", {6, 5}}}, "mlp.",
                    head);
  }
  /// Two experts, as Mixtral's.
  static Files mixture() {
    return with_mlp({{"gate", {2, 6}},
                     {"experts.0.w1", {5, 6}},
                     {"experts.0.w2", {6, 5}},
                     {"experts.0.w3", {5, 6}},
                     {"experts.1.w1", {5, 6}},
                     {"experts.1.w2", {6, 5}},
                     {"experts.1.w3", {5, 6}}},
                    "block_sparse_moe.", true);
  }
  static Files with_mlp(const Shapes& mlp, const std::string& module, bool head) {
    Files files;
    files.add("model.embed_tokens.weight", {11, 6});
    const std::string layer = "model.layers.0.";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      files.add(layer + norm + ".weight", {6});
    files.add(layer + "self_attn.q_proj.weight", {8, 6});
    files.add(layer + "self_attn.k_proj.weight", {4, 6});
    files.add(layer + "self_attn.v_proj.weight", {4, 6});
    files.add(layer + "self_attn.o_proj.weight", {6, 8});
    for (const auto& [name, shape] : mlp) files.add(layer + module + name + ".weight", shape);
    files.add("model.norm.weight", {6});
    if (head) files.add("lm_head.weight", {11, 6});
    return files;
  }

  /// Values are the tensor's number and their own.
  void add(const std::string& name, const Shape& shape) {
    std::size_t elements = 1;
    for (const std::int64_t extent : shape) elements *= std::size_t(extent);
    std::string bytes;
    for (std::size_t i = 0; i < elements; ++i) {
      const float value = float(1000 * tensors.size() + i);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    tensors.push_back({name, "F32", shape, bytes});
  }
  test::RawTensor& at(const std::string& name) {
    return *std::ranges::find(tensors, name, &test::RawTensor::name);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const test::RawTensor& tensor) { return tensor.name == name; });
  }
};

model::Config small_llama(bool tied) {
  return {.family = &model::family("llama"),
          .num_layers = 1,
          .hidden_size = 6,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_size = 2,
          .ffn_size = 5,
          .seq_len = 8,
          .vocab_size = 11,
          .tied_head = tied,
          .qkv_bias = false,
          .linear_bias = false};
}

model::Config small_mixture() {
  model::Config model = small_llama(false);
  model.num_experts = model.experts_per_token = 2;
  model.expert_ffn_size = 5;
  return model;
}

class ModelFiles : public testing::Test {
 protected:
  void write(const Files& files) const {
    test::put(folder / "model.safetensors", test::safetensors(files.tensors));
  }
  /// Two files and their index.
  void write_sharded(const Files& files, const std::string& second = "b.safetensors") const {
    const auto middle = files.tensors.begin() + 5;
    test::put(folder / "a.safetensors", test::safetensors({files.tensors.begin(), middle}));
    test::put(folder / "b.safetensors", test::safetensors({middle, files.tensors.end()}));
    json map;
    for (std::size_t i = 0; i < files.tensors.size(); ++i)
      map[files.tensors[i].name] = i < 5 ? "a.safetensors" : second;
    test::put(folder / "model.safetensors.index.json", json{{"weight_map", map}}.dump());
  }
  std::string refused(bool tied = false) const {
    return test::refusal([&] { PretrainedWeights(folder.path(), small_llama(tied)); });
  }
  std::vector<float> values(const PretrainedWeights& weights, const std::string& name,
                            bool tied = false) const {
    for (const Slab& slab : whole_weights(small_llama(tied)))
      if (slab.name == name) {
        std::vector<float> values(std::size_t(slab.elements));
        weights.get(slab, 0, values);
        return values;
      }
    return {};
  }
  void expect_mixture_refused(const Files& files, const std::string& says) const {
    write(files);
    const std::string said =
        test::refusal([&] { PretrainedWeights(folder.path(), small_mixture()); });
    EXPECT_NE(said.find(says), std::string::npos) << said;
  }
  void expect_refusal(const std::string& says, bool tied = false) const {
    const std::string said = refused(tied);
    EXPECT_NE(said.find(says), std::string::npos) << said;
  }

  const OwnFolder folder;
};

TEST_F(ModelFiles, KeysAndValuesLieBehindEachOther) {
  write(Files::llama(true));
  const PretrainedWeights weights(folder.path(), small_llama(false));
  const std::vector<float> kv = values(weights, "layers.0.attention.kv.weight");
  ASSERT_EQ(kv.size(), 48u);
  EXPECT_EQ(kv[0], 4000.0f);
  EXPECT_EQ(kv[24], 5000.0f);
  EXPECT_EQ(values(weights, "layers.0.attention.q.weight")[7], 3007.0f);
  EXPECT_EQ(values(weights, "layers.0.mlp.in.weight")[31], 8001.0f);
  EXPECT_EQ(values(weights, "head.weight")[5], 11005.0f);
}

TEST_F(ModelFiles, ShardsAreOneModel) {
  write_sharded(Files::llama(true));
  const PretrainedWeights weights(folder.path(), small_llama(false));
  EXPECT_EQ(values(weights, "layers.0.attention.kv.weight")[24], 5000.0f);
}

TEST_F(ModelFiles, NamesMayLackTheModelsPrefixAndBuffersDoNotCount) {
  Files files = Files::llama(true);
  for (test::RawTensor& tensor : files.tensors)
    if (tensor.name.starts_with("model.")) tensor.name.erase(0, 6);
  files.add("layers.0.self_attn.rotary_emb.inv_freq", {1});
  write(files);
  const PretrainedWeights weights(folder.path(), small_llama(false));
  EXPECT_EQ(values(weights, "embedding.token")[3], 3.0f);
  EXPECT_EQ(values(weights, "head.weight")[5], 11005.0f);
}

TEST_F(ModelFiles, NamesMayHaveMoreBeforeThem) {
  for (const std::string before : {"_orig_mod.", "module.", "a.b."})
    for (const bool head_too : {true, false}) {
      Files files = Files::llama(true);
      for (test::RawTensor& tensor : files.tensors)
        if (head_too || tensor.name != "lm_head.weight") tensor.name = before + tensor.name;
      write(files);
      const PretrainedWeights weights(folder.path(), small_llama(false));
      EXPECT_EQ(values(weights, "embedding.token")[3], 3.0f);
      EXPECT_EQ(values(weights, "head.weight")[5], 11005.0f);
    }
  Files files = Files::llama(true);
  for (test::RawTensor& tensor : files.tensors)
    if (tensor.name.starts_with("model.")) tensor.name.insert(6, "language_model.");
  write(files);
  EXPECT_EQ(values(PretrainedWeights(folder.path(), small_llama(false)), "head.weight")[5],
            11005.0f);
  // Not if some names do not have it: then some that are there are shown.
  files.at("model.language_model.norm.weight").name = "model.norm.weight";
  write(files);
  expect_refusal(
      R"(lacks 1 tensor of the model: "model.language_model.norm.weight"; others are there: )"
      R"("model.norm.weight": )");
}

/// Norms in fp32 beside matrices in bf16, through a checkpoint.
TEST_F(ModelFiles, NumberFormatsComeBackAsTheyWere) {
  Files files = Files::llama(true);
  for (test::RawTensor& tensor : files.tensors) {
    if (tensor.name.find("norm") != std::string::npos) continue;
    tensor.dtype = "BF16";
    tensor.bytes.resize(tensor.bytes.size() / 2);
  }
  write(files);
  model::Config model = small_llama(false);
  model.window = 5;  // a Mistral, whose heads need not divide its hidden_size
  const PretrainedWeights weights(folder.path(), model);
  std::vector<Slab> slabs = whole_weights(model);
  for (Slab& slab : slabs)
    if (weights.dtype(slab.name) == Dtype::bf16) slab.storage = model::Precision::bf16;
  fs::create_directory(folder / "run");
  comm::run_local(1, [&](comm::Communicator& world) {
    io::CheckpointInfo info;
    info.deck_text = "deck";
    io::CheckpointWriter(folder / "run", world)
        .write(info, slabs, [&](std::size_t n, std::int64_t first, std::span<float> room) {
          weights.get(slabs[n], first, room);
          return room;
        });
    const io::CheckpointInfo found = io::find_checkpoint(world, folder / "run").value();
    io::CheckpointReader reader(found);
    std::map<std::string, Dtype> own;
    for (const Slab& slab : slabs) {
      EXPECT_EQ(found.formats.at(slab.name), slab.storage) << slab.name;
      if (slab.storage == model::Precision::fp32) own[slab.name] = Dtype::f32;
    }
    fs::create_directory(folder / "out");
    const HuggingFaceWriter out(folder / "out", model, Dtype::bf16, 1 << 30, own);
    out.write_file(0, [&](std::vector<Slab>& filled) { reader.fill(filled); });
  });
  EXPECT_TRUE(raw_tensors(folder / "out") == raw_tensors(folder.path()));
}

TEST_F(ModelFiles, OtherFormatsThanSafetensorsAreNamed) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    test::put(folder / name, "");
    EXPECT_TRUE(is_hugging_face(folder.path()));
    expect_refusal(fmt::format("format: found {}, expected model.safetensors or", name));
    fs::remove(folder / name);
  }
}

TEST_F(ModelFiles, ATiedHeadMayBeThereIfItIsTheTable) {
  Files files = Files::llama(true);
  files.at("lm_head.weight").bytes = files.at("model.embed_tokens.weight").bytes;
  write(files);
  EXPECT_NO_THROW(PretrainedWeights(folder.path(), small_llama(true)).require_tied());
  files.at("lm_head.weight").bytes[200] ^= 1;
  write(files);
  const std::string said =
      test::refusal([&] { PretrainedWeights(folder.path(), small_llama(true)).require_tied(); });
  EXPECT_NE(said.find("set tied_head = false"), std::string::npos) << said;
}

TEST_F(ModelFiles, MissingTensorsAreNamed) {
  Files files = Files::llama(true);
  files.remove("model.layers.0.mlp.up_proj.weight");
  files.remove("model.norm.weight");
  write(files);
  expect_refusal(
      R"(lacks 2 tensors of the model: "model.layers.0.mlp.up_proj.weight", "model.norm.weight": )");
}

TEST_F(ModelFiles, AMissingHeadMayBeTheTable) {
  write(Files::llama(false));
  expect_refusal("lacks 1 tensor of the model: \"lm_head.weight\"");
  expect_refusal("with tied_head = true the head is the token table");
  EXPECT_NO_THROW(PretrainedWeights(folder.path(), small_llama(true)));
}

TEST_F(ModelFiles, TensorsTooManyAreNamed) {
  Files files = Files::llama(true);
  files.add("model.layers.0.self_attn.q_norm.weight", {2});
  write(files);
  expect_refusal(
      R"(has 1 tensor that the model has no place for: "model.layers.0.self_attn.q_norm)");
}

TEST_F(ModelFiles, TensorsOfAnExpertAreNamed) {
  const std::string moe = "model.layers.0.block_sparse_moe.";
  Files files = Files::mixture();
  write(files);
  EXPECT_NO_THROW(PretrainedWeights(folder.path(), small_mixture()));
  files.at(moe + "experts.1.w2.weight").shape = {5, 6};
  expect_mixture_refused(
      files, R"(experts.1.w2.weight" has shape [5, 6], the model needs [6, 5]: config.json)");
  files = Files::mixture();
  files.remove(moe + "experts.0.w3.weight");
  expect_mixture_refused(files, "lacks 1 tensor of the model: \"" + moe + "experts.0.w3.weight\"");
  files = Files::mixture();
  files.add(moe + "experts.2.w1.weight", {5, 6});
  expect_mixture_refused(
      files, "has 1 tensor that the model has no place for: \"" + moe + "experts.2.w1.weight\"");
  // Neither is a dense model's file that of one with experts.
  expect_mixture_refused(Files::llama(true), "lacks 7 tensors of the model: \"" + moe);
}

/// A file's experts in one tensor for each kind of product, as the library has them in memory.
std::string with_stacked_experts(std::map<std::string, test::RawTensor> tensors,
                                 const model::Config& model, const std::string& module,
                                 const std::array<std::string, 3>& gate_up_down) {
  const auto take = [&](const std::string& name) {
    return std::move(tensors.extract(name).mapped());
  };
  std::vector<test::RawTensor> all;
  for (int layer = model.first_dense_layers; layer < model.num_layers; ++layer) {
    const std::string before = fmt::format("model.layers.{}.", layer);
    all.push_back(take(before + module + "gate.weight"));
    const std::string dtype = all.back().dtype;
    all.back().name = before + "mlp.gate.weight";
    std::string gate_up, down;
    for (int expert = 0; expert < model.num_experts; ++expert) {
      const auto bytes = [&](const std::string& name) {
        return take(fmt::format("{}{}experts.{}.{}.weight", before, module, expert, name)).bytes;
      };
      gate_up += bytes(gate_up_down[0]) + bytes(gate_up_down[1]);
      down += bytes(gate_up_down[2]);
    }
    const std::int64_t experts = model.num_experts, inner = model.expert_ffn_size;
    all.push_back({before + "mlp.experts.gate_up_proj",
                   dtype,
                   {experts, 2 * inner, model.hidden_size},
                   gate_up});
    all.push_back(
        {before + "mlp.experts.down_proj", dtype, {experts, model.hidden_size, inner}, down});
  }
  for (const auto& [name, tensor] : tensors) all.push_back(tensor);
  return test::safetensors(all);
}

TEST_F(ModelFiles, MayHaveStackedExperts) {
  const auto check = [&](const char* name, const std::string& module,
                         const std::array<std::string, 3>& gate_up_down) {
    const model::Config model = config_of(models / name);
    const PretrainedWeights expected(models / name, model);
    const std::string file =
        with_stacked_experts(raw_tensors(models / name), model, module, gate_up_down);
    test::put(folder / "model.safetensors", file);
    const PretrainedWeights found(folder.path(), model);
    EXPECT_EQ(found.dtype(), expected.dtype());
    for (const Slab& slab : whole_weights(model)) {
      std::vector<float> ours(std::size_t(slab.elements)), theirs(ours.size());
      found.get(slab, 0, ours);
      expected.get(slab, 0, theirs);
      EXPECT_EQ(ours, theirs) << slab.name;
    }
    model::Config more = model;
    ++more.num_experts;
    const std::string said = test::refusal([&] { PretrainedWeights(folder.path(), more); });
    EXPECT_NE(said.find("has shape ["), std::string::npos) << said;
  };
  check("mixtral", "block_sparse_moe.", {"w1", "w3", "w2"});
  for (const char* name : {"qwen3_moe", "qwen3_moe_dense", "qwen2_moe", "olmoe", "glm4_moe",
                           "deepseek_v2", "deepseek_v3"})
    check(name, "mlp.", {"gate_proj", "up_proj", "down_proj"});
}

// The Transformers library leaves out layers that predict later tokens, too.
TEST_F(ModelFiles, MayHaveLayersForLaterTokens) {
  const model::Config model = config_of(models / "glm4_moe");
  std::map<std::string, test::RawTensor> tensors = raw_tensors(models / "glm4_moe");
  const auto add = [&](const std::string& name) {
    tensors[name] = {name, "F32", {2}, std::string(8, '\0')};
  };
  const auto written = [&] {
    std::vector<test::RawTensor> all;
    for (const auto& [name, tensor] : tensors) all.push_back(tensor);
    test::put(folder / "model.safetensors", test::safetensors(all));
  };
  add("model.layers.3.eh_proj.weight");
  add("model.layers.3.mlp.gate.e_score_correction_bias");
  add("model.layers.3.embed_tokens.weight");
  written();
  EXPECT_NO_THROW(PretrainedWeights(folder.path(), model));
  add("model.layers.4.enorm.weight");
  written();
  const std::string said = test::refusal([&] { PretrainedWeights(folder.path(), model); });
  EXPECT_NE(said.find("has no place for: \"model.layers.4.enorm.weight\""), std::string::npos)
      << said;
}

TEST_F(ModelFiles, OtherShapesAreNamed) {
  Files files = Files::llama(true);
  files.at("model.layers.0.self_attn.o_proj.weight").shape = {8, 6};
  write(files);
  expect_refusal(
      R"(tensor "model.layers.0.self_attn.o_proj.weight" has shape [8, 6], the model needs [6, 8])");
}

TEST_F(ModelFiles, OtherFormatsOfValuesAreNamed) {
  Files files = Files::llama(true);
  files.at("model.norm.weight").dtype = "I32";
  write(files);
  expect_refusal(R"(tensor "model.norm.weight" has dtype I32: only F32, BF16, F16)");
}

TEST_F(ModelFiles, NoFilesAtAll) { expect_refusal("holds neither model.safetensors nor"); }

TEST_F(ModelFiles, AnIndexMustNotLeadOutOfTheDirectory) {
  for (const char* file : {"../b.safetensors", "/b.safetensors", "b.bin", ""}) {
    write_sharded(Files::llama(true), file);
    expect_refusal("must lie in a *.safetensors file beside the index");
  }
}

TEST_F(ModelFiles, AnIndexThatDoesNotFitItsFiles) {
  write_sharded(Files::llama(true), "a.safetensors");
  expect_refusal("a.safetensors: holds no tensor \"");
  write_sharded(Files::llama(true), "c.safetensors");
  expect_refusal("c.safetensors: cannot be opened");
  test::put(folder / "model.safetensors.index.json", R"({"weight_map": []})");
  expect_refusal("needs a 'weight_map'");
  test::put(folder / "model.safetensors.index.json", "{");
  expect_refusal("is not JSON");
}

TEST_F(ModelFiles, ATensorInTwoFilesIsRefused) {
  Files files = Files::llama(true);
  write_sharded(files);
  std::vector<test::RawTensor> second(files.tensors.begin() + 4, files.tensors.end());
  test::put(folder / "b.safetensors", test::safetensors(second));
  expect_refusal("b.safetensors: has tensor \"model.layers.0.self_attn.k_proj.weight\", which ");
}

/// More positions than a model has are no fault; fewer are.
TEST(LearnedPositions, MayBeMoreThanTheModelHas) {
  const model::Config whole = config_of(models / "gpt2");
  model::Config shorter = whole, longer = whole;
  shorter.seq_len = 7;
  longer.seq_len = 20;
  const PretrainedWeights weights(models / "gpt2", whole), part(models / "gpt2", shorter);
  std::vector<float> all(std::size_t(whole.seq_len * whole.hidden_size)), some(7 * 45);
  weights.get(whole_weights(whole)[1], 0, all);
  part.get(whole_weights(shorter)[1], 0, some);
  EXPECT_EQ(std::memcmp(all.data(), some.data(), some.size() * sizeof(float)), 0);
  const std::string said = test::refusal([&] { PretrainedWeights(models / "gpt2", longer); });
  EXPECT_NE(said.find("seq_len must be at most the positions that there are"), std::string::npos);
}

TEST(HuggingFaceConfig, ModelsWithoutCounterpartAreRefused) {
  const OwnFolder folder;
  const auto refused = [&](const model::Config& model) {
    return test::refusal([&] { HuggingFaceWriter(folder.path(), model, Dtype::f32, 1 << 20); });
  };
  model::Config gpt = config_of(models / "gpt2"), falcon = config_of(models / "falcon_grouped");
  gpt.qkv_bias = false;
  EXPECT_NE(refused(gpt).find("GPT-2 has biases of queries"), std::string::npos);
  falcon.linear_bias = false;
  EXPECT_NE(refused(falcon).find("biases all or none"), std::string::npos);
}

}  // namespace
}  // namespace brume::interop
