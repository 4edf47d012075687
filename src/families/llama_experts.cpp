/// @file Llama's architectures with experts.
#include "rows.hpp"

namespace brume::families {
namespace {

/// A layer's experts, as Qwen's files have them.
TensorNames::Map expert_tensors() {
  return {{"mlp.router", {"mlp.gate"}},
          {"mlp.experts.in", {"mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"}},
          {"mlp.experts.out", {"mlp.experts.*.down_proj"}}};
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

}  // namespace

void add_llama_experts(Family& made) {
  const std::string biases = only_qkv_biases;
  const Limit one_theta = one_rope_theta();
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
}

}  // namespace brume::families
