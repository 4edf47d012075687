/// @file Deck keys from the config.json of a Hugging Face model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/log.hpp"
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

  template <typename... Args>
  void needs(bool holds, fmt::format_string<Args...> format, Args&&... args) const {
    if (!holds)
      throw Error(Failure::input, "{}: {}", path_,
                  fmt::format(format, std::forward<Args>(args)...));
  }

  /// The key's value; null counts as absent.
  const json* find(const std::string& key) {
    met_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  int size(const std::string& key, int fallback, int least = 1) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    needs(value->is_number_integer() && *value >= least && *value <= 2147483647,
          "'{}' must be a whole number from {} on, found {}", key, least,
          deck::describe_json(*value));
    return value->get<int>();
  }
  int size(const std::string& key) {
    needs(find(key) != nullptr, "missing key '{}'", key);
    return size(key, 0);
  }
  double number(const std::string& key, double fallback) {
    const json* value = find(key);
    needs(value == nullptr || value->is_number(), "'{}' must be a number, found {}", key,
          value ? deck::describe_json(*value) : "");
    return value ? value->get<double>() : fallback;
  }
  bool truth(const std::string& key, bool fallback) {
    const json* value = find(key);
    needs(value == nullptr || value->is_boolean(), "'{}' must be true or false, found {}", key,
          value ? deck::describe_json(*value) : "");
    return value ? value->get<bool>() : fallback;
  }
  std::string word(const std::string& key, const std::string& fallback) {
    const json* value = find(key);
    needs(value == nullptr || value->is_string(), "'{}' must be a string, found {}", key,
          value ? deck::describe_json(*value) : "");
    return value ? value->get<std::string>() : fallback;
  }

  const std::string& path() const { return path_; }
  const json& object() const { return object_; }

  std::vector<std::string> unknown() const {
    constexpr std::size_t longest = 40, most = 20;  // in a message
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items())
      if (!met_.contains(key) && !silent_keys.contains(key) && !key.starts_with("_") &&
          !key.starts_with("summary_"))
        keys.push_back(key.substr(0, longest));
    if (keys.size() > most) keys.resize(most), keys.emplace_back("...");
    return keys;
  }

 private:
  json object_;
  std::string path_;
  std::set<std::string> met_;
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
    const double dropout = file.number(name, 0.0);
    file.needs(dropout == 0.0 || out.given("dropout"),
               "'{}' is {}, but training here has no dropout: say dropout = 0 under [model] in the "
               "deck, or --set model.dropout=0, to train without it",
               name, dropout);
  }
}

void refuse_activation(ConfigFile& file, const char* key, const std::string& usual,
                       std::initializer_list<const char*> known) {
  const std::string found = file.word(key, usual);
  file.needs(std::ranges::count(known, found) > 0, "'{}' must be {}, found \"{:.40}\"", key,
             fmt::join(known, " or "), found);
}

void set_common(ConfigFile& file, KeyWriter& out, const char* family, bool tied_head) {
  out.set("family", &Keys::family, std::string(family), "architectures");
  file.needs(out.keys().family == family,
             "this model is a {}: leave model.family = \"{}\" out of the deck", family,
             out.keys().family);
  out.set("tied_head", &Keys::tied_head, file.truth("tie_word_embeddings", tied_head),
          "tie_word_embeddings");
  out.set("vocab_size", &Keys::vocab_size, file.size("vocab_size"), "vocab_size");
  out.set("init_std", &Keys::init_std, file.number("initializer_range", 0.02), "initializer_range");
}

/// What a model could read is seldom what it is trained on: longer lengths must be meant.
void set_seq_len(ConfigFile& file, KeyWriter& out, const char* key, int usual) {
  constexpr int unasked = 1 << 14;
  const int longest = file.size(key, usual);
  file.needs(out.given("seq_len") || longest <= unasked,
             "'{}' is {}: say how many tokens a sequence has, as seq_len = 4096 under [model] in "
             "the deck, or --set model.seq_len=4096",
             key, longest);
  out.set("seq_len", &Keys::seq_len, longest, key);
}

/// Sizes under the names that all but GPT-2 use.
void set_sizes(ConfigFile& file, KeyWriter& out, int usual_head_dim = 0) {
  out.set("num_layers", &Keys::num_layers, file.size("num_hidden_layers"), "num_hidden_layers");
  out.set("hidden_size", &Keys::hidden_size, file.size("hidden_size"), "hidden_size");
  out.set("num_heads", &Keys::num_heads, file.size("num_attention_heads"), "num_attention_heads");
  out.set("head_dim", &Keys::head_dim, file.size("head_dim", usual_head_dim), "head_dim");
  set_seq_len(file, out, "max_position_embeddings", 2048);
}

