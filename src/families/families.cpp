#include "families/families.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.hpp"

namespace brume::families {
namespace {

using Kind = Limit::Kind;

/// GPT-2: learned positions, layer norms, GELU (tanh); attention, then MLP.
Family gpt() {
  Family made;
  made.name = "gpt";
  made.title = "GPT-2";
  made.norm = NormKind::layer;
  made.mlp = MlpKind::gelu_tanh;
  made.rotary = false;
  made.biased = true;
  made.tensors.prefix = "transformer.";
  made.tensors.layers = "h.";
  made.tensors.ends = {
      {"embedding.token", {"wte"}}, {"embedding.position", {"wpe"}}, {"head.norm", {"ln_f"}}};
  made.tensors.of_layer = {{"norm1", {"ln_1"}},
                           {"norm2", {"ln_2"}},
                           {"attention.qkv", {"attn.c_attn"}},
                           {"attention.out", {"attn.c_proj"}},
                           {"mlp.in", {"mlp.c_fc"}},
                           {"mlp.out", {"mlp.c_proj"}}};
  made.tensors.transposed = true;
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "GPT2LMHeadModel";
    one.model_type = "gpt2";
    one.class_keys = R"({
             "activation_function": "gelu_new", "add_cross_attention": false, "attn_pdrop": 0.1,
             "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
             "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12, "n_positions": 1024,
             "resid_pdrop": 0.1, "scale_attn_by_inverse_layer_idx": false,
             "scale_attn_weights": true, "tie_word_embeddings": true, "vocab_size": 50257
           })";
    one.keys.num_layers = "n_layer";
    one.keys.hidden_size = "n_embd";
    one.keys.num_heads = "n_head";
    one.keys.seq_len = "n_positions";
    one.keys.ffn_size = "n_inner";
    one.keys.norm_eps = "layer_norm_epsilon";
    one.keys.activation = "activation_function";
    one.keys.dropouts = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    one.key_heads = KeyHeads::none;
    one.qkv_bias = true;
    one.fixed = {{"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"add_cross_attention", false}};
    one.written = R"({"bos_token_id": null, "eos_token_id": null})";
    one.limits = {{Kind::qkv_bias, "GPT-2 has biases of queries, keys and values"},
                  {Kind::all_key_heads, "GPT-2 has as many key heads as query heads"},
                  {Kind::heads_fill_hidden, "GPT-2 has head_dim = hidden_size / num_heads"}};
  }
  return made;
}

TensorNames llama_tensors() {
  TensorNames made;
  made.prefix = "model.";
  made.layers = "layers.";
  made.ends = {{"embedding.token", {"embed_tokens"}}, {"head.norm", {"norm"}}};
  made.of_layer = {{"norm1", {"input_layernorm"}},
                   {"norm2", {"post_attention_layernorm"}},
                   {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                   {"attention.q", {"self_attn.q_proj"}},
                   {"attention.kv", {"self_attn.k_proj", "self_attn.v_proj"}},
                   {"attention.k", {"self_attn.k_proj"}},
                   {"attention.v", {"self_attn.v_proj"}},
                   {"attention.q_norm", {"self_attn.q_norm"}},
                   {"attention.k_norm", {"self_attn.k_norm"}},
                   {"attention.out", {"self_attn.o_proj"}},
                   {"mlp.in", {"mlp.gate_proj", "mlp.up_proj"}},
                   {"mlp.gate", {"mlp.gate_proj"}},
                   {"mlp.up", {"mlp.up_proj"}},
                   {"mlp.out", {"mlp.down_proj"}}};
  return made;
}

/// A layer's experts, as Qwen's files have them.
TensorNames::Map expert_tensors() {
  return {{"mlp.router", {"mlp.gate"}},
          {"mlp.experts.in", {"mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"}},
          {"mlp.experts.out", {"mlp.experts.*.down_proj"}}};
}

Limit one_rope_theta() {
  return {Kind::one_rope_theta, "its layers have one base of rotary angles"};
}

/// The tensors of shared experts, as one expert, below `module` in files.
TensorNames::Map shared_expert_tensors(const std::string& module) {
  return {{"mlp.shared.in", {module + ".gate_proj", module + ".up_proj"}},
          {"mlp.shared.gate", {module + ".gate_proj"}},
          {"mlp.shared.up", {module + ".up_proj"}},
          {"mlp.shared.out", {module + ".down_proj"}}};
}

/// Makes an architecture one of mixtures as DeepSeek has them: shared experts without gates, and
/// first layers without experts.
///
/// @param title  in messages
void set_deepseek_experts(Architecture& one, const std::string& title) {
  one.keys.num_experts = "n_routed_experts";
  one.keys.expert_ffn_size = "moe_intermediate_size";
  one.keys.first_dense_layers = "first_k_dense_replace";
  one.keys.shared_experts = "n_shared_experts";
  one.keys.normalize_topk = "norm_topk_prob";
  one.keys.routed_scale = "routed_scaling_factor";
  one.keys.expert_groups = "n_group";
  one.keys.groups_per_token = "topk_group";
  one.experts = true;
  one.shared_expert = true;
  one.tensors = expert_tensors();
  one.tensors.merge(shared_expert_tensors("mlp.shared_experts"));
  one.limits = {{Kind::equal_shared_experts,
                 "shared experts of " + title + " have no gate and the width of routed ones"},
                {Kind::no_window, title + " has no windows"},
                one_rope_theta()};
}

/// Adds a router by sigmoids.
void set_sigmoid_router(Architecture& one) {
  one.sigmoid_router = true;
  one.extra_layers = "num_nextn_predict_layers";
  one.tensors["mlp.router.correction"] = {"mlp.gate.e_score_correction_bias"};
}

/// Adds latent attention.
void set_latent_attention(Architecture& one) {
  one.latent = true;
  one.tensors.merge(TensorNames::Map{{"attention.q", {"self_attn.q_b_proj"}},
                                     {"attention.q_down", {"self_attn.q_a_proj"}},
                                     {"attention.q_down_norm", {"self_attn.q_a_layernorm"}},
                                     {"attention.kv_down", {"self_attn.kv_a_proj_with_mqa"}},
                                     {"attention.k_turned", {"self_attn.kv_a_proj_with_mqa"}},
                                     {"attention.kv_down_norm", {"self_attn.kv_a_layernorm"}},
                                     {"attention.kv_up", {"self_attn.kv_b_proj"}}});
}

/// Llama, Mistral, Qwen 2 and 3, OLMoE, GLM-4.5, DeepSeek V2 and V3: rotary positions, RMS norms,
/// SwiGLU; attention, then MLP.
Family llama() {
  const std::string biases = ": a llama's only biases here are those of queries, keys and values";
  const Limit one_theta = one_rope_theta();
  Family made;
  made.name = "llama";
  made.title = "Llama";
  made.norm = NormKind::rms;
  made.mlp = MlpKind::swiglu;
  made.qk_norms = true;
  made.windows = true;
  made.experts = true;
  made.latent = true;
  made.tensors = llama_tensors();
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "LlamaForCausalLM";
    one.model_type = "llama";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "head_dim": null,
             "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
             "intermediate_size": 11008, "max_position_embeddings": 2048, "mlp_bias": false,
             "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": null,
             "original_max_position_embeddings": null, "partial_rotary_factor": null,
             "rms_norm_eps": 1e-06, "rope_parameters": null, "rope_scaling": null,
             "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 32000
           })";
    one.fixed = {{"attention_bias", false, biases}, {"mlp_bias", false, biases}};
    one.written = R"({"attention_bias": false, "mlp_bias": false})";
    one.limits = {{Kind::heads_divide_hidden, "Llama's heads divide its hidden_size"}, one_theta};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "MistralForCausalLM";
    one.model_type = "mistral";
    one.class_keys = R"({
             "attention_dropout": 0.0, "head_dim": null, "hidden_act": "silu", "hidden_size": 4096,
             "initializer_range": 0.02, "intermediate_size": 14336,
             "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32,
             "num_key_value_heads": 8, "original_max_position_embeddings": null,
             "partial_rotary_factor": null, "rms_norm_eps": 1e-06, "rope_parameters": null,
             "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 4096,
             "tie_word_embeddings": false, "vocab_size": 32000
           })";
    one.window = true;
    one.limits = {{Kind::no_layer_kinds, "all layers of Mistral have a window"}, one_theta};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "Qwen2ForCausalLM";
    one.model_type = "qwen2";
    one.class_keys = R"({
             "attention_dropout": 0.0, "head_dim": null, "hidden_act": "silu", "hidden_size": 4096,
             "initializer_range": 0.02, "intermediate_size": 22016, "layer_types": null,
             "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 32,
             "num_hidden_layers": 32, "num_key_value_heads": 32,
             "original_max_position_embeddings": null, "partial_rotary_factor": null,
             "rms_norm_eps": 1e-06, "rope_parameters": null, "rope_scaling": null,
             "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
             "use_sliding_window": false, "vocab_size": 151936
           })";
    one.qkv_bias = true;
    one.limits = {one_theta};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "Qwen3ForCausalLM";
    one.model_type = "qwen3";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
             "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
             "intermediate_size": 22016, "layer_types": null, "max_position_embeddings": 32768,
             "max_window_layers": 28, "num_attention_heads": 32, "num_hidden_layers": 32,
             "num_key_value_heads": 32, "original_max_position_embeddings": null,
             "partial_rotary_factor": null, "rms_norm_eps": 1e-06, "rope_parameters": null,
             "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 4096,
             "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936
           })";
    one.qk_norm = true;
    one.fixed = {{"attention_bias", false, biases}};
    one.written = R"({"attention_bias": false})";
    one.limits = {one_theta,
                  {Kind::no_qkv_bias, "Qwen3 has no biases of queries, keys and values"}};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "MixtralForCausalLM";
    one.model_type = "mixtral";
    one.class_keys = R"({
             "attention_dropout": 0.0, "head_dim": null, "hidden_act": "silu", "hidden_size": 4096,
             "initializer_range": 0.02, "intermediate_size": 14336,
             "max_position_embeddings": 131072, "num_attention_heads": 32,
             "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
             "num_local_experts": 8, "original_max_position_embeddings": null,
             "output_router_logits": false, "partial_rotary_factor": null, "rms_norm_eps": 1e-05,
             "rope_parameters": null, "rope_scaling": null, "rope_theta": 1000000.0,
             "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "sliding_window": null,
             "tie_word_embeddings": false, "vocab_size": 32000
           })";
    one.keys.num_experts = "num_local_experts";
    one.keys.dropouts = {"attention_dropout", "router_jitter_noise"};
    one.experts = true;
    one.tensors = {
        {"mlp.router", {"block_sparse_moe.gate"}},
        {"mlp.experts.in", {"block_sparse_moe.experts.*.w1", "block_sparse_moe.experts.*.w3"}},
        {"mlp.experts.out", {"block_sparse_moe.experts.*.w2"}}};
    one.limits = {{Kind::no_layer_kinds, "all layers of Mixtral have a window, or none"},
                  {Kind::no_qkv_bias, "Mixtral has no biases"},
                  {Kind::normalized_topk, "Mixtral's gates sum to 1"},
                  one_theta};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "Qwen3MoeForCausalLM";
    one.model_type = "qwen3_moe";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "decoder_sparse_step": 1,
             "head_dim": null, "hidden_act": "silu", "hidden_size": 2048,
             "initializer_range": 0.02, "intermediate_size": 6144,
             "max_position_embeddings": 32768, "mlp_only_layers": null,
             "moe_intermediate_size": 768, "norm_topk_prob": false, "num_attention_heads": 32,
             "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 24,
             "num_key_value_heads": 4, "original_max_position_embeddings": null,
             "output_router_logits": false, "partial_rotary_factor": null, "rms_norm_eps": 1e-06,
             "rope_parameters": null, "rope_scaling": null, "rope_theta": 10000.0,
             "router_aux_loss_coef": 0.001, "sliding_window": 4096, "tie_word_embeddings": false,
             "use_sliding_window": false, "vocab_size": 151936
           })";
    one.keys.num_experts = "num_experts";
    one.keys.expert_ffn_size = "moe_intermediate_size";
    one.keys.normalize_topk = "norm_topk_prob";
    one.qk_norm = true;
    one.experts = true;
    one.tensors = expert_tensors();
    one.fixed = {{"attention_bias", false, biases}};
    one.written = R"({"attention_bias": false, "decoder_sparse_step": 1, "mlp_only_layers": []})";
    one.limits = {{Kind::no_layer_kinds, "all layers of Qwen3-MoE have a window, or none"},
                  one_theta,
                  {Kind::no_qkv_bias, "Qwen3 has no biases of queries, keys and values"}};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "Qwen2MoeForCausalLM";
    one.model_type = "qwen2_moe";
    one.class_keys = R"({
             "attention_dropout": 0.0, "decoder_sparse_step": 1, "head_dim": null,
             "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
             "intermediate_size": 5632, "layer_types": null, "max_position_embeddings": 32768,
             "max_window_layers": 28, "mlp_only_layers": null, "moe_intermediate_size": 1408,
             "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60,
             "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
             "original_max_position_embeddings": null, "output_router_logits": false,
             "partial_rotary_factor": null, "qkv_bias": true, "rms_norm_eps": 1e-06,
             "rope_parameters": null, "rope_scaling": null, "rope_theta": 10000.0,
             "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632,
             "sliding_window": 4096, "tie_word_embeddings": false, "use_sliding_window": false,
             "vocab_size": 151936
           })";
    one.keys.num_experts = "num_experts";
    one.keys.expert_ffn_size = "moe_intermediate_size";
    one.keys.shared_expert_ffn_size = "shared_expert_intermediate_size";
    one.keys.normalize_topk = "norm_topk_prob";
    one.keys.qkv_bias = "qkv_bias";
    one.experts = true;
    one.shared_expert = true;
    one.tensors = expert_tensors();
    one.tensors.merge(shared_expert_tensors("mlp.shared_expert"));
    one.tensors["mlp.shared_expert_gate"] = {"mlp.shared_expert_gate"};
    one.fixed = {{"use_sliding_window", false, ": no layer of a Qwen2-MoE has a window here"}};
    one.written = R"({"decoder_sparse_step": 1, "mlp_only_layers": []})";
    one.limits = {{Kind::gated_shared_expert, "Qwen2-MoE's shared expert has a gate"},
                  {Kind::no_window, "Qwen2-MoE has no windows"},
                  {Kind::no_qk_norm, "Qwen2-MoE has no norms of queries and keys"},
                  one_theta};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "OlmoeForCausalLM";
    one.model_type = "olmoe";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "clip_qkv": null,
             "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
             "intermediate_size": 2048, "max_position_embeddings": 4096, "norm_topk_prob": false,
             "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
             "num_hidden_layers": 16, "num_key_value_heads": null,
             "original_max_position_embeddings": null, "output_router_logits": false,
             "partial_rotary_factor": null, "rms_norm_eps": 1e-05, "rope_parameters": null,
             "rope_scaling": null, "rope_theta": 10000.0, "router_aux_loss_coef": 0.01,
             "tie_word_embeddings": false, "vocab_size": 50304
           })";
    one.keys.num_experts = "num_experts";
    one.keys.normalize_topk = "norm_topk_prob";
    one.keys.absent = {"clip_qkv"};
    one.qk_norm = true;
    one.joint_qk_norm = true;
    one.experts = true;
    one.tensors = expert_tensors();
    one.fixed = {{"attention_bias", false, biases}};
    one.written = R"({"attention_bias": false, "clip_qkv": null})";
    one.limits = {{Kind::heads_fill_hidden, "OLMoE has head_dim = hidden_size / num_heads"},
                  {Kind::no_window, "OLMoE has no windows"},
                  {Kind::no_qkv_bias, "OLMoE has no biases"},
                  one_theta};
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "Glm4MoeForCausalLM";
    one.model_type = "glm4_moe";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "first_k_dense_replace": 1,
             "head_dim": null, "hidden_act": "silu", "hidden_size": 4096,
             "initializer_range": 0.02, "intermediate_size": 10944,
             "max_position_embeddings": 131072, "moe_intermediate_size": 1408, "n_group": 1,
             "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true,
             "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
             "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
             "original_max_position_embeddings": null, "output_router_logits": false,
             "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_parameters": null,
             "rope_scaling": null, "rope_theta": 10000.0, "routed_scaling_factor": 1.0,
             "tie_word_embeddings": false, "topk_group": 1, "use_qk_norm": false,
             "vocab_size": 151552
           })";
    set_deepseek_experts(one, "GLM-4.5");
    set_sigmoid_router(one);
    one.keys.qkv_bias = "attention_bias";
    one.keys.qk_norm = "use_qk_norm";
    one.keys.rotary_share = "partial_rotary_factor";
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "DeepseekV2ForCausalLM";
    one.model_type = "deepseek_v2";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "first_k_dense_replace": 0,
             "head_dim": null, "hidden_act": "silu", "hidden_size": 4096,
             "initializer_range": 0.02, "intermediate_size": 11008, "kv_lora_rank": 512,
             "max_position_embeddings": 2048, "mlp_bias": false, "moe_intermediate_size": 1407,
             "n_group": null, "n_routed_experts": 64, "n_shared_experts": 2,
             "norm_topk_prob": false, "num_attention_heads": 32, "num_experts_per_tok": null,
             "num_hidden_layers": 32, "num_key_value_heads": null,
             "original_max_position_embeddings": null, "output_router_logits": false,
             "partial_rotary_factor": null, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
             "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_parameters": null,
             "rope_scaling": null, "rope_theta": 10000.0, "routed_scaling_factor": 1.0,
             "tie_word_embeddings": false, "topk_group": null, "topk_method": "greedy",
             "v_head_dim": 128, "vocab_size": 102400
           })";
    set_deepseek_experts(one, "DeepSeek");
    set_latent_attention(one);
    one.fixed = {{"attention_bias", false, biases},
                 {"mlp_bias", false},
                 {"norm_topk_prob", false, ": the Transformers library ignores it"}};
    one.written = R"({"attention_bias": false, "mlp_bias": false})";
    one.keys.choice = "topk_method";
    one.limits.push_back(
        {Kind::softmax_of_all, "gates of DeepSeek-V2 are the softmax of all logits"});
    one.limits.push_back({Kind::heads_divide_hidden, "DeepSeek-V2's heads divide its hidden_size"});
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "DeepseekV3ForCausalLM";
    one.model_type = "deepseek_v3";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "first_k_dense_replace": 3,
             "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
             "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 4096,
             "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256,
             "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
             "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
             "num_nextn_predict_layers": 1, "original_max_position_embeddings": null,
             "output_router_logits": false, "partial_rotary_factor": null, "q_lora_rank": 1536,
             "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
             "rope_interleave": true, "rope_parameters": null, "rope_scaling": null,
             "rope_theta": 10000.0, "routed_scaling_factor": 2.5, "tie_word_embeddings": false,
             "topk_group": 4, "v_head_dim": 128, "vocab_size": 129280
           })";
    set_deepseek_experts(one, "DeepSeek");
    set_sigmoid_router(one);
    set_latent_attention(one);
    one.fixed = {{"attention_bias", false, biases},
                 {"rope_interleave", true, ": turned features must be pairs of neighbours"}};
    one.written = R"({"attention_bias": false, "rope_interleave": true})";
  }
  return made;
}

