/// @file Deck keys from the config.json of a Hugging Face model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/log.hpp"
#include "config_classes.hpp"
#include "deck/json.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

using nlohmann::json;

/// Keys that say nothing about what is computed, or nothing that training would change.
const std::set<std::string> silent_keys{"architectures",
                                        "model_type",
                                        "torch_dtype",
                                        "dtype",
                                        "transformers_version",
                                        "use_cache",
                                        "bos_token_id",
                                        "eos_token_id",
                                        "pad_token_id",
                                        "unk_token_id",
                                        "pretraining_tp",
                                        "n_ctx",
                                        "classifier_dropout",
                                        "task_specific_params",
                                        "reorder_and_upcast_attn",
                                        "auto_map",
                                        "is_decoder",
                                        "hidden_act",
                                        "cache_implementation",
                                        "layer_types"};

/// A JSON object that remembers which of its keys were asked for.
class ConfigFile {
 public:
  ConfigFile(json object, std::string path) : object_(std::move(object)), path_(std::move(path)) {}

  /// Sets the keys that the file's class reads, with the values of those that the file leaves out.
  void set_class(const std::string& architecture) {
    class_ = json::parse(config_classes).at(architecture);
  }
  /// Whether the file's class reads the key. The Transformers library ignores any other one.
  bool reads(const std::string& key) const { return class_.contains(key); }

  template <typename... Args>
  void needs(bool holds, fmt::format_string<Args...> format, Args&&... args) const {
    if (!holds)
      throw Error(Failure::input, "{}: {}", path_,
                  fmt::format(format, std::forward<Args>(args)...));
  }

  /// The value of a key, or that of the class where the file leaves the key out; nothing: null.
  const json* find(const std::string& key) {
    met_.insert(key);
    auto found = object_.find(key);
    if (found == object_.end()) {
      found = class_.find(key);
      if (found == class_.end()) return nullptr;
    }
    return found->is_null() ? nullptr : &*found;
  }

  std::optional<int> size_if(const std::string& key, int least = 1) {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    needs(value->is_number_integer() && *value >= least && *value <= 2147483647,
          "'{}' must be a whole number from {} on, found {}", key, least,
          deck::describe_json(*value));
    if (!object_.contains(key)) sizes_of_class_.insert(fmt::format("{} = {}", key, value->dump()));
    return value->get<int>();
  }
  int size(const std::string& key, int least = 1) {
    const std::optional<int> value = size_if(key, least);
    needs(value.has_value(), "'{}' must be a whole number from {} on, found null", key, least);
    return *value;
  }
  std::optional<double> number_if(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    needs(value->is_number(), "'{}' must be a number, found {}", key, deck::describe_json(*value));
    return value->get<double>();
  }
  double number(const std::string& key) {
    const std::optional<double> value = number_if(key);
    needs(value.has_value(), "'{}' must be a number, found null", key);
    return *value;
  }
  /// Null is false, as in Python.
  bool truth(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return false;
    needs(value->is_boolean(), "'{}' must be true or false, found {}", key,
          deck::describe_json(*value));
    return value->get<bool>();
  }
  /// Empty: null.
  std::string word(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return "";
    needs(value->is_string(), "'{}' must be a string, found {}", key, deck::describe_json(*value));
    return value->get<std::string>();
  }
  /// Empty: null, or an object without keys.
  json table(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return json::object();
    needs(value->is_object(), "'{}' must be an object, found {}", key, deck::describe_json(*value));
    return *value;
  }

  const std::string& path() const { return path_; }
  /// "key = value" of each size that the file leaves out.
  const std::set<std::string>& sizes_of_class() const { return sizes_of_class_; }

  std::vector<std::string> unknown() const {
    constexpr std::size_t longest = 40, most = 20;  // in a message
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items())
      if (!value.is_null() && !met_.contains(key) && !silent_keys.contains(key) &&
          !key.starts_with("_") && !key.starts_with("summary_"))
        keys.push_back(key.substr(0, longest));
    if (keys.size() > most) keys.resize(most), keys.emplace_back("...");
    return keys;
  }

 private:
  json object_;
  std::string path_;
  json class_ = json::object();
  std::set<std::string> met_;
  std::set<std::string> sizes_of_class_;
};

ConfigFile load(const deck::ModelKeys& keys) {
  constexpr std::size_t largest = std::size_t{16} << 20;
  try {
    json object = deck::load_json(keys.config, largest);
    require(object.is_object(), Failure::input, "{}: must be a JSON object, found {}", keys.config,
            deck::describe_json(object));
    return {std::move(object), keys.config};
  } catch (const Error& error) {
    throw Error(error.failure(), "{}: 'model.config': {}", keys.config_place, error.what());
  }
}

