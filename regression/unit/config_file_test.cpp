/// @file Models from the config.json of Hugging Face: what is read, what is refused and how.
#include <gtest/gtest.h>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.hpp"
#include "model/model.hpp"
#include "refusal.hpp"

namespace brume::model {
namespace {

Config fp32(const deck::ModelKeys& keys) { return config(keys, "fp32"); }

const std::string gpt2 = R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
  "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": null, "n_positions": 1024,
  "vocab_size": 50257, "layer_norm_epsilon": 1e-05, "initializer_range": 0.02,
  "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})";
const std::string llama = R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32,
  "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "vocab_size": 128256,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false,
  "attention_dropout": 0.0, "hidden_act": "silu", "tie_word_embeddings": false, "rope_scaling":
  {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
   "original_max_position_embeddings": 8192}})";
const std::string falcon = R"({"architectures": ["FalconForCausalLM"], "num_hidden_layers": 32,
  "hidden_size": 4544, "num_attention_heads": 71, "vocab_size": 65024, "multi_query": true,
  "parallel_attn": true, "bias": false, "alibi": false, "new_decoder_architecture": false,
  "hidden_dropout": 0.0, "attention_dropout": 0.0, "layer_norm_epsilon": 1e-05})";

/// `text` with `from` replaced, or with a key more.
std::string with(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return text.replace(text.find(from), from.size(), to);
}
std::string and_also(const std::string& text, const std::string& key) {
  return with(text, "\"architectures\"", key + ", \"architectures\"");
}

/// A deck that says how long its sequences are.
deck::ModelKeys of_length(int seq_len) {
  deck::ModelKeys keys;
  keys.seq_len = seq_len;
  keys.given = {"seq_len"};
  return keys;
}

