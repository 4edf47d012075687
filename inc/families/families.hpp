/// @file Families of models, a row each: decks, parameters, config.json, weights and exports follow
/// from it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace brume::families {

enum class NormKind { layer, rms };
enum class MlpKind { gelu_tanh, gelu_erf, swiglu, geglu, clamped_swiglu };
/// Whether the MLP's first product makes gates and values.
constexpr bool is_gated(MlpKind mlp) { return mlp >= MlpKind::swiglu; }
/// Whether attention and MLP read the same input. by_choice: model.parallel_residual decides.
enum class ParallelBlock { never, always, by_choice };

/// Names of tensors in Hugging Face's files. Maps go from Brume's module, without ".weight",
/// ".gain" and ".bias", to the tensors that hold equal parts of its rows; or from a whole parameter
/// to the tensor that holds it, whose name is whole too. A * stands for the number of an expert:
/// the tensors of expert 0 come first.
struct TensorNames {
  using Map = std::map<std::string, std::vector<std::string>>;
  std::string prefix;  ///< begins all names but the head's
  std::string layers;  ///< precedes the number of a layer
  Map ends;            ///< embedding and head
  Map of_layer;        ///< "norm": norm1 of a layer without norm2
  std::string head = "lm_head";
  std::string fused_qkv = {};  ///< tensor of queries, keys and values by heads; empty: none
  bool transposed = false;     ///< weights of layers are [inputs, outputs]
};

/// Names of keys in config.json. Empty: the architecture has no such key.
struct ConfigKeys {
  std::string num_layers = "num_hidden_layers";
  std::string hidden_size = "hidden_size";
  std::string num_heads = "num_attention_heads";
  std::string seq_len = "max_position_embeddings";
  std::string ffn_size = "intermediate_size";
  std::string norm_eps = "rms_norm_eps";
  std::string activation = "hidden_act";
  std::string rope_theta = "rope_theta";
  std::string rotary_share = {};  ///< share of a head that positions turn; empty: all of it
  std::string bias = {};          ///< biases of all linear layers; empty: see Architecture
  std::string qkv_bias = {};
  std::string qk_norm = {};  ///< empty: see Architecture
  std::string parallel_residual = {};
  std::string num_experts = {};
  std::string experts_per_token = "num_experts_per_tok";
  std::string expert_ffn_size = {};  ///< empty: ffn_size
  std::string first_dense_layers = {};
  std::string shared_expert_ffn_size = {};  ///< width of a shared expert with a gate
  std::string shared_experts = {};          ///< number of shared experts without gates
  std::string routed_scale = {};            ///< empty: 1
  std::string expert_groups = {};
  std::string groups_per_token = {};
  std::string choice = {};          ///< "greedy": of all experts; "group_limited_greedy": of groups
  std::string normalize_topk = {};  ///< empty: true
  std::string query_scalar = {};
  std::string attention_cap = {};
  std::string logits_cap = {};
  std::vector<std::string> dropouts = {"attention_dropout"};
  std::vector<std::string> absent = {};  ///< must be null
};

/// Keys of config.json that give the number of key heads.
enum class KeyHeads {
  none,      ///< no key: there are as many as query heads
  optional,  ///< num_key_value_heads; null: as many as query heads
  required,  ///< num_key_value_heads
  falcon     ///< num_kv_heads, multi_query and new_decoder_architecture, on which norms depend, too
};

/// Tensors of a layer's experts in files. separate: each expert has its own. interleaved: one holds
/// all experts' first products, as [experts, inputs, 2 outputs] with gates in even columns and
/// values in odd ones, and one all second ones, as [experts, inputs, outputs].
enum class ExpertForm { separate, interleaved };

/// A key of config.json that must have this value. Null is false, and fits each word.
struct FixedKey {
  std::string key;
  std::variant<bool, double, std::string> value;
  std::string reason = {};  ///< ends the message about another value
};