/// Falcon: rotary positions, layer norms, GELU (erf); attention beside MLP, from one input.
Family falcon() {
  Family made;
  made.name = "falcon";
  made.title = "Falcon";
  made.norm = NormKind::layer;
  made.mlp = MlpKind::gelu_erf;
  made.parallel = ParallelBlock::always;
  made.layer_norms = 1;
  made.tensors.prefix = "transformer.";
  made.tensors.layers = "h.";
  made.tensors.ends = {{"embedding.token", {"word_embeddings"}}, {"head.norm", {"ln_f"}}};
  made.tensors.of_layer = {{"norm", {"input_layernorm"}},
                           {"norm1", {"ln_attn"}},
                           {"norm2", {"ln_mlp"}},
                           {"attention.out", {"self_attention.dense"}},
                           {"mlp.in", {"mlp.dense_h_to_4h"}},
                           {"mlp.out", {"mlp.dense_4h_to_h"}}};
  made.tensors.fused_qkv = "self_attention.query_key_value";
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "FalconForCausalLM";
    one.model_type = "falcon";
    one.class_keys = R"({
             "activation": "gelu", "alibi": false, "attention_dropout": 0.0, "bias": false,
             "ffn_hidden_size": null, "hidden_dropout": 0.0, "hidden_size": 4544,
             "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
             "max_position_embeddings": 2048, "multi_query": true,
             "new_decoder_architecture": false, "num_attention_heads": 71, "num_hidden_layers": 32,
             "num_kv_heads": null, "num_ln_in_parallel_attn": null,
             "original_max_position_embeddings": null, "parallel_attn": true,
             "partial_rotary_factor": null, "rope_parameters": null, "rope_scaling": null,
             "rope_theta": 10000.0, "tie_word_embeddings": true, "vocab_size": 65024
           })";
    one.keys.ffn_size = "ffn_hidden_size";
    one.keys.norm_eps = "layer_norm_epsilon";
    one.keys.activation = "activation";
    one.keys.bias = "bias";
    one.keys.dropouts = {"hidden_dropout", "attention_dropout"};
    one.key_heads = KeyHeads::falcon;
    one.fixed = {{"parallel_attn", true, ": a falcon's attention and MLP are parallel here"},
                 {"apply_residual_connection_post_layernorm", false}};
    one.written = R"({"parallel_attn": true, "alibi": false})";
    one.limits = {{Kind::heads_fill_hidden, "Falcon has head_dim = hidden_size / num_heads"},
                  {Kind::equal_biases, "Falcon's linear layers have biases all or none"}};
  }
  return made;
}

