/// @file Gemma 2 and 3.
#include "rows.hpp"

namespace brume::families {

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

}  // namespace brume::families
