/// @file Keys of [model], and what a model takes from other tables.
#pragma once

#include <string>
#include <vector>

#include "deck/training_keys.hpp"

namespace brume::deck {

/// How rotary angles are stretched for sequences longer than those of an earlier training.
struct RopeScalingKeys {
  std::string kind = "none";  ///< none | linear | llama3 | yarn
  double factor = 1.0;
  double low_freq_factor = 1.0;  ///< llama3 only, like the next one
  double high_freq_factor = 4.0;
  int original_seq_len = 8192;  ///< llama3 and yarn only
  double beta_fast = 32.0;      ///< yarn only, like all that follow
  double beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 0.0;  ///< 0: by factor and the two scales
  double mscale = 0.0;            ///< 0: not given, like the next one
  double mscale_all_dim = 0.0;
};

struct ModelKeys {
  std::string config;        ///< config.json of a Hugging Face model; the keys given beside it win
  std::string config_place;  ///< not a key itself: where `config` got its value
  std::string weights;       ///< directory that a new training takes its weights from; empty: none
  std::string family = "gpt";
  int num_layers = 0;  ///< may be 0, like the next ones, if `config` gives it
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;            ///< 0: num_heads
  int head_dim = 0;                ///< 0: hidden_size / num_heads
  int kv_lora_rank = 0;            ///< features that keys and values are made from; 0: the stream's
  int q_lora_rank = 0;             ///< features that queries are made from; 0: the stream's
  int v_head_dim = 0;              ///< features of a value; 0: head_dim
  int ffn_size = 0;                ///< 0: 4 hidden_size
  int num_experts = 0;             ///< a layer's, instead of an MLP; 0: none
  int first_dense_layers = 0;      ///< number of first layers with an MLP, not experts
  int experts_per_token = 2;       ///< experts that a token goes through
  int expert_ffn_size = 0;         ///< 0: ffn_size
  int shared_expert_ffn_size = 0;  ///< inner width; 0: no expert that every token passes
  bool shared_expert_gate = false;
  std::string router = "softmax";  ///< softmax | sigmoid
  bool normalize_topk = true;      ///< a token's gates sum to 1, before they are scaled
  double routed_scale = 1.0;       ///< factor of gates
  int expert_groups = 1;
  int groups_per_token = 1;
  std::string balance = "none";  ///< none | bias
  double balance_rate = 0.001;   ///< bias only
  double balance_loss = 0.0;
  double z_loss = 0.0;
  double rank_load_factor = 1.3;  ///< expected
  int seq_len = 0;                ///< tokens
  int vocab_size = 0;
  bool tied_head = true;          ///< the output head shares the token embedding's weights
  bool qkv_bias = true;           ///< but for gpt, neox and gpt_oss: false, unless given
  bool linear_bias = true;        ///< bias of the other linear layers
  int layer_norms = 0;            ///< norms a layer has; 0: 1 for falcon, else 2
  bool qk_norm = false;           ///< queries and keys are normalised, each head alone
  bool qk_norm_joint = false;     ///< ... instead all heads together
  bool parallel_residual = true;  ///< neox: attention and MLP read the same input
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  int rotary_dim = 0;  ///< features of a head that positions turn; 0: all
  int window = 0;      ///< keys that a query of a windowed layer sees, its own included; 0: all
  std::vector<std::string> layer_kinds;  ///< full | window, which layers take in turn; empty: all
                                         ///< window where that is given
  double window_rope_theta = 0.0;        ///< windowed layers, unscaled; 0: as the others
  RopeScalingKeys rope_scaling;
  double query_scalar = 0.0;   ///< scores are divided by its root; 0: head_dim
  double attention_cap = 0.0;  ///< c, scores become c tanh(score / c); 0: they stay
  double logits_cap = 0.0;     ///< the same of logits
  double dropout = 0.0;
  double init_std = 0.02;
  std::string quantization = "none";            ///< none | int8 | nf4
  bool isolated = false;                        ///< not a key itself: data.documents is "isolate"
  std::vector<ParameterGroupKeys> groups = {};  ///< not a key itself: training.optimizer.groups
  std::string optimizer = "adamw";              ///< not a key itself: training.optimizer.name
  std::string moments = "fp32";                 ///< ... training.optimizer.moments
  AdapterKeys adapter = {};                     ///< not a key itself: training.adapter
  bool pairs = false;                           ///< ... training.preference.beta is above 0
  std::vector<std::string> given;               ///< not a key itself: those the deck gave a value
};

}  // namespace brume::deck