/// GPT-NeoX: Falcon's parts with two norms, or attention, then MLP.
Family neox() {
  Family made;
  made.name = "neox";
  made.title = "GPT-NeoX";
  made.norm = NormKind::layer;
  made.mlp = MlpKind::gelu_erf;
  made.parallel = ParallelBlock::by_choice;
  made.biased = true;
  made.tensors.prefix = "gpt_neox.";
  made.tensors.layers = "layers.";
  made.tensors.ends = {{"embedding.token", {"embed_in"}}, {"head.norm", {"final_layer_norm"}}};
  made.tensors.of_layer = {{"norm1", {"input_layernorm"}},
                           {"norm2", {"post_attention_layernorm"}},
                           {"attention.out", {"attention.dense"}},
                           {"mlp.in", {"mlp.dense_h_to_4h"}},
                           {"mlp.out", {"mlp.dense_4h_to_h"}}};
  made.tensors.head = "embed_out";
  made.tensors.fused_qkv = "attention.query_key_value";
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "GPTNeoXForCausalLM";
    one.model_type = "gpt_neox";
    one.class_keys = R"({
             "attention_bias": true, "attention_dropout": 0.0, "hidden_act": "gelu",
             "hidden_dropout": 0.0, "hidden_size": 6144, "initializer_range": 0.02,
             "intermediate_size": 24576, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
             "num_attention_heads": 64, "num_hidden_layers": 44,
             "original_max_position_embeddings": null, "rope_parameters": null,
             "rope_scaling": null, "rotary_emb_base": 10000.0, "rotary_pct": 0.25,
             "tie_word_embeddings": false, "use_parallel_residual": true, "vocab_size": 50432
           })";
    one.keys.norm_eps = "layer_norm_eps";
    one.keys.rope_theta = "rotary_emb_base";
    one.keys.rotary_share = "rotary_pct";
    one.keys.parallel_residual = "use_parallel_residual";
    one.keys.dropouts = {"attention_dropout", "hidden_dropout"};
    one.key_heads = KeyHeads::none;
    one.qkv_bias = true;
    one.fixed = {{"attention_bias", true, ": all linear layers of a neox have a bias"}};
    one.written = R"({"attention_bias": true})";
    one.limits = {{Kind::heads_fill_hidden, "GPT-NeoX has head_dim = hidden_size / num_heads"},
                  {Kind::all_key_heads, "GPT-NeoX has as many key heads as query heads"},
                  {Kind::all_biases, "all linear layers of GPT-NeoX have a bias"}};
  }
  return made;
}