deck::ModelKeys read(const std::string& text, deck::ModelKeys keys = {}) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("brume-config-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << text;
  keys.config = path;
  try {
    keys = resolved(keys);
  } catch (...) {
    std::filesystem::remove(path);
    throw;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(keys.config, "");
  return keys;
}

void expect_refused(const std::string& text, const std::string& says,
                    const deck::ModelKeys& keys = of_length(4096)) {
  try {
    read(text, keys);
    ADD_FAILURE() << "not refused, expected: " << says;
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

/// The warnings about a file.
std::string warnings(const std::string& text, const deck::ModelKeys& keys = of_length(16)) {
  std::ostringstream said;
  std::vector<spdlog::sink_ptr>& sinks = spdlog::default_logger()->sinks();
  sinks.push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
  read(text, keys);
  sinks.pop_back();
  return said.str();
}

// As Transformers 5.24.0 saves them.
const std::string mixtral = R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2, "head_dim": null, "hidden_act": "silu",
  "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
  "max_position_embeddings": 16, "model_type": "mixtral", "num_attention_heads": 4,
  "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "num_local_experts": 4, "output_router_logits": false, "pad_token_id": null,
  "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
  "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "sliding_window": null,
  "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
  "vocab_size": 64})";
const std::string qwen3_moe = R"({"architectures": ["Qwen3MoeForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": null,
  "decoder_sparse_step": 1, "dtype": "float32", "eos_token_id": null, "hidden_act": "silu",
  "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
  "max_position_embeddings": 16, "mlp_only_layers": [], "model_type": "qwen3_moe",
  "moe_intermediate_size": 12, "norm_topk_prob": false, "num_attention_heads": 4,
  "num_experts_per_tok": 3, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "num_local_experts": 6, "output_router_logits": false, "pad_token_id": null,
  "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
  "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
  "transformers_version": "5.24.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 64})";

TEST(ConfigFile, ReadsGpt2) {
  deck::ModelKeys keys;
  keys.given = {"dropout"};
  const Config m = fp32(read(gpt2, keys));
  EXPECT_EQ(m.family->name, "gpt");
  EXPECT_EQ(m.ffn_size, 3072);
  EXPECT_TRUE(m.tied_head && m.qkv_bias && m.linear_bias);
  EXPECT_EQ(num_parameters(m), 124'439'808);
}

TEST(ConfigFile, ReadsLlama3) {
  const Config m = fp32(read(llama, of_length(131072)));
  EXPECT_EQ(m.family->name, "llama");
  EXPECT_EQ(m.kv_heads(), 8);
  EXPECT_EQ(m.rope_theta, 500000.0);
  EXPECT_EQ(m.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(m.rope_scaling.factor, 8.0);
  EXPECT_EQ(num_parameters(m), 8'030'261'248);
  // The same scaling and base in one table, as newer files have it.
  const Config newer =
      fp32(read(with(with(llama, "\"rope_theta\": 500000.0,", ""), "\"rope_scaling\":\n  {",
                     "\"rope_parameters\": {\"rope_theta\": 500000.0,"),
                of_length(131072)));
  EXPECT_EQ(text(newer), text(m));
}

TEST(ConfigFile, ReadsWhatIsALlamaUnderAnotherName) {
  const Config qwen = fp32(read(with(llama, "LlamaForCausalLM", "Qwen2ForCausalLM"), of_length(9)));
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_FALSE(qwen.linear_bias);
  const std::string mistral =
      and_also(with(llama, "LlamaForCausalLM", "MistralForCausalLM"), "\"sliding_window\": 4096");
  EXPECT_FALSE(fp32(read(mistral, of_length(4096))).windowed());
  const Config windowed = fp32(read(mistral, of_length(4097)));
  EXPECT_TRUE(windowed.windowed());
  EXPECT_TRUE(windowed.layer_kind(0).window);
  EXPECT_EQ(layer_counts(windowed), (std::vector{std::pair(LayerKind{.window = true}, 32)}));
  const Config three =
      fp32(read(with(llama, "LlamaForCausalLM", "Qwen3ForCausalLM"), of_length(9)));
  EXPECT_TRUE(three.qk_norm);
  EXPECT_EQ(three.head_dim(), 128);
  EXPECT_NE(text(three).find("qk_norm"), std::string::npos);
}

TEST(ConfigFile, ReadsWhichLayersHaveAWindow) {
  const std::string qwen = and_also(with(llama, "LlamaForCausalLM", "Qwen2ForCausalLM"),
                                    "\"sliding_window\": 16, \"max_window_layers\": 28");
  EXPECT_EQ(fp32(read(qwen, of_length(64))).window, 0) << "not used unless it says so";
  const Config late = fp32(read(and_also(qwen, "\"use_sliding_window\": true"), of_length(64)));
  EXPECT_FALSE(late.layer_kind(27).window);
  EXPECT_TRUE(late.layer_kind(28).window);
  EXPECT_EQ(layer_counts(late),
            (std::vector{std::pair(LayerKind{}, 28), std::pair(LayerKind{.window = true}, 4)}));
  std::string types = "\"use_sliding_window\": true, \"layer_types\": [";
  for (int i = 0; i < 32; ++i)
    types +=
        std::string(i ? ", " : "") + (i % 4 == 3 ? "\"full_attention\"" : "\"sliding_attention\"");
  const Config turns = fp32(read(and_also(qwen, types + "]"), of_length(64)));
  EXPECT_EQ(turns.windows.size(), 4u);
  EXPECT_FALSE(turns.layer_kind(7).window);
  EXPECT_NE(text(turns).find("window=16/wwwf"), std::string::npos);
  expect_refused(and_also(qwen, types + ", \"full_attention\"]"),
                 "'layer_types' must be a list of 32 words");
  expect_refused(and_also(qwen, with(types + "]", "full_attention", "chunked_attention")),
                 "'layer_types' must be full_attention or sliding_attention");
}

// The sizes of Gemma 2 2B and of Gemma 3 1B.
TEST(ConfigFile, ReadsGemmas) {
  const std::string gemma2 = R"({"architectures": ["Gemma2ForCausalLM"], "hidden_size": 2304,
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "intermediate_size": 9216, "vocab_size": 256000, "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 224, "sliding_window": 4096, "rope_theta": 10000.0,
    "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0})";
  const Config two = fp32(read(gemma2, {}));
  EXPECT_EQ(two.family->name, "gemma");
  EXPECT_EQ(num_parameters(two), 2'614'341'888);
  EXPECT_EQ(two.attention_cap, 50.0) << "what a file does not say is as usual";
  EXPECT_EQ(two.logits_cap, 30.0);
  EXPECT_EQ(two.query_scalar, 224.0);
  EXPECT_TRUE(two.layer_kind(0).window);
  EXPECT_FALSE(two.layer_kind(1).window);
  EXPECT_FALSE(two.qk_norm);
  expect_refused(with(gemma2, "gelu_pytorch_tanh", "gelu"), "'hidden_activation' must be");
  expect_refused(and_also(gemma2, "\"attention_bias\": true"), "'attention_bias' must be false");

  const std::string gemma3 = R"({"model_type": "gemma3_text", "hidden_size": 1152,
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "intermediate_size": 6912, "vocab_size": 262144, "max_position_embeddings": 32768,
    "sliding_window": 512, "rope_local_base_freq": 10000, "rope_theta": 1000000,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";
  const Config three = fp32(read(gemma3, of_length(4096)));
  EXPECT_EQ(num_parameters(three), 999'885'952);
  EXPECT_TRUE(three.qk_norm && three.attention_cap == 0.0 && three.logits_cap == 0.0);
  EXPECT_EQ(layer_counts(three),
            (std::vector{std::pair(LayerKind{}, 4), std::pair(LayerKind{.window = true}, 22)}));
  EXPECT_FALSE(three.layer_kind(5).window);
  // Angles of windowed layers have a base of their own and are not stretched, however short
  // sequences are.
  EXPECT_NEAR(rope_frequencies(three)[1], std::pow(1e6, -1.0 / 128) / 8.0, 1e-12);
  EXPECT_NEAR(rope_frequencies(three, {.window = true})[1], std::pow(1e4, -1.0 / 128), 1e-12);
  EXPECT_TRUE(fp32(read(gemma3, of_length(64))).layer_kind(0).window);
  expect_refused(and_also(with(gemma3, "\"model_type\": \"gemma3_text\"",
                               "\"architectures\": [\"Gemma3ForConditionalGeneration\"]"),
                          "\"vision_config\": {}"),
                 "it has images");
}

// The sizes of Pythia 70M.
TEST(ConfigFile, ReadsNeox) {
  const std::string pythia = R"({"architectures": ["GPTNeoXForCausalLM"], "hidden_size": 512,
    "num_attention_heads": 8, "num_hidden_layers": 6, "intermediate_size": 2048,
    "vocab_size": 50304, "max_position_embeddings": 2048, "rotary_pct": 0.25,
    "rotary_emb_base": 10000, "hidden_act": "gelu", "use_parallel_residual": true})";
  const Config m = fp32(read(pythia, {}));
  EXPECT_EQ(m.family->name, "neox");
  EXPECT_TRUE(m.parallel() && m.qkv_bias && m.linear_bias && !m.tied_head);
  EXPECT_EQ(m.rotary_dim(), 16);
  EXPECT_EQ(rope_frequencies(m).size(), 8u);
  EXPECT_EQ(num_parameters(m), 70'426'624);
  expect_refused(with(pythia, "0.25", "1.5"), "'rotary_pct' must be above 0 and at most 1");
  expect_refused(with(pythia, "0.25", "0.02"), "rotary_dim must be even, found 1");
  expect_refused(with(pythia, "\"gelu\"", "\"gelu_fast\""), "'hidden_act' must be gelu");
}

TEST(ConfigFile, ReadsMixturesOfExperts) {
  const Config two = fp32(read(mixtral)), three = fp32(read(qwen3_moe));
  EXPECT_EQ(std::tuple(two.num_experts, two.experts_per_token, two.expert_ffn_size, two.qk_norm,
                       two.normalize_topk),
            std::tuple(4, 2, 48, false, true));
  EXPECT_EQ(std::tuple(three.num_experts, three.experts_per_token, three.expert_ffn_size,
                       three.qk_norm, three.normalize_topk),
            std::tuple(6, 3, 12, true, false));
  EXPECT_EQ(warnings(mixtral), "");
  EXPECT_EQ(warnings(qwen3_moe), "");
  // Older files of Qwen3-MoE have another name; what they leave out is as in the class.
  const std::string older = with(qwen3_moe, "num_local_experts", "num_experts");
  EXPECT_EQ(text(fp32(read(older))), text(three));
  const Config most = fp32(read(with(qwen3_moe, "\"num_local_experts\": 6,", "")));
  EXPECT_EQ(most.num_experts, 128);
  EXPECT_TRUE(fp32(read(with(qwen3_moe, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true")))
                  .normalize_topk);
  EXPECT_EQ(fp32(read(with(mixtral, "\"sliding_window\": null", "\"sliding_window\": 8"))).window,
            8);
  expect_refused(with(mixtral, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5"),
                 "experts_per_token = 5 must be at most num_experts = 4");
}

TEST(ConfigFile, ReadsSharedExpertsAndJointNorms) {
  std::string file = with(qwen3_moe, "Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM");
  const Config qwen2 = fp32(read(file));
  EXPECT_EQ(std::tuple(qwen2.shared_expert_ffn_size, qwen2.shared_expert_gate, qwen2.qkv_bias,
                       qwen2.qk_norm),
            std::tuple(5632, true, true, false));
  EXPECT_NE(text(qwen2).find("shared_expert=5632/gate"), std::string::npos);
  EXPECT_FALSE(
      fp32(read(with(file, "\"vocab_size\"", "\"qkv_bias\": false, \"vocab_size\""))).qkv_bias);
  expect_refused(with(file, "\"use_sliding_window\": false", "\"use_sliding_window\": true"),
                 "'use_sliding_window' must be false: no layer of a Qwen2-MoE has a window here");
  const Config dense =
      fp32(read(with(file, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]")));
  EXPECT_EQ(dense.first_dense_layers, 1);
  EXPECT_TRUE(dense.layer_kind(0).dense && !dense.layer_kind(1).dense);
  file = with(qwen3_moe, "Qwen3MoeForCausalLM", "OlmoeForCausalLM");
  const Config olmoe = fp32(read(file));
  EXPECT_TRUE(olmoe.qk_norm && olmoe.qk_norm_joint);
  EXPECT_EQ(olmoe.expert_ffn_size, 48);
  EXPECT_NE(text(olmoe).find("qk_norm/joint"), std::string::npos);
  EXPECT_NO_THROW(read(with(file, "\"vocab_size\"", "\"clip_qkv\": null, \"vocab_size\"")));
  expect_refused(with(file, "\"vocab_size\"", "\"clip_qkv\": 8.0, \"vocab_size\""),
                 "'clip_qkv' must be null, found 8");
}

// GLM-4.5-Air: 106.9 billion parameters, of which a token meets 13.4, tables included.
const std::string glm = R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true,
  "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
  "partial_rotary_factor": 0.5, "initializer_range": 0.02, "intermediate_size": 10944,
  "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
  "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1,
  "n_routed_experts": 128, "n_shared_experts": 1, "routed_scaling_factor": 1.0,
  "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_hidden_layers": 46,
  "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 1000000, "tie_word_embeddings": false,
  "use_qk_norm": false, "vocab_size": 151552})";

TEST(ConfigFile, ReadsGlm) {
  const Config air = fp32(read(glm, of_length(4096)));
  EXPECT_EQ(num_parameters(air), 106'852'251'264);
  EXPECT_NEAR(double(num_active_parameters(air)), 13.42e9, 0.01e9);
  EXPECT_EQ(air.router, RouterKind::sigmoid);
  EXPECT_EQ(air.rotary_dim(), 64);
  EXPECT_TRUE(air.qkv_bias && !air.qk_norm && air.normalize_topk && !air.shared_expert_gate);
  EXPECT_EQ(std::tuple(air.num_experts, air.experts_per_token, air.expert_ffn_size,
                       air.shared_expert_ffn_size, air.first_dense_layers),
            std::tuple(128, 8, 1408, 1408, 1));
  EXPECT_NE(warnings(glm, of_length(4096)).find("'num_nextn_predict_layers' = 1: weights behind"),
            std::string::npos);
  std::string large = with(glm, "\"n_shared_experts\": 1", "\"n_shared_experts\": 2");
  large = with(large, "\"n_group\": 1, \"topk_group\": 1", "\"n_group\": 8, \"topk_group\": 4");
  large = with(large, "\"routed_scaling_factor\": 1.0", "\"routed_scaling_factor\": 2.5");
  large = with(large, "\"use_qk_norm\": false", "\"use_qk_norm\": true");
  large = with(large, "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 0");
  const Config grouped = fp32(read(large, of_length(64)));
  EXPECT_EQ(std::tuple(grouped.shared_expert_ffn_size, grouped.expert_groups,
                       grouped.groups_per_token, grouped.routed_scale, grouped.qk_norm),
            std::tuple(2816, 8, 4, 2.5, true));
  EXPECT_NE(text(grouped).find("router=sigmoid/8/4 routed_scale=2.5"), std::string::npos);
  EXPECT_EQ(warnings(large, of_length(64)), "");
  expect_refused(with(large, "\"n_group\": 8", "\"n_group\": 3"),
                 "expert_groups = 3 must divide num_experts = 128", of_length(64));
}

// The published file of GPT-OSS 20B, in a smaller vocabulary.
TEST(ConfigFile, ReadsGptOss) {
  const std::string file = R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true,
    "attention_dropout": 0.0, "eos_token_id": 2, "experts_per_token": 4, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "output_router_logits": false, "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": false, "vocab_size": 512})";
  const Config m = fp32(read(file, of_length(4096)));
  EXPECT_EQ(text(m),
            "gpt_oss layers=24 hidden=2880 heads=64 ffn=2880 seq=4096 vocab=512 tied=false "
            "eps=1e-05 head_dim=64 kv_heads=8 qkv_bias=true linear_bias=true experts=32/4 "
            "rope_theta=150000 window=128/wf rope=yarn/32/32/1/4096/exact/1.34657359");
  EXPECT_TRUE(m.sinks() && m.gated());
  EXPECT_EQ(m.mlp(), MlpKind::clamped_swiglu);
  // A file without keys has the values of the class.
  EXPECT_EQ(text(fp32(read(R"({"model_type": "gpt_oss"})", of_length(4096)))),
            "gpt_oss layers=36 hidden=2880 heads=64 ffn=2880 seq=4096 vocab=201088 tied=false "
            "eps=1e-05 head_dim=64 kv_heads=8 qkv_bias=true linear_bias=true experts=128/4 "
            "rope_theta=150000 window=128/wf rope=yarn/32/32/1/4096/exact/1.34657359");
  // The class takes null for its own scaling, but a null 'truncate' as it is.
  const std::string null = R"({"model_type": "gpt_oss", "rope_parameters": null})";
  EXPECT_EQ(fp32(read(null, of_length(4096))).rope_scaling.kind, RopeScaling::Kind::yarn);
  const Config untruncated =
      fp32(read(with(file, "\"truncate\": false", "\"truncate\": null"), of_length(4096)));
  EXPECT_FALSE(untruncated.rope_scaling.truncate);
  expect_refused(with(file, "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 5.0"),
                 "'swiglu_limit' must be 7, found 5");
  expect_refused(with(file, "\"attention_bias\": true", "\"attention_bias\": false"),
                 "'attention_bias' must be true: all linear layers of a gpt_oss have a bias");
}

// The sizes of DeepSeek-V2-Lite.
const std::string deepseek_v2 = R"({"architectures": ["DeepseekV2ForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "first_k_dense_replace": 1,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "n_routed_experts": 64,
  "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
  "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "tie_word_embeddings": false,
  "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400})";

// Numbers of parameters and factors of scores are the library's.
TEST(ConfigFile, ReadsDeepSeek) {
  const Config lite = fp32(read(deepseek_v2, of_length(4096)));
  EXPECT_EQ(warnings(deepseek_v2, of_length(4096)), "");
  EXPECT_EQ(num_parameters(lite), 15'706'484'224);
  EXPECT_NEAR(double(num_active_parameters(lite)), 2.66e9, 0.01e9);
  EXPECT_EQ(std::tuple(lite.head_dim(), lite.rotary_dim(), lite.v_head_dim(), lite.kv_lora_rank,
                       lite.q_lora_rank, lite.shared_expert_ffn_size, lite.first_dense_layers),
            std::tuple(192, 64, 128, 512, 0, 2816, 1));
  EXPECT_TRUE(!lite.normalize_topk && lite.router == RouterKind::softmax);
  EXPECT_EQ(rope_magnitude(lite), 1.0);
  EXPECT_FLOAT_EQ(lite.score_scale(), 0.1147213867929261f);
  EXPECT_NE(text(lite).find("latent=512/0/128"), std::string::npos);
  std::string linear = with(deepseek_v2, "\"type\": \"yarn\"", "\"type\": \"linear\"");
  expect_refused(linear, "'mscale_all_dim' must be 0 with 'linear' scaling", of_length(64));
  const Config large =
      fp32(read(with(deepseek_v2, "\"greedy\"",
                     "\"group_limited_greedy\", \"n_group\": 8, \"topk_group\": 3"),
                of_length(64)));
  EXPECT_EQ(std::pair(large.expert_groups, large.groups_per_token), std::pair(8, 3));
  EXPECT_NE(text(large).find("router=softmax/8/3"), std::string::npos);
  EXPECT_EQ(fp32(read(with(deepseek_v2, "\"greedy\"", "\"greedy\", \"n_group\": 8"), of_length(64)))
                .expert_groups,
            1);
  expect_refused(with(deepseek_v2, "\"greedy\"", "\"noaux_tc\""),
                 "'topk_method' must be greedy or group_limited_greedy, found \"noaux_tc\"",
                 of_length(64));
  expect_refused(with(deepseek_v2, "\"greedy\"", "null"),
                 "'topk_method' must be greedy or group_limited_greedy, found \"\"", of_length(64));
  expect_refused(with(deepseek_v2, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true"),
                 "'norm_topk_prob' must be false", of_length(64));
  expect_refused(with(deepseek_v2, "\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 2147483647"),
                 "must be at most 65536", of_length(64));
  expect_refused(with(deepseek_v2, "\"v_head_dim\": 128", "\"v_head_dim\": 256"),
                 "v_head_dim = 256 must be at most head_dim = 192", of_length(64));
  expect_refused(with(deepseek_v2, "\"num_key_value_heads\": 16", "\"num_key_value_heads\": 2"),
                 "num_kv_heads must be num_heads", of_length(64));

  const std::string third = R"({"architectures": ["DeepseekV3ForCausalLM"],
    "num_nextn_predict_layers": 0})";
  const Config v3 = fp32(read(third, of_length(4096)));
  EXPECT_EQ(num_parameters(v3), 671'026'404'352 + 14'848);  // with corrections
  EXPECT_NEAR(double(num_active_parameters(v3)), 37.55e9, 0.1e9);
  EXPECT_EQ(std::tuple(v3.q_lora_rank, v3.expert_groups, v3.groups_per_token, v3.routed_scale),
            std::tuple(1536, 8, 4, 2.5));
  EXPECT_TRUE(v3.normalize_topk && v3.router == RouterKind::sigmoid);
  EXPECT_FLOAT_EQ(v3.score_scale(), 0.07216878364870322f);
  expect_refused(with(third, "\"num_nextn_predict_layers\": 0", "\"rope_interleave\": false"),
                 "'rope_interleave' must be true: turned features must be pairs of neighbours",
                 of_length(64));
}

TEST(ConfigFile, RefusesMixturesOfAnotherKind) {
  const std::string layers = "'decoder_sparse_step' must be 1 and 'mlp_only_layers' 0, 1, ...";
  for (const char* list : {"[1]", "[1, 0]", "[0, 0]", "0", "{\"0\": 0}"})
    expect_refused(
        with(qwen3_moe, "\"mlp_only_layers\": []", std::string("\"mlp_only_layers\": ") + list),
        layers);
  expect_refused(with(qwen3_moe, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2"),
                 layers);
  EXPECT_NO_THROW(read(with(qwen3_moe, "\"mlp_only_layers\": []", "\"mlp_only_layers\": null")));
  expect_refused(with(mixtral, "\"router_jitter_noise\": 0.0", "\"router_jitter_noise\": 0.1"),
                 "'router_jitter_noise' is 0.1, but training here has no dropout");
  for (const char* other : {"DeepseekV32ForCausalLM", "MiniMaxForCausalLM"})
    expect_refused(with(qwen3_moe, "Qwen3MoeForCausalLM", other),
                   "architecture \"" + std::string(other) +
                       "\" is not supported: it has experts of another kind. Supported:");
}

// Its sum takes the layers together, so that no key here is the same.
TEST(ConfigFile, WarnsOfALossThatBalancesExperts) {
  for (const std::string& one : {mixtral, qwen3_moe}) {
    const std::string used =
        with(one, "\"output_router_logits\": false", "\"output_router_logits\": true");
    EXPECT_NE(warnings(used).find("'router_aux_loss_coef' = 0.001 is left out"), std::string::npos);
    EXPECT_EQ(fp32(read(used)).balance_loss, 0.0);
    EXPECT_EQ(warnings(with(used, "0.001", "0.0")), "");
    deck::ModelKeys keys = of_length(16);
    keys.balance_loss = 0.01;
    keys.given.emplace_back("balance_loss");
    EXPECT_EQ(warnings(used, keys), "");
    EXPECT_EQ(fp32(read(used, keys)).balance_loss, 0.01);
  }
}

TEST(ConfigFile, GoesByModelTypeWithoutArchitectures) {
  const std::string nameless =
      with(llama, "\"architectures\": [\"LlamaForCausalLM\"]", "\"model_type\": \"llama\"");
  EXPECT_EQ(text(fp32(read(nameless, of_length(64)))), text(fp32(read(llama, of_length(64)))));
  expect_refused(with(nameless, "\"llama\"", "\"bert\""),
                 "model_type \"bert\" is not supported. Supported: gpt2, llama,");
}

TEST(ConfigFile, AsksHowLongSequencesAreWhereTheyMayBeVeryLong) {
  expect_refused(llama, "'max_position_embeddings' is 131072: say how many tokens", {});
  EXPECT_EQ(fp32(read(with(llama, "131072", "16384"))).seq_len, 16384);
}

TEST(ConfigFile, ReadsFalcons) {
  const Config m = fp32(read(falcon));
  EXPECT_EQ(m.kv_heads(), 1);
  EXPECT_EQ(m.layer_norms, 1);
  EXPECT_EQ(num_parameters(m), 6'921'720'704);
  std::string grouped = with(falcon, "\"new_decoder_architecture\": false",
                             "\"new_decoder_architecture\": true, \"num_kv_heads\": 8");
  grouped = with(with(grouped, "71", "128"), "4544", "8192");
  const Config forty =
      fp32(read(with(grouped, "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 60")));
  EXPECT_EQ(forty.layer_norms, 2);
  EXPECT_EQ(num_parameters(forty), 41'303'293'952);
}

TEST(ConfigFile, KeysOfTheDeckWin) {
  deck::ModelKeys keys;
  keys.num_layers = 2;
  keys.seq_len = 64;
  keys.tied_head = true;
  keys.given = {"num_layers", "seq_len", "tied_head"};
  const Config m = fp32(read(llama, keys));
  EXPECT_EQ(m.num_layers, 2);
  EXPECT_EQ(m.seq_len, 64);
  EXPECT_TRUE(m.tied_head);
  EXPECT_EQ(m.hidden_size, 4096);
}

TEST(ConfigFile, RefusesWhatDoesNotRun) {
  deck::ModelKeys other = of_length(4096);
  other.family = "gpt";
  other.given.emplace_back("family");
  expect_refused(llama, "this model is a llama: leave model.family = \"gpt\" out", other);
  expect_refused(with(llama, "LlamaForCausalLM", "BertModel"),
                 "architecture \"BertModel\" is not supported. Supported: GPT2LMHeadModel, "
                 "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
                 "MixtralForCausalLM, Qwen3MoeForCausalLM, Qwen2MoeForCausalLM, "
                 "OlmoeForCausalLM, Glm4MoeForCausalLM, DeepseekV2ForCausalLM, "
                 "DeepseekV3ForCausalLM, FalconForCausalLM, GPTNeoXForCausalLM, Gemma2ForCausalLM, "
                 "Gemma3ForCausalLM, GptOssForCausalLM");
  expect_refused(gpt2, "'resid_pdrop' is 0.1, but training here has no dropout: say dropout = 0");
  expect_refused(with(falcon, "\"alibi\": false", "\"alibi\": true"), "it has ALiBi positions");
  expect_refused(
      and_also(with(llama, "LlamaForCausalLM", "DeepseekV32ForCausalLM"),
               "\"n_routed_experts\": 256, \"kv_lora_rank\": 512"),
      "is not supported: it has experts of another kind and latent attention of another kind. "
      "Supported:");
  expect_refused(with(falcon, "\"parallel_attn\": true", "\"parallel_attn\": false"),
                 "'parallel_attn' must be true");
  expect_refused(and_also(llama, "\"num_local_experts\": 8"), "experts of another kind");
  expect_refused(with(llama, "\"attention_bias\": false", "\"attention_bias\": true"),
                 "'attention_bias' must be false");
  expect_refused(with(llama, "\"silu\"", "\"gelu\""), "'hidden_act' must be silu or swish");
  expect_refused(with(llama, "\"llama3\"", "\"longrope\""),
                 "'rope_type' must be default, linear, llama3 or yarn, found \"longrope\"");
  expect_refused(with(llama, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5"),
                 "num_kv_heads = 5 must divide num_heads = 32");
  expect_refused(with(llama, "4096,", "\"wide\","), "'hidden_size' must be a whole number");
  expect_refused("[1]", "must be a JSON object, found a list");
  expect_refused("{\n  \"a\" 1}", ":2:7: is not JSON from here on");
  expect_refused("{}", "neither 'architectures' nor 'model_type' says what kind of model it is");
  expect_refused(R"({"architectures": []})", "'architectures' must be a list of one name, found");
}

// A key that is left out has the value of its class; null is another thing.
TEST(ConfigFile, HasTheValuesOfItsClassWhereKeysAreLeftOut) {
  const auto of = [](const std::string& architecture, const std::string& more = "") {
    return fp32(read("{\"architectures\": [\"" + architecture + "\"]" + more + "}", of_length(64)));
  };
  EXPECT_EQ(of("LlamaForCausalLM").kv_heads(), 32);
  EXPECT_EQ(of("LlamaForCausalLM", ", \"num_attention_heads\": 16").kv_heads(), 16);
  EXPECT_EQ(of("MistralForCausalLM").kv_heads(), 8);
  EXPECT_EQ(of("MistralForCausalLM", ", \"num_attention_heads\": 16").kv_heads(), 8);
  EXPECT_EQ(of("MistralForCausalLM", ", \"num_key_value_heads\": null").kv_heads(), 32);
  EXPECT_EQ(of("MistralForCausalLM").window, 4096);
  EXPECT_EQ(of("MistralForCausalLM", ", \"sliding_window\": null").window, 0);
  EXPECT_EQ(of("Qwen2ForCausalLM", ", \"num_attention_heads\": 64").kv_heads(), 32);
  EXPECT_EQ(of("Qwen3ForCausalLM", ", \"num_attention_heads\": 64").head_dim(), 128);
  EXPECT_EQ(of("Qwen3ForCausalLM", ", \"head_dim\": null").head_dim(), 128);
  EXPECT_EQ(of("FalconForCausalLM").kv_heads(), 1);
  EXPECT_EQ(of("FalconForCausalLM", ", \"multi_query\": null").kv_heads(), 71);
  EXPECT_EQ(of("GPTNeoXForCausalLM").rotary_dim(), 24);
  EXPECT_EQ(of("Gemma2ForCausalLM").attention_cap, 50.0);
  EXPECT_EQ(of("Gemma2ForCausalLM", ", \"attn_logit_softcapping\": null").attention_cap, 0.0);
  EXPECT_EQ(of("Gemma3ForCausalLM").rope_theta, 1e6);
  EXPECT_EQ(fp32(read(R"({"model_type": "llama"})")).seq_len, 2048);
  expect_refused(R"({"model_type": "gemma2", "num_key_value_heads": null})",
                 "'num_key_value_heads' must be a whole number from 1 on, found null");
  expect_refused(R"({"model_type": "llama", "rms_norm_eps": null})",
                 "'rms_norm_eps' must be a number, found null");
}

// The Transformers library ignores keys that a class does not read.
TEST(ConfigFile, KeysThatItsClassDoesNotReadChangeNothing) {
  const auto ignores = [](const std::string& text, const std::string& key) {
    EXPECT_EQ(brume::model::text(fp32(read(and_also(text, key), of_length(64)))),
              brume::model::text(fp32(read(text, of_length(64)))))
        << key;
  };
  const std::string window = "\"sliding_window\": 16, \"use_sliding_window\": true";
  ignores(llama, window);
  ignores(llama, window + ", \"max_window_layers\": 0");
  ignores(llama, "\"add_cross_attention\": true");
  const std::string mistral = with(llama, "LlamaForCausalLM", "MistralForCausalLM");
  for (const char* key : {"\"use_sliding_window\": false", "\"max_window_layers\": 9",
                          "\"layer_types\": []", "\"sliding_window_pattern\": 2"})
    ignores(and_also(mistral, "\"sliding_window\": 16"), key);
  ignores(with(mistral, "\"attention_bias\": false, \"mlp_bias\": false,", ""),
          "\"attention_bias\": true, \"mlp_bias\": true");
  ignores(falcon, "\"head_dim\": 32");
  const std::string gemma3 = R"({"architectures": ["Gemma3ForCausalLM"], "hidden_size": 2304})";
  ignores(gemma3, "\"use_sliding_window\": false");
  ignores(gemma3, "\"attn_logit_softcapping\": 20.0");
  ignores(gemma3, "\"rope_parameters\": {\"rope_theta\": 5.0}");
  const std::string neox = R"({"architectures": ["GPTNeoXForCausalLM"], "hidden_size": 512})";
  ignores(neox, "\"partial_rotary_factor\": 0.5, \"rope_theta\": 5.0");
  // Only a neox turns a part of a head; where angles are scaled the library fails in the others.
  const std::string plain = with(llama, "\"rope_type\": \"llama3\"", "\"rope_type\": \"default\"");
  for (const std::string& text :
       {plain, with(plain, "LlamaForCausalLM", "Qwen2ForCausalLM"), falcon})
    ignores(text, "\"partial_rotary_factor\": 0.5");
  expect_refused(and_also(llama, "\"partial_rotary_factor\": 0.5"),
                 "'partial_rotary_factor' must be 1 with 'llama3' scaling");
}

TEST(ConfigFile, ReadsRotaryAnglesAsTheLibraryDoes) {
  const auto rope = [](const std::string& keys) {
    return fp32(read(R"({"model_type": "llama", )" + keys + "}", of_length(64)));
  };
  const std::string linear = R"({"rope_type": "linear", "factor": 4.0, "rope_theta": 9.0})";
  EXPECT_EQ(rope("\"rope_theta\": null, \"rope_parameters\": " + linear).rope_theta, 9.0);
  const Config both = rope(
      "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}, "
      "\"rope_parameters\": " +
      linear);
  EXPECT_EQ(both.rope_scaling.factor, 2.0) << "the older key takes the place of the newer one";
  EXPECT_EQ(both.rope_theta, 10000.0);
  const std::string llama3 = R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0})";
  EXPECT_EQ(rope(llama3).rope_scaling.original_seq_len, 2048);
  EXPECT_EQ(rope(llama3 + ", \"max_position_embeddings\": 77").rope_scaling.original_seq_len, 77);
  EXPECT_EQ(
      rope(llama3 + ", \"original_max_position_embeddings\": 9").rope_scaling.original_seq_len, 9);
  expect_refused(
      "{\"model_type\": \"llama\", " + with(llama3, "\"low_freq_factor\": 1.0,", "") + "}",
      "rope_scaling: missing key 'low_freq_factor'");
  expect_refused("{\"model_type\": \"llama\", \"rope_theta\": null}",
                 "'rope_theta' must be a number, found null");
  expect_refused(R"({"model_type": "llama", "rope_parameters": {"full_attention": {}}})",
                 "'full_attention' must be a number or a word");
}

TEST(ConfigFile, ReadsYarnAsTheLibraryDoes) {
  const auto rope = [](const std::string& keys, const char* table = "rope_scaling") {
    return fp32(read(R"({"model_type": "llama", "max_position_embeddings": 4096, ")" +
                         std::string(table) + R"(": {"rope_type": "yarn", )" + keys + "}}",
                     of_length(64)))
        .rope_scaling;
  };
  const RopeScaling plain = rope(R"("factor": 4.0, "original_max_position_embeddings": 512)");
  EXPECT_EQ(std::tuple(plain.kind, plain.factor, plain.original_seq_len, plain.beta_fast,
                       plain.beta_slow, plain.truncate, plain.attention_factor),
            std::tuple(RopeScaling::Kind::yarn, 4.0, 512, 32.0, 1.0, true, 0.0));
  for (const char* table : {"rope_scaling", "rope_parameters"}) {
    const RopeScaling all = rope(R"("factor": 8.0, "original_max_position_embeddings": 64,
      "beta_fast": 16, "beta_slow": 2, "truncate": false, "attention_factor": 1.5, "mscale": 0.7,
      "mscale_all_dim": 0.9)",
                                 table);
    EXPECT_EQ(std::tuple(all.factor, all.original_seq_len, all.beta_fast, all.beta_slow,
                         all.truncate, all.attention_factor, all.mscale, all.mscale_all_dim),
              std::tuple(8.0, 64, 16.0, 2.0, false, 1.5, 0.7, 0.9));
  }
  EXPECT_EQ(rope(R"("factor": null, "original_max_position_embeddings": 256)").factor, 16.0);
  EXPECT_EQ(rope(R"("factor": 2.0)").original_seq_len, 4096);
  EXPECT_EQ(rope(R"("factor": 2.0, "beta_fast": null, "mscale": 0)").beta_fast, 32.0);
  const auto refused = [](const std::string& keys, const std::string& said) {
    expect_refused(
        R"({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", )" + keys + "}}", said);
  };
  refused(R"("factor": 2.0, "attention_factor": 0)", "'attention_factor' must be above 0");
  refused(R"("factor": 0.5)", "'rope_scaling.factor' must be a number in 1..1000000, found 0.5");
  refused(R"("factor": 2.0, "beta_fast": 1, "beta_slow": 3)",
          "rope_scaling.beta_slow = 3 must be at most beta_fast = 1");
  expect_refused(R"({"model_type": "gemma3_text", "rope_parameters": {"full_attention":
                   {"rope_type": "yarn", "factor": 2.0, "truncate": false}}})",
                 "'truncate' must be true: the Transformers library does not read it here");
}

