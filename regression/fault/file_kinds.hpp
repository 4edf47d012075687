/// @file Every kind of file, and of text, that others give to the program: right ones of a kind,
/// and what reads them. Who damages them has them from here.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "chat/template.hpp"
#include "checkpoint_samples.hpp"
#include "data/sampler.hpp"
#include "data/token_file.hpp"
#include "data/token_writer.hpp"
#include "deck/deck.hpp"
#include "foreign_token_files.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "hugging_face_files.hpp"
#include "interop/hugging_face.hpp"
#include "interop/megatron.hpp"
#include "interop/mist.hpp"
#include "interop/safetensors.hpp"
#include "interop/tokens.hpp"
#include "io/reference.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume::test {

struct FileKind {
  std::string name;
  std::vector<std::string> seeds;                      ///< contents that are right
  std::function<void(const std::string& bytes)> read;  ///< throws Error where it refuses them
};

/// Makes kinds; what they read lies in `folder`, which outlives them.
class FileKinds {
 public:
  explicit FileKinds(const fs::path& folder) : folder_(folder) {}

  std::vector<FileKind> all() {
    add("deck", {shipped("decks/tiny.toml")}, [](const std::string& text) {
      const deck::Deck deck = deck::parse(text, "deck.toml");
      model::config(deck.model, deck.training.precision);
      hardware::cluster(deck.cluster);
    });
    add("override",
        {"training.steps=10", "search.dp=[1, 2]", "data.train=\"a\"", "search.zero_levels=[0, 3]"},
        [](const std::string& text) {
          const deck::Deck deck = deck::parse(shipped("decks/tiny.toml"), "deck.toml", {text});
          model::config(deck.model, deck.training.precision);
        });
    add_plan();
    add("profile", {shipped("decks/profile.toml")}, [](const std::string& text) {
      hardware::parse_machine(text, "profile.toml", tiny().cluster);
    });
    add_manifest();
    add_hugging_face();
    add_tokenizers();
    add_tokens();
    add_chats();
    add_file("megatron", "train.sh", {megatron_script}, [](const fs::path& path) {
      interop::read_megatron(path.string(), {"cluster.machine=\"dgx-a100-80\""});
    });
    add_file("mist", "mist.yaml", {shipped("decks/mist-small-base.yaml")},
             [](const fs::path& path) { interop::read_mist_configuration(path.string()); });
    return std::move(kinds_);
  }

 private:
  static std::string shipped(const std::string& name) {
    return content(std::string(BRUME_REGRESSION_DIR "/") + name);
  }
  static deck::Deck tiny() { return deck::load(BRUME_REGRESSION_DIR "/decks/tiny.toml"); }

  void add(const std::string& name, std::vector<std::string> seeds,
           std::function<void(const std::string&)> read) {
    kinds_.push_back({name, std::move(seeds), std::move(read)});
  }

  /// What is read by what opens a file of this name.
  void add_file(const std::string& name, const std::string& file, std::vector<std::string> seeds,
                std::function<void(const fs::path&)> open) {
    fs::create_directories(folder_ / name);
    add(name, std::move(seeds),
        [path = folder_ / name / file, open = std::move(open)](const std::string& bytes) {
          put(path, bytes);
          open(path);
        });
  }

  void add_plan() {
    const deck::Deck deck = tiny();
    const model::Config model = model::config(deck.model, deck.training.precision);
    const hardware::Cluster cluster = hardware::cluster(deck.cluster);
    plan::Plan plan{.global_batch = 8, .microbatches = 2, .stages = {}};
    for (const int first_layer : {0, 2})
      plan.stages.push_back({.first_layer = first_layer,
                             .layers = 2,
                             .nodes = 1,
                             .devices_per_node = 2,
                             .microbatch = 2,
                             .dp = 2,
                             .tp = 1});
    add("plan", {plan::text(plan)}, [model, cluster](const std::string& text) {
      plan::check(plan::parse(text, "plan.toml"), model, cluster);
    });
  }