/// Gemma 2 and 3: Llama's parts with GELU (tanh) in place of SiLU, norms also after attention and
/// MLP, gains that are kept as their distance from 1, and a scaled embedding.
Family gemma() {
  TensorNames tensors = llama_tensors();
  tensors.of_layer["norm2"] = {"pre_feedforward_layernorm"};
  tensors.of_layer["post_norm1"] = {"post_attention_layernorm"};
  tensors.of_layer["post_norm2"] = {"post_feedforward_layernorm"};
  const ConfigKeys third{.activation = "hidden_activation",
                         .query_scalar = "query_pre_attn_scalar",
                         .logits_cap = "final_logit_softcapping"};
  ConfigKeys second = third;
  second.attention_cap = "attn_logit_softcapping";
  const std::vector<FixedKey> fixed{{"attention_bias", false},
                                    {"use_bidirectional_attention", false}};
  const std::vector<Limit> common{
      {Kind::no_qkv_bias, "Gemma has no biases"},
      {Kind::heads_divide_hidden, "Gemma's heads divide its hidden_size"},
      {Kind::whole_query_scalar, "Gemma's query_scalar is a whole number, found {}"}};
  const auto limits = [&](Kind kind, const char* text) {
    std::vector<Limit> all{{kind, text}};
    all.insert(all.end(), common.begin(), common.end());
    return all;
  };
  Family made;
  made.name = "gemma";
  made.title = "Gemma";
  made.norm = NormKind::rms;
  made.mlp = MlpKind::geglu;
  made.post_norms = true;
  made.gain_base = 1.0f;
  made.scaled_embedding = true;
  made.qk_norms = true;
  made.windows = true;
  made.caps = true;
  made.tensors = tensors;
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "Gemma2ForCausalLM";
    one.model_type = "gemma2";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
             "final_logit_softcapping": 30.0, "head_dim": 256,
             "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
             "initializer_range": 0.02, "intermediate_size": 9216, "layer_types": null,
             "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26,
             "num_key_value_heads": 4, "original_max_position_embeddings": null,
             "partial_rotary_factor": null, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
             "rope_parameters": null, "rope_scaling": null, "rope_theta": 10000.0,
             "sliding_window": 4096, "tie_word_embeddings": true,
             "use_bidirectional_attention": null, "vocab_size": 256000
           })";
    one.keys = second;
    one.key_heads = KeyHeads::required;
    one.full_every = 2;
    one.fixed = fixed;
    one.written = R"({"attention_bias": false})";
    one.limits = limits(Kind::one_rope_theta, "layers of Gemma 2 have one base of rotary angles");
  }
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "Gemma3ForCausalLM";
    one.model_type = "gemma3_text";
    one.class_keys = R"({
             "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
             "final_logit_softcapping": null, "head_dim": 256,
             "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
             "initializer_range": 0.02, "intermediate_size": 9216, "layer_types": null,
             "max_position_embeddings": 131072, "num_attention_heads": 8, "num_hidden_layers": 26,
             "num_key_value_heads": 4, "original_max_position_embeddings": null,
             "partial_rotary_factor": null, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
             "rope_local_base_freq": 10000.0, "rope_parameters": null, "rope_scaling": null,
             "rope_theta": 1000000.0, "sliding_window": 4096, "sliding_window_pattern": 6,
             "tie_word_embeddings": true, "use_bidirectional_attention": false,
             "vocab_size": 262208
           })";
    one.keys = third;
    one.key_heads = KeyHeads::required;
    one.qk_norm = true;
    one.fixed = fixed;
    one.written = R"({"attention_bias": false, "attn_logit_softcapping": null})";
    one.limits = limits(Kind::no_attention_cap, "Gemma 3 caps no scores");
  }
  return made;
}

