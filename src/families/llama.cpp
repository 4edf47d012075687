/// @file Llama and its kin without experts.
#include "rows.hpp"

namespace brume::families {

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

Limit one_rope_theta() {
  return {Kind::one_rope_theta, "its layers have one base of rotary angles"};
}

/// Llama, Mistral, Qwen 2 and 3, OLMoE, GLM-4.5, DeepSeek V2 and V3: rotary positions, RMS norms,
/// SwiGLU; attention, then MLP.
Family llama() {
  const std::string biases = only_qkv_biases;
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
  add_llama_experts(made);
  return made;
}

}  // namespace brume::families