/// Fills in the keys that the deck did not give, within the bounds of the deck's schema.
class KeyWriter {
 public:
  KeyWriter(deck::ModelKeys& keys, const ConfigFile& file) : keys_(keys), file_(file) {}
  bool given(const char* key) const { return std::ranges::count(keys_.given, key) > 0; }
  /// @param from  what the file calls it
  template <typename T>
  void set(const char* key, T deck::ModelKeys::*member, T value, const char* from) {
    if (given(key)) return;
    keys_.*member = std::move(value);
    check(key, from);
  }
  /// Refuses a value that the deck could not have given.
  void check(const char* key, const char* from) const {
    const std::string refusal = deck::model_schema().refusal(key, keys_);
    file_.needs(refusal.empty(), "'{}' {}", from, refusal);
  }
  deck::ModelKeys& keys() { return keys_; }

 private:
  deck::ModelKeys& keys_;
  const ConfigFile& file_;
};

using Keys = deck::ModelKeys;

/// Brume trains without dropout; a file that asks for it must be told so.
void refuse_dropout(ConfigFile& file, const KeyWriter& out,
                    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const double dropout = file.number_if(name).value_or(0.0);
    file.needs(dropout == 0.0 || out.given("dropout"),
               "'{}' is {}, but training here has no dropout: say dropout = 0 under [model] in the "
               "deck, or --set model.dropout=0, to train without it",
               name, dropout);
  }
}

void refuse_activation(ConfigFile& file, const char* key,
                       std::initializer_list<const char*> known) {
  const std::string found = file.word(key);
  file.needs(std::ranges::count(known, found) > 0, "'{}' must be {}, found \"{:.40}\"", key,
             fmt::join(known, " or "), found);
}

void set_common(ConfigFile& file, KeyWriter& out, const char* family) {
  out.set("family", &Keys::family, std::string(family), "architectures");
  file.needs(out.keys().family == family,
             "this model is a {}: leave model.family = \"{}\" out of the deck", family,
             out.keys().family);
  out.set("tied_head", &Keys::tied_head, file.truth("tie_word_embeddings"), "tie_word_embeddings");
  out.set("vocab_size", &Keys::vocab_size, file.size("vocab_size"), "vocab_size");
  out.set("init_std", &Keys::init_std, file.number("initializer_range"), "initializer_range");
}

/// What a model could read is seldom what it is trained on: longer lengths must be meant.
void set_seq_len(ConfigFile& file, KeyWriter& out, const char* key) {
  constexpr int unasked = 1 << 14;
  if (out.given("seq_len")) return void(file.find(key));
  const int longest = file.size(key);
  file.needs(longest <= unasked,
             "'{}' is {}: say how many tokens a sequence has, as seq_len = 4096 under [model] in "
             "the deck, or --set model.seq_len=4096",
             key, longest);
  out.set("seq_len", &Keys::seq_len, longest, key);
}

/// Sizes under the names that all but GPT-2 use.
void set_sizes(ConfigFile& file, KeyWriter& out) {
  out.set("num_layers", &Keys::num_layers, file.size("num_hidden_layers"), "num_hidden_layers");
  out.set("hidden_size", &Keys::hidden_size, file.size("hidden_size"), "hidden_size");
  out.set("num_heads", &Keys::num_heads, file.size("num_attention_heads"), "num_attention_heads");
  if (file.reads("head_dim"))
    out.set("head_dim", &Keys::head_dim, file.size_if("head_dim").value_or(0), "head_dim");
  set_seq_len(file, out, "max_position_embeddings");
}

/// What files call the base of the angles and the share of a head that is turned. Where kinds of
/// layers differ, newer files have a table for each.
struct RopeNames {
  const char* theta = "rope_theta";
  const char* share = "partial_rotary_factor";
  const char* kind = nullptr;
};

/// What a file says of rotary positions: older ones in `rope_scaling`, newer ones in
/// `rope_parameters`, which the older key takes the place of.
json rope_table(ConfigFile& file, const char* kind) {
  const json older = file.table("rope_scaling");
  json newer = file.table("rope_parameters");
  if (kind == nullptr) return older.empty() ? newer : older;
  json table = ConfigFile(std::move(newer), file.path() + ": rope_parameters").table(kind);
  table.update(older);
  return table;
}

