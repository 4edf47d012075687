/// @file Families with layer norms: GPT-2, Falcon, GPT-NeoX.
#include "rows.hpp"

namespace brume::families {

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

}  // namespace brume::families