/// What older files call the base of the angles and the share of a head that is turned.
struct RopeNames {
  const char* theta = "rope_theta";
  const char* share = "partial_rotary_factor";
  double usual_share = 1.0;
  double usual_theta = 10000.0;
  const char* of_kind = nullptr;  ///< what newer files call full layers, where kinds differ
};

/// `rope_scaling` beside `rope_theta`, or both in `rope_parameters`, as newer files have it.
void set_rope(ConfigFile& file, KeyWriter& out, const RopeNames& names = {}) {
  double theta = file.number(names.theta, names.usual_theta);
  double share = file.number(names.share, names.usual_share);
  const json* table = file.find("rope_scaling");
  if (const json* newer = file.find("rope_parameters")) table = newer;
  if (names.of_kind != nullptr && table != nullptr && table->is_object() &&
      table->contains(names.of_kind))
    table = &(*table)[names.of_kind];
  if (table != nullptr) {
    file.needs(table->is_object(), "rotary scaling must be an object, found {}",
               deck::describe_json(*table));
    ConfigFile rope(*table, file.path() + ": rope_scaling");
    theta = rope.number("rope_theta", theta);
    const std::string kind = rope.word("rope_type", rope.word("type", "default"));
    rope.needs(kind == "default" || kind == "linear" || kind == "llama3",
               "'rope_type' must be default, linear or llama3, found \"{:.40}\"", kind);
    share = rope.number("partial_rotary_factor", share);
    rope.needs(kind == "default" || rope.find("factor") != nullptr, "missing key 'factor'");
    const deck::RopeScalingKeys usual;
    if (!out.given("rope_scaling")) {
      out.keys().rope_scaling = {
          .kind = kind == "default" ? "none" : kind,
          .factor = rope.number("factor", usual.factor),
          .low_freq_factor = rope.number("low_freq_factor", usual.low_freq_factor),
          .high_freq_factor = rope.number("high_freq_factor", usual.high_freq_factor),
          .original_seq_len =
              rope.size("original_max_position_embeddings", usual.original_seq_len)};
      for (const auto& [key, from] :
           {std::pair("rope_scaling.factor", "rope_scaling.factor"),
            std::pair("rope_scaling.low_freq_factor", "rope_scaling.low_freq_factor"),
            std::pair("rope_scaling.high_freq_factor", "rope_scaling.high_freq_factor"),
            std::pair("rope_scaling.original_seq_len",
                      "rope_scaling.original_max_position_embeddings")})
        out.check(key, from);
    }
  }
  out.set("rope_theta", &Keys::rope_theta, theta, names.theta);
  file.needs(share > 0.0 && share <= 1.0, "'{}' must be above 0 and at most 1, found {}",
             names.share, share);
  const Keys& keys = out.keys();
  const int head_dim = keys.head_dim > 0 ? keys.head_dim : keys.hidden_size / keys.num_heads;
  if (share < 1.0)
    out.set("rotary_dim", &Keys::rotary_dim, std::max(1, int(head_dim * share)), names.share);
}