TEST(ConfigFile, IsMissed) {
  deck::ModelKeys keys;
  keys.config = "nowhere/config.json";
  keys.config_place = "a.toml:2:10";
  try {
    resolved(keys);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "a.toml:2:10: 'model.config': nowhere/config.json: cannot be opened: No such file or "
        "directory");
  }
}

// What the deck could not say, its file cannot either.
TEST(ConfigFile, KeepsTheBoundsOfTheDeck) {
  expect_refused(with(llama, "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1"),
                 "'rms_norm_eps' must be a number in 1e-12..1, found -1");
  expect_refused(with(llama, "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 2147483647"),
                 "'num_hidden_layers' must be an integer in 0..10000, found 2147483647");
  expect_refused(with(llama, "\"factor\": 8.0", "\"factor\": 0"),
                 "'rope_scaling.factor' must be a number in 1..1000000, found 0");
  expect_refused(with(llama, "\"factor\": 8.0,", ""), "rope_scaling: missing key 'factor'");
  expect_refused(with(llama, "\"num_attention_heads\": 32", "\"num_attention_heads\": 2147483647"),
                 "'num_attention_heads' must be an integer in 0..65536, found 2147483647");
  expect_refused(
      and_also(with(llama, "\"num_attention_heads\": 32", "\"num_attention_heads\": 65536"),
               "\"head_dim\": 65536"),
      "num_heads x head_dim = 65536 x 65536 must be at most 4194304");
}