  /// The hash in a manifest stops accidents: whoever means harm makes it fit.
  static std::string with_its_hash(const std::string& text) {
    static constexpr const char* key = "manifest_xxh3_128";
    nlohmann::json object = nlohmann::json::parse(
        text, [](int level, auto, auto&) { return level < 100; }, false);
    if (!object.is_object() || !object.contains(key)) return text;
    object.erase(key);
    const std::string bytes = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    object[key] = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
    return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void add_manifest() {
    io::save(folder_ / "run", {1});
    const fs::path checkpoint = folder_ / "run/checkpoints/step-1";
    add("manifest", {content(checkpoint / "manifest.json")}, [checkpoint](const std::string& text) {
      put(checkpoint / "manifest.json", with_its_hash(text));
      io::CheckpointInfo info;
      info.step = 1;
      info.directory = checkpoint;
      info.files = {"rank-0.h5", "rank-1.h5"};
      io::Memory memory(0, io::rows);
      io::load_slabs(info, memory.slabs);
    });
  }

  void add_hugging_face() {
    std::vector<std::string> configurations;
    for (const char* model : {"llama_grouped", "mistral_window", "falcon_grouped", "gemma3"})
      configurations.push_back(shipped(std::string("data/hugging_face/") + model + "/config.json"));
    add_file("config", "config.json", configurations, [](const fs::path& path) {
      deck::ModelKeys keys;
      keys.config = path.string();
      keys.seq_len = 16;
      keys.given = {"seq_len"};
      model::config(model::resolved(keys), "fp32");
    });

    const std::string matrix(24, '\1'), vector(4, '\2');
    add_file("safetensors", "model.safetensors",
             {safetensors({{"a", "F32", {2, 3}, matrix}, {"b", "BF16", {2}, vector}})},
             [](const fs::path& path) {
               const interop::TensorFile file(path);
               for (const auto& [name, entry] : file.tensors()) {
                 std::vector<float> values(std::size_t(entry.elements));
                 file.read(name, 0, values);
               }
             });

    const fs::path sharded = BRUME_REGRESSION_DIR "/data/hugging_face/llama_grouped";
    fs::create_directories(folder_ / "index");
    for (const fs::directory_entry& file : fs::directory_iterator(sharded))
      fs::copy(file, folder_ / "index", fs::copy_options::overwrite_existing);
    deck::ModelKeys keys;
    keys.config = (sharded / "config.json").string();
    keys.seq_len = 16;
    keys.given = {"seq_len"};
    add_file("index", "model.safetensors.index.json",
             {content(sharded / "model.safetensors.index.json")},
             [model = model::config(model::resolved(keys), "fp32")](const fs::path& path) {
               const interop::PretrainedWeights weights(path.parent_path(), model);
             });
    add_coded("four_bits", "data/hugging_face/llama_nf4_nested/");
    add_coded("mxfp4", "data/hugging_face/gpt_oss_mxfp4/");
  }

  void add_coded(const char* kind, const std::string& folder) {
    deck::ModelKeys keys;
    keys.config = BRUME_REGRESSION_DIR "/" + folder + "config.json";
    keys.seq_len = 16;
    keys.given = {"seq_len"};
    add_file(kind, "model.safetensors", {shipped(folder + "model.safetensors")},
             [model = model::config(model::resolved(keys), "fp32")](const fs::path& path) {
               const interop::PretrainedWeights weights(path.parent_path(), model);
               for (const engine::Slab& slab : interop::whole_weights(model)) {
                 std::vector<float> values(std::size_t(slab.elements));
                 weights.get(slab, 0, values);
               }
             });
  }

  void add_tokenizers() {
    const auto encode = [](const fs::path& path) {
      std::vector<std::int32_t> tokens;
      tokenizer::Tokenizer(path.string())
          .encode("A cloud of 10 drops\n\n lies \xe2\x82\xac over it.", tokens);
    };
    for (const char* name :
         {"gpt2.json", "llama3.json", "llama2.json", "gemma.json", "bpe.model", "unigram.model"})
      add_file(name, name, {shipped(std::string("data/tokenizers/") + name)}, encode);
    const auto add_beside = [&](const std::string& file, const std::string& seed) {
      add_file(file, file, {seed}, [encode](const fs::path& path) { encode(path.parent_path()); });
      put(folder_ / file / "tokenizer.json", shipped("data/tokenizers/gpt2.json"));
    };
    add_beside("tokenizer_config.json",
               R"({"added_tokens_decoder": {"902": {"content": "cloud", "lstrip": true}},)"
               R"( "pad_token": "rain", "extra_special_tokens": ["under"]})");
    add_beside("added_tokens.json", R"({"cloud": 902, "drops": 903})");
    add_beside("special_tokens_map.json", R"({"eos_token": {"content": "rain"}})");
  }

  static void read_tokens(const fs::path& path) {
    const data::TokenFile file(path);
    std::vector<std::int32_t> read(std::size_t(std::min<std::int64_t>(file.size(), 1000)));
    file.read(0, read);
    file.documents(0, file.size());
  }

  /// The seal stops accidents, as the manifest's hash does.
  void add_reference() {
    const fs::path folder = folder_ / "reference";
    fs::create_directories(folder);
    io::write_reference(folder, {.run = "a", .source = "b", .weights = "c", .train = {-1.0, -2.0}});
    const std::string sealed = content(folder / "reference.bin");
    const std::size_t seal_bytes = std::string_view("brume xxh3_128 \n").size() + 32;
    add("reference", {sealed.substr(0, sealed.size() - seal_bytes)},
        [folder](const std::string& bytes) {
          const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
          put(folder / "reference.bin",
              fmt::format("{}brume xxh3_128 {:016x}{:016x}\n", bytes, hash.high64, hash.low64));
          io::read_reference(folder);
        });
  }

  void add_tokens() {
    Tokens tokens(500);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = int(i * i % 251);
    const fs::path seed = folder_ / "seed.tok";
    data::write_token_file(seed, tokens, 256);
    add_file("tokens", "train.tok", {content(seed)}, read_tokens);
    data::write_token_file(seed, tokens, 256, {.ends = {200, 500}, .answers = {90, 230}}, true);
    add_file("pairs", "train.tok", {content(seed)}, [](const fs::path& path) {
      read_tokens(path);
      data::Sampler(data::TokenFile(path), data::Order::shuffled, 1, 150).num_targets(0, 2);
    });
    add_reference();
    add_file("npy", "train.npy", {npy("<u2", "500,", numbers(tokens, 2))}, read_tokens);
    add_file("llm_c", "train.bin", {llm_c(20240520, 1, 500, numbers(tokens, 2))}, read_tokens);

    const Index index{.lengths = {100, 150, 250}, .documents = {0, 1, 3}};
    fs::create_directories(folder_ / "idx");
    put(folder_ / "idx/train.bin", numbers(tokens, 2));
    add_file("idx", "train.idx", {index.bytes()},
             [](const fs::path& path) { read_tokens(fs::path(path).replace_extension(".bin")); });
    add_file("jsonl", "text.jsonl",
             {"{\"text\": \"a cloud\"}\n{\"prompt\": \"one\", \"completion\": \" two\"}\n"},
             [](const fs::path& path) { interop::read_documents(path, {}); });
    // {"text": "a cloud"}, by gzip and by zstd.
    const auto bytes = [](auto&... text) {
      return std::vector{std::string(text, sizeof(text) - 1)...};
    };
    add_file(
        "compressed", "text.gz",
        bytes("\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\x2a\x49\xad\x28\x51\xb2\x52\x50"
              "\x4a\x54\x48\xce\xc9\x2f\x4d\x51\xaa\xe5\x02\x00\x84\x38\x99\x81\x14\x00\x00\x00",
              "\x28\xb5\x2f\xfd\x04\x58\xa1\x00\x00{\"text\": \"a cloud\"}\n\xd8\xd4\x37\xf1"),
        [](const fs::path& path) { interop::read_documents(path, {}); });
  }

  void add_chats() {
    const nlohmann::ordered_json cases =
        nlohmann::ordered_json::parse(shipped("data/chat/cases.json"));
    std::vector<std::string> templates;
    for (const auto& one : cases.at("cases")) {
      const auto text = one.at("template").get<std::string>();
      if (one.contains("text") && text.size() > 60) templates.push_back(text);
    }
    add("template", std::move(templates), [values = cases.at("values")](const std::string& text) {
      chat::Template(text, "a.jinja").render(values);
    });
    const fs::path plain = BRUME_REGRESSION_DIR "/../inputs/chat.jinja";
    const std::vector<std::string> lines{
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
        R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
        R"({"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]], "tools": "[]"})"};
    const auto read = [plain](const fs::path& path) {
      interop::read_documents(path, {.chat_template = plain});
    };
    add_file("chats", "chats.jsonl", lines, read);
    add_file(
        "pair lines", "pairs.jsonl",
        {R"({"prompt": "a", "chosen": "b", "rejected": "c"})",
         R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],)"
         R"( "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]})"},
        [plain](const fs::path& path) {
          interop::pack_text({path}, path.parent_path() / "out",
                             {.valid_ratio = 0.0, .chat_template = plain, .threads = 1});
        });
    add_file("list of chats", "chats.json", {fmt::format("[{}]", fmt::join(lines, ",\n "))}, read);
  }

  static constexpr const char* megatron_script = R"(#!/bin/bash
export GPUS=8  # a node
TP=${TP:-2}
DISTRIBUTED=(--nproc_per_node $GPUS --nnodes 2)
MODEL=(
    --num-layers 8 --hidden-size=96 --num-attention-heads 4 --seq-length 128
    --max-position-embeddings 128 "--vocab-size 512" --swiglu --normalization RMSNorm
    --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights
)
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py ${MODEL[@]} --micro-batch-size 1 \
    --global-batch-size 64 --bf16 --train-iters 100 --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size 2 --sequence-parallel --lr 1e-4 --lr-decay-style cosine
)";

  fs::path folder_;
  std::vector<FileKind> kinds_;
};

}  // namespace brume::test