deck::RopeScalingKeys rope_scaling(ConfigFile& file, ConfigFile& rope, const std::string& kind) {
  deck::RopeScalingKeys keys;
  if (kind == "default") return keys;
  const auto needed = [&](const char* key) {
    rope.needs(rope.find(key) != nullptr, "missing key '{}'", key);
    return rope.number(key);
  };
  keys.kind = kind;
  keys.factor = needed("factor");
  if (kind == "linear") return keys;
  keys.low_freq_factor = needed("low_freq_factor");
  keys.high_freq_factor = needed("high_freq_factor");
  std::optional<int> original = file.size_if("original_max_position_embeddings");
  if (!original) original = rope.size_if("original_max_position_embeddings");
  keys.original_seq_len = original ? *original : file.size("max_position_embeddings");
  return keys;
}

void set_rope(ConfigFile& file, KeyWriter& out, const RopeNames& names = {}) {
  const json table = rope_table(file, names.kind);
  ConfigFile rope(table, file.path() + ": rope_scaling");
  for (const auto& [key, value] : table.items())
    rope.needs(!value.is_object(), "'{:.40}' must be a number or a word, found an object", key);
  std::string kind = rope.word("rope_type");
  if (kind.empty()) kind = rope.word("type");
  if (kind.empty()) kind = "default";
  rope.needs(kind == "default" || kind == "linear" || kind == "llama3",
             "'rope_type' must be default, linear or llama3, found \"{:.40}\"", kind);
  if (!out.given("rope_scaling")) {
    out.keys().rope_scaling = rope_scaling(file, rope, kind);
    for (const auto& [key, from] :
         {std::pair("rope_scaling.factor", "rope_scaling.factor"),
          std::pair("rope_scaling.low_freq_factor", "rope_scaling.low_freq_factor"),
          std::pair("rope_scaling.high_freq_factor", "rope_scaling.high_freq_factor"),
          std::pair("rope_scaling.original_seq_len",
                    "rope_scaling.original_max_position_embeddings")})
      out.check(key, from);
  }
  const std::optional<double> own_theta = rope.number_if("rope_theta");
  const std::optional<double> older_theta = file.number_if(names.theta);
  const std::optional<double> theta = own_theta ? own_theta : older_theta;
  file.needs(theta.has_value(), "'{}' must be a number, found null", names.theta);
  out.set("rope_theta", &Keys::rope_theta, *theta, names.theta);

  const std::optional<double> own_share = rope.number_if("partial_rotary_factor");
  const std::optional<double> older_share = file.number_if(names.share);
  const double share = own_share ? *own_share : older_share.value_or(1.0);
  file.needs(share > 0.0 && share <= 1.0, "'{}' must be above 0 and at most 1, found {}",
             names.share, share);
  if (share == 1.0) return;
  const Keys& keys = out.keys();
  const int head_dim = keys.head_dim > 0 ? keys.head_dim : keys.hidden_size / keys.num_heads;
  const int turned = std::max(1, int(head_dim * share));
  if (keys.family == "neox") return out.set("rotary_dim", &Keys::rotary_dim, turned, names.share);
  // The Transformers library turns whole heads in these families, and fails where scaled angles are
  // fewer.
  file.needs(kind == "default" || turned == head_dim,
             "'{}' must be 1 beside '{}' scaling of rotary angles, found {}", names.share, kind,
             share);
  log::warn("{}: '{}' = {} is not applied, as in the Transformers library: a {} turns whole heads",
            file.path(), names.share, share, keys.family);
}