/// GPT-OSS: Llama's parts with biases of all linear layers, trained sinks of attention and experts
/// alone, whose gates and values are bounded.
Family gpt_oss() {
  Family made;
  made.name = "gpt_oss";
  made.title = "GPT-OSS";
  made.norm = NormKind::rms;
  made.mlp = MlpKind::clamped_swiglu;
  made.biased = true;
  made.windows = true;
  made.experts = true;
  made.sinks = true;
  made.only_experts = true;
  made.tensors = llama_tensors();
  {
    Architecture& one = made.architectures.emplace_back();
    one.name = "GptOssForCausalLM";
    one.model_type = "gpt_oss";
    one.class_keys = R"({
             "attention_bias": true, "attention_dropout": 0.0, "head_dim": 64,
             "hidden_act": "silu", "hidden_size": 2880, "initializer_range": 0.02,
             "intermediate_size": 2880, "layer_types": null, "max_position_embeddings": 131072,
             "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 36,
             "num_key_value_heads": 8, "num_local_experts": 128,
             "original_max_position_embeddings": null, "output_router_logits": false,
             "partial_rotary_factor": null, "rms_norm_eps": 1e-05,
             "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
             "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
             "rope_scaling": null, "rope_theta": 150000.0, "router_aux_loss_coef": 0.001,
             "sliding_window": 128, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
             "tie_word_embeddings": false, "vocab_size": 201088
           })";
    one.keys.num_experts = "num_local_experts";
    one.qkv_bias = true;
    one.experts = true;
    one.expert_form = ExpertForm::interleaved;
    one.tensors = {{"attention.sinks.bias", {"self_attn.sinks"}},
                   {"mlp.router", {"mlp.router"}},
                   {"mlp.experts.in.weight", {"mlp.experts.gate_up_proj"}},
                   {"mlp.experts.in.bias", {"mlp.experts.gate_up_proj_bias"}},
                   {"mlp.experts.out.weight", {"mlp.experts.down_proj"}},
                   {"mlp.experts.out.bias", {"mlp.experts.down_proj_bias"}}};
    one.full_every = 2;
    one.fixed = {{"attention_bias", true, ": all linear layers of a gpt_oss have a bias"},
                 {"swiglu_alpha", 1.702},
                 {"swiglu_limit", 7.0}};
    one.written = R"({"attention_bias": true, "swiglu_alpha": 1.702, "swiglu_limit": 7.0})";
    one.limits = {{Kind::all_biases, "all linear layers of GPT-OSS have a bias"},
                  {Kind::normalized_topk, "GPT-OSS's gates sum to 1"},
                  {Kind::one_rope_theta, "layers of GPT-OSS have one base of rotary angles"}};
  }
  return made;
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> all{gpt(), llama(), falcon(), neox(), gemma(), gpt_oss()};
  return all;
}

const Family& family(std::string_view name) {
  const auto found = std::ranges::find(families(), name, &Family::name);
  require(found != families().end(), Failure::bug, "no family is called \"{}\"", name);
  return *found;
}

std::string names(const std::function<bool(const Family&)>& has) {
  std::vector<std::string> all;
  for (const Family& one : families())
    if (has(one)) all.push_back(one.name);
  if (all.size() < 2) return fmt::format("{}", fmt::join(all, ""));
  const std::string last = all.back();
  all.pop_back();
  return fmt::format("{} and {}", fmt::join(all, ", "), last);
}

std::vector<std::string> activation_names(MlpKind mlp) {
  switch (mlp) {
    case MlpKind::gelu_tanh: return {"gelu_new", "gelu_pytorch_tanh"};
    case MlpKind::gelu_erf: return {"gelu"};
    case MlpKind::swiglu:
    case MlpKind::clamped_swiglu: return {"silu", "swish"};
    case MlpKind::geglu: return {"gelu_pytorch_tanh"};
  }
  return {};
}

}  // namespace brume::families