/// A property of all models of an architecture.
struct Limit {
  enum class Kind {
    qkv_bias,             ///< queries, keys and values have biases
    no_qkv_bias,          ///< queries, keys and values have no biases
    all_biases,           ///< all linear layers have biases
    equal_biases,         ///< all linear layers have biases, or none
    all_key_heads,        ///< there are as many key heads as query heads
    heads_fill_hidden,    ///< head_dim = hidden_size / num_heads
    heads_divide_hidden,  ///< num_heads divides hidden_size
    no_layer_kinds,       ///< all layers are of one kind
    no_window,
    no_qk_norm,
    gated_shared_expert,
    equal_shared_experts,  ///< a shared expert without a gate is as wide as some routed ones
    normalized_topk,       ///< a token's gates sum to 1
    softmax_of_all,        ///< gates are the softmax of all logits
    one_rope_theta,        ///< layers of all kinds have one base of rotary angles
    no_attention_cap,
    whole_query_scalar
  };
  Kind kind;
  std::string text;  ///< message about a model without it; {}: query_scalar
};

/// A class of the Transformers library whose models are of the family.
struct Architecture {
  std::string name, model_type;
  /// Keys that the class reads, with the value of a key that a file leaves out, as JSON. The script
  /// regression/pytorch/config_classes.py prints them.
  std::string class_keys;
  ConfigKeys keys = {};
  KeyHeads key_heads = KeyHeads::optional;
  // Properties that tell the family's architectures apart. Exports use the last architecture all of
  // whose properties a model has, otherwise the first one; a model has experts where its
  // architecture has them.
  bool qkv_bias = false;
  bool qk_norm = false;
  bool window = false;
  bool experts = false;         ///< layers have these instead of MLPs
  bool shared_expert = false;   ///< ... and one that every token passes
  bool sigmoid_router = false;  ///< scores of experts are sigmoids
  bool joint_qk_norm = false;   ///< norms of queries and keys go over all heads
  bool latent = false;          ///< keys and values are made from fewer features
  ExpertForm expert_form = ExpertForm::separate;
  TensorNames::Map tensors = {};  ///< a layer's, which go before the family's
  int full_every = 1 << 30;       ///< every so many layers one has no window, unless a file
                                  ///< lists the kinds of layers
  /// Key of the number of layers behind the model's for later tokens, which are not read.
  std::string extra_layers = {};
  std::vector<FixedKey> fixed = {};  ///< checked in files that are read
  std::string written = "{}";        ///< keys that each new file has, as JSON
  std::vector<Limit> limits = {};    ///< checked before a file is written
};

struct Family {
  std::string name;   ///< the word of decks
  std::string title;  ///< the word of messages about exports
  NormKind norm;
  MlpKind mlp;
  bool rotary = true;  ///< rotary positions; false: learned ones
  ParallelBlock parallel = ParallelBlock::never;
  int layer_norms = 2;      ///< norms of a layer by default; 1: attention and MLP may share one
  bool post_norms = false;  ///< norms also after attention and MLP
  float gain_base = 0.0f;   ///< norms multiply by this plus their gain
  bool scaled_embedding = false;  ///< the embedding is multiplied by sqrt(hidden_size)
  bool biased = false;            ///< linear layers have biases by default
  // Choices that a deck may make:
  bool qk_norms = false;
  bool windows = false;
  bool experts = false;
  bool latent = false;  ///< keys and values made from fewer features
  bool caps = false;    ///< soft caps of attention scores and logits
  // No choices:
  bool sinks = false;         ///< each head has one more trained score in the softmax
  bool only_experts = false;  ///< no layer has an MLP
  TensorNames tensors;
  std::vector<Architecture> architectures;
};

const std::vector<Family>& families();

/// @throws Error(bug) if no family has this name
const Family& family(std::string_view name);

/// Names of the families with a property, for people: "gpt, llama and neox".
std::string names(const std::function<bool(const Family&)>& has);

/// Values of an activation's key in config.json. New files have the first one.
std::vector<std::string> activation_names(MlpKind mlp);

}  // namespace brume::families