// Walking over it by recursion, or saying it in a message, would break the process or the screen.
TEST(ConfigFile, TakesNothingDeepOrLong) {
  const auto nested = [](int depth) {
    return std::string(std::size_t(depth), '[') + std::string(std::size_t(depth), ']');
  };
  expect_refused(with(llama, "4096,", nested(100'000) + ","), "is nested more than 64 deep");
  expect_refused(with(llama, "\"silu\"", nested(60)),
                 "'hidden_act' must be a string, found a list");
  expect_refused(with(llama, "4096,", '"' + std::string(1 << 20, 'x') + "\","),
                 "found \"" + std::string(40, 'x') + "...\"");
  expect_refused(with(llama, "\"silu\"", '"' + std::string(1 << 20, 'x') + '"'),
                 "found \"" + std::string(40, 'x') + "\"");
}

TEST(ConfigFile, IsARegularFile) {
  deck::ModelKeys keys;
  keys.config = std::filesystem::temp_directory_path();
  EXPECT_NE(test::refusal([&] { resolved(keys); }).find("is not a regular file, but a folder"),
            std::string::npos);
  keys.config += "/brume-pipe-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(keys.config.c_str(), 0600), 0);
  EXPECT_NE(test::refusal([&] { resolved(keys); }).find("but a pipe or a device"),
            std::string::npos);
  std::filesystem::remove(keys.config);
}

}  // namespace
}  // namespace brume::model