void read_gpt2(ConfigFile& file, KeyWriter& out) {
  set_common(file, out, "gpt");
  out.set("num_layers", &Keys::num_layers, file.size("n_layer"), "n_layer");
  out.set("hidden_size", &Keys::hidden_size, file.size("n_embd"), "n_embd");
  out.set("num_heads", &Keys::num_heads, file.size("n_head"), "n_head");
  out.set("ffn_size", &Keys::ffn_size, file.size_if("n_inner").value_or(0), "n_inner");
  set_seq_len(file, out, "n_positions");
  out.set("norm_eps", &Keys::norm_eps, file.number("layer_norm_epsilon"), "layer_norm_epsilon");
  refuse_activation(file, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  refuse_dropout(file, out, {"resid_pdrop", "embd_pdrop", "attn_pdrop"});
  file.needs(file.truth("scale_attn_weights"), "'scale_attn_weights' must be true");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    file.needs(!file.truth(key), "'{}' must be false", key);
}

/// Which of a family's layers have a window where a file does not list them.
struct Windows {
  int first = 0;             ///< layers before this one see all
  int full_every = 1 << 30;  ///< so does each of so many
};

/// The shortest list that gives each layer its kind when layers take it in turn.
std::vector<std::string> in_turn(std::vector<std::string> kinds) {
  for (std::size_t turn = 1; turn < kinds.size(); ++turn) {
    std::size_t i = turn;
    while (i < kinds.size() && kinds[i] == kinds[i % turn]) ++i;
    if (i == kinds.size()) kinds.resize(turn);
  }
  return kinds;
}

std::vector<std::string> layer_kinds(ConfigFile& file, const Windows& windows) {
  std::vector<std::string> kinds;
  const json* types = file.reads("layer_types") ? file.find("layer_types") : nullptr;
  const std::size_t layers = std::size_t(file.size("num_hidden_layers"));
  file.needs(layers <= 10000, "'num_hidden_layers' must be at most 10000, found {}", layers);
  if (types == nullptr) {
    for (int i = 0; i < int(layers); ++i)
      kinds.emplace_back(i >= windows.first && (i + 1) % windows.full_every != 0 ? "window"
                                                                                 : "full");
    return kinds;
  }
  file.needs(types->is_array() && types->size() == layers,
             "'layer_types' must be a list of {} words, found {}", layers,
             deck::describe_json(*types));
  for (const json& type : *types) {
    file.needs(type == "full_attention" || type == "sliding_attention",
               "'layer_types' must be full_attention or sliding_attention, found {}",
               deck::describe_json(type));
    kinds.emplace_back(type == "sliding_attention" ? "window" : "full");
  }
  return kinds;
}

void set_window(ConfigFile& file, KeyWriter& out, const Windows& windows) {
  if (file.reads("use_sliding_window") && !file.truth("use_sliding_window")) return;
  const std::optional<int> size = file.size_if("sliding_window");
  if (!size) return;
  const std::vector<std::string> kinds = in_turn(layer_kinds(file, windows));
  if (std::ranges::count(kinds, "window") == 0) return;
  out.set("window", &Keys::window, *size, "sliding_window");
  if (std::ranges::count(kinds, "full") > 0)
    out.set("layer_kinds", &Keys::layer_kinds, kinds, "layer_types");
}

/// What models that are llamas but for their name have.
struct LlamaKind {
  bool qkv_bias = false;
  bool qk_norm = false;
};

void read_llama(ConfigFile& file, KeyWriter& out, const LlamaKind& kind) {
  set_common(file, out, "llama");
  set_sizes(file, out);
  set_rope(file, out);
  out.set("num_kv_heads", &Keys::num_kv_heads, file.size_if("num_key_value_heads").value_or(0),
          "num_key_value_heads");
  out.set("ffn_size", &Keys::ffn_size, file.size("intermediate_size"), "intermediate_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("rms_norm_eps"), "rms_norm_eps");
  out.set("qkv_bias", &Keys::qkv_bias, kind.qkv_bias, "architectures");
  out.set("qk_norm", &Keys::qk_norm, kind.qk_norm, "architectures");
  out.set("linear_bias", &Keys::linear_bias, false, "architectures");
  refuse_activation(file, "hidden_act", {"silu", "swish"});
  refuse_dropout(file, out, {"attention_dropout"});
  for (const char* key : {"attention_bias", "mlp_bias"})
    file.needs(!file.reads(key) || !file.truth(key),
               "'{}' must be false: a llama's only biases here are those of queries, keys and "
               "values",
               key);
  if (!file.reads("sliding_window")) return;
  Windows windows;
  if (file.reads("max_window_layers")) windows.first = file.size("max_window_layers", 0);
  set_window(file, out, windows);
}

void read_falcon(ConfigFile& file, KeyWriter& out) {
  set_common(file, out, "falcon");
  set_sizes(file, out);
  set_rope(file, out);
  const bool grouped = file.truth("new_decoder_architecture");
  const bool one_key_head = file.truth("multi_query") && !grouped;
  const int key_heads = file.size_if("num_kv_heads").value_or(0);
  out.set("num_kv_heads", &Keys::num_kv_heads,
          one_key_head ? 1
          : grouped    ? key_heads
                       : 0,
          "num_kv_heads");
  const int norms = file.size_if("num_ln_in_parallel_attn").value_or(grouped ? 2 : 1);
  file.needs(grouped || norms == 1,
             "'num_ln_in_parallel_attn' must be 1 unless 'new_decoder_architecture' is true, found "
             "{}",
             norms);
  out.set("layer_norms", &Keys::layer_norms, norms, "num_ln_in_parallel_attn");
  out.set("ffn_size", &Keys::ffn_size, file.size_if("ffn_hidden_size").value_or(0),
          "ffn_hidden_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("layer_norm_epsilon"), "layer_norm_epsilon");
  const bool bias = file.truth("bias");
  out.set("qkv_bias", &Keys::qkv_bias, bias, "bias");
  out.set("linear_bias", &Keys::linear_bias, bias, "bias");
  refuse_activation(file, "activation", {"gelu"});
  refuse_dropout(file, out, {"hidden_dropout", "attention_dropout"});
  file.needs(file.truth("parallel_attn"),
             "'parallel_attn' must be true: a falcon's attention and MLP are parallel here");
  file.needs(!file.truth("apply_residual_connection_post_layernorm"),
             "'apply_residual_connection_post_layernorm' must be false");
}

void read_neox(ConfigFile& file, KeyWriter& out) {
  set_common(file, out, "neox");
  set_sizes(file, out);
  set_rope(file, out, {.theta = "rotary_emb_base", .share = "rotary_pct"});
  out.set("ffn_size", &Keys::ffn_size, file.size("intermediate_size"), "intermediate_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("layer_norm_eps"), "layer_norm_eps");
  out.set("parallel_residual", &Keys::parallel_residual, file.truth("use_parallel_residual"),
          "use_parallel_residual");
  refuse_activation(file, "hidden_act", {"gelu"});
  refuse_dropout(file, out, {"attention_dropout", "hidden_dropout"});
  file.needs(file.truth("attention_bias"),
             "'attention_bias' must be true: all linear layers of a neox have a bias");
}

/// @param third  Gemma 3; else Gemma 2
void read_gemma(ConfigFile& file, KeyWriter& out, bool third) {
  set_common(file, out, "gemma");
  set_sizes(file, out);
  set_rope(file, out, {.kind = third ? "full_attention" : nullptr});
  out.set("num_kv_heads", &Keys::num_kv_heads, file.size("num_key_value_heads"),
          "num_key_value_heads");
  out.set("ffn_size", &Keys::ffn_size, file.size("intermediate_size"), "intermediate_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("rms_norm_eps"), "rms_norm_eps");
  out.set("qkv_bias", &Keys::qkv_bias, false, "architectures");
  out.set("linear_bias", &Keys::linear_bias, false, "architectures");
  out.set("qk_norm", &Keys::qk_norm, third, "architectures");
  out.set("query_scalar", &Keys::query_scalar, file.number("query_pre_attn_scalar"),
          "query_pre_attn_scalar");
  if (!third)  // Gemma 3 does not read it
    out.set("attention_cap", &Keys::attention_cap,
            file.number_if("attn_logit_softcapping").value_or(0.0), "attn_logit_softcapping");
  out.set("logits_cap", &Keys::logits_cap, file.number_if("final_logit_softcapping").value_or(0.0),
          "final_logit_softcapping");
  refuse_activation(file, "hidden_activation", {"gelu_pytorch_tanh"});
  refuse_dropout(file, out, {"attention_dropout"});
  for (const char* key : {"attention_bias", "use_bidirectional_attention"})
    file.needs(!file.truth(key), "'{}' must be false", key);
}

void read_gemma2(ConfigFile& file, KeyWriter& out) {
  read_gemma(file, out, false);
  set_window(file, out, {.full_every = 2});
}

void read_gemma3(ConfigFile& file, KeyWriter& out) {
  read_gemma(file, out, true);
  const bool listed = file.find("layer_types") != nullptr;
  set_window(file, out, {.full_every = listed ? 1 : file.size("sliding_window_pattern")});
  const std::optional<double> older = file.number_if("rope_local_base_freq");
  if (out.keys().window == 0) return;
  ConfigFile tables(file.table("rope_parameters"), file.path() + ": rope_parameters");
  const json table = tables.table("sliding_attention");
  // One table for all kinds is no base of their own.
  if (!table.empty() && table == rope_table(file, "full_attention")) return;
  ConfigFile rope(table, tables.path() + ": sliding_attention");
  const std::string kind = rope.word("rope_type");
  rope.needs(kind.empty() || kind == "default",
             "'rope_type' must be default, or as in full_attention, found \"{:.40}\"", kind);
  const std::optional<double> own = rope.number_if("rope_theta");
  rope.needs(own || older, "'rope_theta' must be a number, found null");
  out.set("window_rope_theta", &Keys::window_rope_theta, own ? *own : *older,
          "rope_local_base_freq");
}

using Read = void (*)(ConfigFile&, KeyWriter&);
struct Architecture {
  std::string name, model_type;
  Read read;
};
const std::vector<Architecture> architectures{
    {"GPT2LMHeadModel", "gpt2", read_gpt2},
    {"LlamaForCausalLM", "llama", [](ConfigFile& f, KeyWriter& out) { read_llama(f, out, {}); }},
    {"MistralForCausalLM", "mistral",
     [](ConfigFile& f, KeyWriter& out) { read_llama(f, out, {}); }},
    {"Qwen2ForCausalLM", "qwen2",
     [](ConfigFile& f, KeyWriter& out) { read_llama(f, out, {.qkv_bias = true}); }},
    {"Qwen3ForCausalLM", "qwen3",
     [](ConfigFile& f, KeyWriter& out) { read_llama(f, out, {.qk_norm = true}); }},
    {"FalconForCausalLM", "falcon", read_falcon},
    {"GPTNeoXForCausalLM", "gpt_neox", read_neox},
    {"Gemma2ForCausalLM", "gemma2", read_gemma2},
    {"Gemma3ForCausalLM", "gemma3_text", read_gemma3},
};

/// What a file asks for that no family here has, as far as its keys and name say.
std::string missing(ConfigFile& file, const std::string& name) {
  std::vector<std::string> parts;
  for (const char* key :
       {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    const json* value = file.find(key);
    if (value != nullptr && *value != 1 && parts.empty()) parts.emplace_back("mixtures of experts");
  }
  if (file.find("kv_lora_rank") != nullptr) parts.emplace_back("latent attention");
  const json* alibi = file.find("alibi");
  if ((alibi != nullptr && *alibi == true) || name.starts_with("Bloom") || name.starts_with("MPT"))
    parts.emplace_back("ALiBi positions");
  if (file.find("vision_config") != nullptr) parts.emplace_back("images");
  return fmt::format("{}", fmt::join(parts, " and "));
}

/// Dispatches by the architecture or, where the file names none, by the type of model.
const Architecture& architecture(ConfigFile& file) {
  const json* names = file.find("architectures");
  const std::string type = file.word("model_type");
  file.needs(names != nullptr || !type.empty(),
             "neither 'architectures' nor 'model_type' says what kind of model it is");
  file.needs(
      names == nullptr || (names->is_array() && names->size() == 1 && (*names)[0].is_string()),
      "'architectures' must be a list of one name, found {}",
      names ? deck::describe_json(*names) : "");
  const std::string name = names != nullptr ? (*names)[0].get<std::string>() : type;
  const auto found = std::ranges::find(
      architectures, name, names != nullptr ? &Architecture::name : &Architecture::model_type);
  const std::string without = missing(file, name);
  std::vector<std::string> known;
  for (const Architecture& one : architectures)
    known.push_back(names != nullptr ? one.name : one.model_type);
  file.needs(found != architectures.end(), "{} \"{:.40}\" is not supported{}. Supported: {}",
             names != nullptr ? "architecture" : "model_type", name,
             without.empty() ? "" : fmt::format(": it has {}", without), fmt::join(known, ", "));
  file.needs(without.empty(), "it has {}, which Brume does not support", without);
  return *found;
}

}  // namespace

deck::ModelKeys resolved(const deck::ModelKeys& keys) {
  if (keys.config.empty()) return keys;
  deck::ModelKeys filled = keys;
  ConfigFile file = load(keys);
  const Architecture& kind = architecture(file);
  file.set_class(kind.name);
  KeyWriter writer(filled, file);
  kind.read(file, writer);
  if (const auto& sizes = file.sizes_of_class(); !sizes.empty())
    log::warn("{}: has not all sizes, so they are as in the Transformers library's class: {}",
              keys.config, fmt::join(sizes, ", "));
  if (const auto unknown = file.unknown(); !unknown.empty())
    log::warn("{}: keys without meaning here: {}", keys.config, fmt::join(unknown, ", "));
  if (filled.ffn_size == 0) filled.ffn_size = 4 * filled.hidden_size;
  filled.config.clear();
  try {
    config(filled, "fp32");  // sizes must fit each other
  } catch (const Error& error) {
    throw Error(error.failure(), "{}: {}", keys.config, error.what());
  }
  return filled;
}

}  // namespace brume::model
