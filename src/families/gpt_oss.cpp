/// @file GPT-OSS.
#include "rows.hpp"

namespace brume::families {

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

}  // namespace brume::families