void read_gpt2(ConfigFile& file, KeyWriter& out) {
  set_common(file, out, "gpt", true);
  out.set("num_layers", &Keys::num_layers, file.size("n_layer"), "n_layer");
  out.set("hidden_size", &Keys::hidden_size, file.size("n_embd"), "n_embd");
  out.set("num_heads", &Keys::num_heads, file.size("n_head"), "n_head");
  out.set("ffn_size", &Keys::ffn_size, file.size("n_inner", 0), "n_inner");
  set_seq_len(file, out, "n_positions", 1024);
  out.set("norm_eps", &Keys::norm_eps, file.number("layer_norm_epsilon", 1e-5),
          "layer_norm_epsilon");
  refuse_activation(file, "activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  refuse_dropout(file, out, {"resid_pdrop", "embd_pdrop", "attn_pdrop"});
  file.needs(file.truth("scale_attn_weights", true), "'scale_attn_weights' must be true");
  file.needs(!file.truth("scale_attn_by_inverse_layer_idx", false),
             "'scale_attn_by_inverse_layer_idx' must be false");
}

/// Which of a family's layers have a window where a file does not list them.
struct Windows {
  bool usual = false;        ///< whether there is a window unless the file says otherwise
  int usual_size = 0;        ///< where the file does not give it
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
  const json* types = file.find("layer_types");
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
  const bool given = file.object().contains("sliding_window");
  const int size = file.size("sliding_window", given ? 0 : windows.usual_size);
  if (!file.truth("use_sliding_window", windows.usual) || size == 0) return;
  const std::vector<std::string> kinds = in_turn(layer_kinds(file, windows));
  if (std::ranges::count(kinds, "window") == 0) return;
  out.set("window", &Keys::window, size, "sliding_window");
  if (std::ranges::count(kinds, "full") > 0)
    out.set("layer_kinds", &Keys::layer_kinds, kinds, "layer_types");
}

/// What models that are llamas but for their name have.
struct LlamaKind {
  bool qkv_bias = false;
  bool qk_norm = false;
  int usual_head_dim = 0;
  Windows windows = {};
};

void read_llama(ConfigFile& file, KeyWriter& out, const LlamaKind& kind) {
  set_common(file, out, "llama", false);
  set_sizes(file, out, kind.usual_head_dim);
  set_rope(file, out);
  out.set("num_kv_heads", &Keys::num_kv_heads, file.size("num_key_value_heads", 0),
          "num_key_value_heads");
  out.set("ffn_size", &Keys::ffn_size, file.size("intermediate_size"), "intermediate_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("rms_norm_eps", 1e-6), "rms_norm_eps");
  out.set("qkv_bias", &Keys::qkv_bias, kind.qkv_bias, "architectures");
  out.set("qk_norm", &Keys::qk_norm, kind.qk_norm, "architectures");
  out.set("linear_bias", &Keys::linear_bias, false, "architectures");
  refuse_activation(file, "hidden_act", "silu", {"silu", "swish"});
  refuse_dropout(file, out, {"attention_dropout"});
  for (const char* key : {"attention_bias", "mlp_bias"})
    file.needs(!file.truth(key, false),
               "'{}' must be false: a llama's only biases here are those of queries, keys and "
               "values",
               key);
  Windows windows = kind.windows;
  windows.first = file.size("max_window_layers", windows.first, 0);
  set_window(file, out, windows);
}

void read_falcon(ConfigFile& file, KeyWriter& out) {
  set_common(file, out, "falcon", true);
  set_sizes(file, out);
  set_rope(file, out);
  const bool grouped = file.truth("new_decoder_architecture", false);
  const bool one_key_head = file.truth("multi_query", true) && !grouped;
  const int key_heads = file.size("num_kv_heads", 0);
  out.set("num_kv_heads", &Keys::num_kv_heads,
          one_key_head ? 1
          : grouped    ? key_heads
                       : 0,
          "num_kv_heads");
  out.set("layer_norms", &Keys::layer_norms, file.size("num_ln_in_parallel_attn", grouped ? 2 : 1),
          "num_ln_in_parallel_attn");
  out.set("ffn_size", &Keys::ffn_size, file.size("ffn_hidden_size", 0), "ffn_hidden_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("layer_norm_epsilon", 1e-5),
          "layer_norm_epsilon");
  const bool bias = file.truth("bias", false);
  out.set("qkv_bias", &Keys::qkv_bias, bias, "bias");
  out.set("linear_bias", &Keys::linear_bias, bias, "bias");
  refuse_activation(file, "activation", "gelu", {"gelu"});
  refuse_dropout(file, out, {"hidden_dropout", "attention_dropout"});
  file.needs(file.truth("parallel_attn", true) || grouped,
             "'parallel_attn' must be true: a falcon's attention and MLP are parallel here");
  file.needs(!file.truth("apply_residual_connection_post_layernorm", false),
             "'apply_residual_connection_post_layernorm' must be false");
}

void read_neox(ConfigFile& file, KeyWriter& out) {
  set_common(file, out, "neox", false);
  set_sizes(file, out);
  set_rope(file, out, {.theta = "rotary_emb_base", .share = "rotary_pct", .usual_share = 0.25});
  out.set("ffn_size", &Keys::ffn_size, file.size("intermediate_size", 24576), "intermediate_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("layer_norm_eps", 1e-5), "layer_norm_eps");
  out.set("parallel_residual", &Keys::parallel_residual, file.truth("use_parallel_residual", true),
          "use_parallel_residual");
  refuse_activation(file, "hidden_act", "gelu", {"gelu"});
  refuse_dropout(file, out, {"attention_dropout", "hidden_dropout"});
  file.needs(file.truth("attention_bias", true),
             "'attention_bias' must be true: all linear layers of a neox have a bias");
}

/// What Gemma 2 and 3 differ in.
struct GemmaKind {
  bool qk_norm = false;
  RopeNames rope = {};
  double usual_attention_cap = 0.0, usual_logits_cap = 0.0;
  Windows windows = {};
};

void read_gemma(ConfigFile& file, KeyWriter& out, const GemmaKind& kind) {
  set_common(file, out, "gemma", true);
  set_sizes(file, out, 256);
  set_rope(file, out, kind.rope);
  out.set("num_kv_heads", &Keys::num_kv_heads, file.size("num_key_value_heads", 4),
          "num_key_value_heads");
  out.set("ffn_size", &Keys::ffn_size, file.size("intermediate_size"), "intermediate_size");
  out.set("norm_eps", &Keys::norm_eps, file.number("rms_norm_eps", 1e-6), "rms_norm_eps");
  out.set("qkv_bias", &Keys::qkv_bias, false, "architectures");
  out.set("linear_bias", &Keys::linear_bias, false, "architectures");
  out.set("qk_norm", &Keys::qk_norm, kind.qk_norm, "architectures");
  out.set("query_scalar", &Keys::query_scalar, file.number("query_pre_attn_scalar", 256.0),
          "query_pre_attn_scalar");
  const auto cap = [&](const char* key, double usual) {
    return file.object().contains(key) ? file.number(key, 0.0) : usual;
  };
  const double attention_cap = cap("attn_logit_softcapping", kind.usual_attention_cap);
  file.needs(!kind.qk_norm || attention_cap == 0.0,
             "'attn_logit_softcapping' must be null: Gemma 3 caps no scores");
  out.set("attention_cap", &Keys::attention_cap, attention_cap, "attn_logit_softcapping");
  out.set("logits_cap", &Keys::logits_cap, cap("final_logit_softcapping", kind.usual_logits_cap),
          "final_logit_softcapping");
  refuse_activation(file, "hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  refuse_dropout(file, out, {"attention_dropout"});
  for (const char* key : {"attention_bias", "use_bidirectional_attention"})
    file.needs(!file.truth(key, false), "'{}' must be false", key);
  set_window(file, out, kind.windows);
}

void read_gemma2(ConfigFile& file, KeyWriter& out) {
  read_gemma(file, out,
             {.usual_attention_cap = 50.0,
              .usual_logits_cap = 30.0,
              .windows = {.usual = true, .usual_size = 4096, .full_every = 2}});
}

void read_gemma3(ConfigFile& file, KeyWriter& out) {
  const int pattern = file.size("sliding_window_pattern", 6);
  read_gemma(file, out,
             {.qk_norm = true,
              .rope = {.usual_theta = 1e6, .of_kind = "full_attention"},
              .windows = {.usual = true, .usual_size = 4096, .full_every = pattern}});
  double theta = file.number("rope_local_base_freq", 10000.0);
  if (const json* table = file.find("rope_parameters");
      table != nullptr && table->contains("sliding_attention")) {
    ConfigFile rope((*table)["sliding_attention"], file.path() + ": sliding_attention");
    rope.needs(rope.word("rope_type", "default") == "default", "'rope_type' must be default");
    theta = rope.number("rope_theta", theta);
  }
  if (out.keys().window > 0)
    out.set("window_rope_theta", &Keys::window_rope_theta, theta, "rope_local_base_freq");
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
     [](ConfigFile& f, KeyWriter& out) {
       read_llama(f, out, {.windows = {.usual = true, .usual_size = 4096}});
     }},
    {"Qwen2ForCausalLM", "qwen2",
     [](ConfigFile& f, KeyWriter& out) {
       read_llama(f, out, {.qkv_bias = true, .windows = {.usual_size = 4096, .first = 28}});
     }},
    {"Qwen3ForCausalLM", "qwen3",
     [](ConfigFile& f, KeyWriter& out) {
       read_llama(
           f, out,
           {.qk_norm = true, .usual_head_dim = 128, .windows = {.usual_size = 4096, .first = 28}});
     }},
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
  const std::string type = file.word("model_type", "");
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
  file.needs(found != architectures.end(), "{} \"{:.40}\" does not run here{}, but {} do",
             names != nullptr ? "architecture" : "model_type", name,
             without.empty() ? "" : fmt::format(" (it asks for {})", without),
             fmt::join(known, ", "));
  file.needs(without.empty(), "it asks for {}, which do not run here", without);
  return *found;
}

}  // namespace

deck::ModelKeys resolved(const deck::ModelKeys& keys) {
  if (keys.config.empty()) return keys;
  deck::ModelKeys filled = keys;
  ConfigFile file = load(keys);
  const Architecture& kind = architecture(file);
  file.needs(!file.truth("add_cross_attention", false), "'add_cross_attention' must be false");
  KeyWriter writer(filled, file);
  kind.read(file, writer);
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
