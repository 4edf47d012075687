/// @file Deck keys from the config.json of a Hugging Face model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
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

using families::Architecture;
using families::ConfigKeys;
using families::KeyHeads;
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
                                        "layer_types",
                                        "quantization_config"};

/// A JSON object that remembers which of its keys were asked for.
class ConfigFile {
 public:
  ConfigFile(json object, std::string path) : object_(std::move(object)), path_(std::move(path)) {}

  /// Sets the keys that the file's class reads, with the values of those that the file leaves out.
  void set_class(const std::string& keys) { class_ = json::parse(keys); }
  /// Whether the file's class reads the key. The Transformers library ignores any other one.
  bool reads(const std::string& key) const { return class_.contains(key); }
  /// Whether the file itself has the key.
  bool has(const std::string& key) const { return object_.contains(key); }
  /// Whether the class has no value of its own for the key.
  bool is_optional(const std::string& key) const { return class_.at(key).is_null(); }

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
  /// Empty: an object without keys, or null where the class has no table of its own.
  json table(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) {
      const auto own = class_.find(key);
      return own != class_.end() && own->is_object() ? *own : json::object();
    }
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
  void set(const char* key, T deck::ModelKeys::*member, T value, const std::string& from) {
    if (given(key)) return;
    keys_.*member = std::move(value);
    check(key, from);
  }
  /// Refuses a value that the deck could not have given.
  void check(const char* key, const std::string& from) const {
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
void refuse_dropout(ConfigFile& file, const KeyWriter& out, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const double dropout = file.number_if(name).value_or(0.0);
    file.needs(dropout == 0.0 || out.given("dropout"),
               "'{}' is {}, but training here has no dropout: say dropout = 0 under [model] in the "
               "deck, or --set model.dropout=0, to train without it",
               name, dropout);
  }
}

void refuse_activation(ConfigFile& file, const std::string& key,
                       const std::vector<std::string>& known) {
  const std::string found = file.word(key);
  file.needs(std::ranges::count(known, found) > 0, "'{}' must be {}, found \"{:.40}\"", key,
             fmt::join(known, " or "), found);
}

void set_common(ConfigFile& file, KeyWriter& out, const std::string& family) {
  out.set("family", &Keys::family, family, "architectures");
  file.needs(out.keys().family == family,
             "this model is a {}: leave model.family = \"{}\" out of the deck", family,
             out.keys().family);
  out.set("tied_head", &Keys::tied_head, file.truth("tie_word_embeddings"), "tie_word_embeddings");
  out.set("vocab_size", &Keys::vocab_size, file.size("vocab_size"), "vocab_size");
  out.set("init_std", &Keys::init_std, file.number("initializer_range"), "initializer_range");
}

/// What a model could read is seldom what it is trained on: longer lengths must be meant.
void set_seq_len(ConfigFile& file, KeyWriter& out, const std::string& key) {
  constexpr int unasked = 1 << 14;
  if (out.given("seq_len")) return void(file.find(key));
  const int longest = file.size(key);
  file.needs(longest <= unasked,
             "'{}' is {}: say how many tokens a sequence has, as seq_len = 4096 under [model] in "
             "the deck, or --set model.seq_len=4096",
             key, longest);
  out.set("seq_len", &Keys::seq_len, longest, key);
}

void set_sizes(ConfigFile& file, KeyWriter& out, const ConfigKeys& names) {
  const auto set = [&](const char* key, int Keys::*member, const std::string& from) {
    out.set(key, member, file.size(from), from);
  };
  set("num_layers", &Keys::num_layers, names.num_layers);
  set("hidden_size", &Keys::hidden_size, names.hidden_size);
  set("num_heads", &Keys::num_heads, names.num_heads);
  if (file.reads("head_dim"))
    out.set("head_dim", &Keys::head_dim, file.size_if("head_dim").value_or(0), "head_dim");
  set_seq_len(file, out, names.seq_len);
}

/// Sizes of latent attention: positions turn the last part of a head here, and `head_dim` in files
/// of newer versions of the library is that part alone.
void set_latent(ConfigFile& file, KeyWriter& out) {
  const auto set = [&](const char* key, int Keys::*member, int value, const char* from) {
    out.set(key, member, value, from);
  };
  const int still = file.size("qk_nope_head_dim"), turned = file.size("qk_rope_head_dim");
  file.needs(std::int64_t{still} + turned <= 1 << 16,
             "'qk_nope_head_dim' + 'qk_rope_head_dim' must be at most {}, found {} + {}", 1 << 16,
             still, turned);
  for (const char* key : {"head_dim", "qk_head_dim"}) file.find(key);
  set("head_dim", &Keys::head_dim, still + turned, "qk_nope_head_dim");
  set("rotary_dim", &Keys::rotary_dim, turned, "qk_rope_head_dim");
  set("kv_lora_rank", &Keys::kv_lora_rank, file.size("kv_lora_rank"), "kv_lora_rank");
  set("q_lora_rank", &Keys::q_lora_rank, file.size_if("q_lora_rank").value_or(0), "q_lora_rank");
  set("v_head_dim", &Keys::v_head_dim, file.size("v_head_dim"), "v_head_dim");
}

/// The file's table of rotary positions: `rope_scaling` in older files, `rope_parameters` in newer
/// ones. The older key wins. Classes whose kinds of layers differ have a table for each kind.
json rope_table(ConfigFile& file, const char* kind) {
  const json older = file.table("rope_scaling");
  json newer = file.table("rope_parameters");
  if (kind == nullptr) return older.empty() ? newer : older;
  json table = ConfigFile(std::move(newer), file.path() + ": rope_parameters").table(kind);
  table.update(older);
  return table;
}

void set_yarn(ConfigFile& file, ConfigFile& rope, deck::RopeScalingKeys& keys) {
  // 0 is no other value than null, as in Python.
  const auto given = [&](const char* key, double otherwise) {
    const double value = rope.number_if(key).value_or(0.0);
    return value == 0.0 ? otherwise : value;
  };
  keys.factor =
      given("factor", double(file.size("max_position_embeddings")) / keys.original_seq_len);
  keys.beta_fast = given("beta_fast", keys.beta_fast);
  keys.beta_slow = given("beta_slow", keys.beta_slow);
  keys.mscale = given("mscale", 0.0);
  keys.mscale_all_dim = given("mscale_all_dim", 0.0);
  keys.attention_factor = given("attention_factor", 0.0);
  rope.needs(keys.attention_factor > 0.0 || rope.find("attention_factor") == nullptr,
             "'attention_factor' must be above 0");
  keys.truncate = !rope.has("truncate") || rope.truth("truncate");
  rope.needs(keys.truncate || !file.reads("rope_local_base_freq"),
             "'truncate' must be true: the Transformers library does not read it here");
}

deck::RopeScalingKeys rope_scaling(ConfigFile& file, ConfigFile& rope, const std::string& kind) {
  deck::RopeScalingKeys keys;
  if (kind == "default") return keys;
  const auto needed = [&](const char* key) {
    rope.needs(rope.find(key) != nullptr, "missing key '{}'", key);
    return rope.number(key);
  };
  keys.kind = kind;
  rope.needs(kind == "yarn" || !file.reads("kv_lora_rank") ||
                 rope.number_if("mscale_all_dim").value_or(0.0) == 0.0,
             "'mscale_all_dim' must be 0 with '{}' scaling", kind);
  if (kind != "yarn") keys.factor = needed("factor");
  if (kind == "linear") return keys;
  std::optional<int> original = file.size_if("original_max_position_embeddings");
  if (!original) original = rope.size_if("original_max_position_embeddings");
  keys.original_seq_len = original ? *original : file.size("max_position_embeddings");
  if (kind == "yarn") {
    set_yarn(file, rope, keys);
    return keys;
  }
  keys.low_freq_factor = needed("low_freq_factor");
  keys.high_freq_factor = needed("high_freq_factor");
  return keys;
}

void set_rope(ConfigFile& file, KeyWriter& out, const ConfigKeys& names) {
  const json table =
      rope_table(file, file.reads("rope_local_base_freq") ? "full_attention" : nullptr);
  ConfigFile rope(table, file.path() + ": rope_scaling");
  for (const auto& [key, value] : table.items())
    rope.needs(!value.is_object(), "'{:.40}' must be a number or a word, found an object", key);
  std::string kind = rope.word("rope_type");
  if (kind.empty()) kind = rope.word("type");
  if (kind.empty()) kind = "default";
  rope.needs(kind == "default" || kind == "linear" || kind == "llama3" || kind == "yarn",
             "'rope_type' must be default, linear, llama3 or yarn, found \"{:.40}\"", kind);
  if (!out.given("rope_scaling")) {
    out.keys().rope_scaling = rope_scaling(file, rope, kind);
    for (const char* key :
         {"rope_scaling.factor", "rope_scaling.low_freq_factor", "rope_scaling.high_freq_factor",
          "rope_scaling.beta_fast", "rope_scaling.beta_slow", "rope_scaling.attention_factor",
          "rope_scaling.mscale", "rope_scaling.mscale_all_dim"})
      out.check(key, key);
    out.check("rope_scaling.original_seq_len", "rope_scaling.original_max_position_embeddings");
  }
  const std::optional<double> own_theta = rope.number_if("rope_theta");
  const std::optional<double> older_theta = file.number_if(names.rope_theta);
  const std::optional<double> theta = own_theta ? own_theta : older_theta;
  file.needs(theta.has_value(), "'{}' must be a number, found null", names.rope_theta);
  out.set("rope_theta", &Keys::rope_theta, *theta, names.rope_theta);

  const std::optional<double> own_share = rope.number_if("partial_rotary_factor");
  const bool turns_parts = !names.rotary_share.empty();
  const std::string share_key = turns_parts ? names.rotary_share : "partial_rotary_factor";
  const std::optional<double> older_share = file.number_if(share_key);
  const double share = own_share ? *own_share : older_share.value_or(1.0);
  file.needs(share > 0.0 && share <= 1.0, "'{}' must be above 0 and at most 1, found {}", share_key,
             share);
  if (share == 1.0) return;
  const Keys& keys = out.keys();
  const int head_dim = keys.head_dim > 0 ? keys.head_dim : keys.hidden_size / keys.num_heads;
  const int turned = std::max(1, int(head_dim * share));
  if (turns_parts) return out.set("rotary_dim", &Keys::rotary_dim, turned, share_key);
  // The Transformers library turns whole heads in these families, and fails where scaled angles are
  // fewer.
  file.needs(kind == "default" || turned == head_dim,
             "'{}' must be 1 with '{}' scaling of rotary angles, found {}", share_key, kind, share);
  log::warn("{}: '{}' = {} is not applied, as in the Transformers library: a {} turns whole heads",
            file.path(), share_key, share, keys.family);
}

/// The layers that have a window, if a file does not list them.
struct Windows {
  int first = 0;   ///< layers before this one see all
  int full_every;  ///< one of so many layers sees all
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

void set_window(ConfigFile& file, KeyWriter& out, int full_every) {
  if (!file.reads("sliding_window")) return;
  Windows windows{.full_every = full_every};
  if (file.reads("max_window_layers")) windows.first = file.size("max_window_layers", 0);
  if (file.reads("sliding_window_pattern") && file.find("layer_types") == nullptr)
    windows.full_every = file.size("sliding_window_pattern");
  if (file.reads("use_sliding_window") && !file.truth("use_sliding_window")) return;
  const std::optional<int> size = file.size_if("sliding_window");
  if (!size) return;
  const std::vector<std::string> kinds = in_turn(layer_kinds(file, windows));
  if (std::ranges::count(kinds, "window") == 0) return;
  out.set("window", &Keys::window, *size, "sliding_window");
  if (std::ranges::count(kinds, "full") > 0)
    out.set("layer_kinds", &Keys::layer_kinds, kinds, "layer_types");
}

/// Sets the base of the rotary angles in windowed layers, for a class that has one.
void set_window_rope(ConfigFile& file, KeyWriter& out) {
  if (!file.reads("rope_local_base_freq")) return;
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

/// Sets the key heads of a falcon, and the number of its norms.
void set_falcon_heads(ConfigFile& file, KeyWriter& out) {
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
}

void set_key_heads(ConfigFile& file, KeyWriter& out, KeyHeads key_heads) {
  const char* const key = "num_key_value_heads";
  switch (key_heads) {
    case KeyHeads::none: return;
    case KeyHeads::optional:
      return out.set("num_kv_heads", &Keys::num_kv_heads, file.size_if(key).value_or(0), key);
    case KeyHeads::required:
      return out.set("num_kv_heads", &Keys::num_kv_heads, file.size(key), key);
    case KeyHeads::falcon: return set_falcon_heads(file, out);
  }
}

/// An architecture, and the family whose row has it.
struct Kind {
  const Family& family;
  const Architecture& architecture;
};

void set_biases(ConfigFile& file, KeyWriter& out, const Kind& kind) {
  const std::string& key = kind.architecture.keys.bias;
  const bool all = !key.empty() && file.truth(key);
  const std::string from = key.empty() ? "architectures" : key;
  if (const std::string& own = kind.architecture.keys.qkv_bias; !own.empty())
    out.set("qkv_bias", &Keys::qkv_bias, file.truth(own), own);
  else
    out.set("qkv_bias", &Keys::qkv_bias, key.empty() ? kind.architecture.qkv_bias : all, from);
  out.set("linear_bias", &Keys::linear_bias, key.empty() ? kind.family.biased : all, from);
}

/// Sets the width of shared experts, which are one expert of their widths together.
void set_shared_expert(ConfigFile& file, KeyWriter& out, const ConfigKeys& names) {
  if (const std::string& width = names.shared_expert_ffn_size; !width.empty()) {
    out.set("shared_expert_ffn_size", &Keys::shared_expert_ffn_size, file.size(width), width);
    out.set("shared_expert_gate", &Keys::shared_expert_gate, true, "architectures");
  }
  const std::string& number = names.shared_experts;
  if (number.empty()) return;
  const int count = file.size(number);
  const std::int64_t width = std::int64_t{out.keys().expert_ffn_size} * count;
  file.needs(width <= std::numeric_limits<int>::max(), "'{}' = {} is too large", number, count);
  out.set("shared_expert_ffn_size", &Keys::shared_expert_ffn_size, int(width), number);
}

void set_router(ConfigFile& file, KeyWriter& out, const Architecture& architecture) {
  const ConfigKeys& names = architecture.keys;
  const std::string kind = architecture.sigmoid_router ? "sigmoid" : "softmax";
  out.set("router", &Keys::router, kind, "architectures");
  if (!names.normalize_topk.empty())
    out.set("normalize_topk", &Keys::normalize_topk, file.truth(names.normalize_topk),
            names.normalize_topk);
  if (!names.routed_scale.empty())
    out.set("routed_scale", &Keys::routed_scale, file.number(names.routed_scale),
            names.routed_scale);
  if (names.expert_groups.empty()) return;
  if (!names.choice.empty()) {
    const std::string choice = file.word(names.choice);
    const bool by_groups = choice == "group_limited_greedy";
    file.needs(by_groups || choice == "greedy",
               "'{}' must be greedy or group_limited_greedy, found \"{:.40}\"", names.choice,
               choice);
    if (!by_groups) return;
  }
  out.set("expert_groups", &Keys::expert_groups, file.size(names.expert_groups),
          names.expert_groups);
  out.set("groups_per_token", &Keys::groups_per_token, file.size(names.groups_per_token),
          names.groups_per_token);
}

void set_experts(ConfigFile& file, KeyWriter& out, const Architecture& architecture) {
  const ConfigKeys& names = architecture.keys;
  if (names.num_experts.empty()) return;
  const std::string newer = "num_local_experts";  // newer versions of the library write it
  const std::string& count = file.has(newer) ? newer : names.num_experts;
  out.set("num_experts", &Keys::num_experts, file.size(count), count);
  out.set("experts_per_token", &Keys::experts_per_token, file.size(names.experts_per_token),
          names.experts_per_token);
  if (!names.expert_ffn_size.empty())
    out.set("expert_ffn_size", &Keys::expert_ffn_size, file.size(names.expert_ffn_size),
            names.expert_ffn_size);
  set_shared_expert(file, out, names);
  set_router(file, out, architecture);
  const double coefficient = file.number_if("router_aux_loss_coef").value_or(0.0);
  if (file.truth("output_router_logits") && coefficient > 0.0 && !out.given("balance_loss"))
    log::warn(
        "{}: 'router_aux_loss_coef' = {} is left out: its sum takes all layers as one; "
        "model.balance_loss = {:.3g}, which takes them apart, is about as strong",
        file.path(), coefficient,
        coefficient * out.keys().experts_per_token / std::max(1, out.keys().num_layers));
  if (const std::string& dense = names.first_dense_layers; !dense.empty())
    out.set("first_dense_layers", &Keys::first_dense_layers, file.size(dense, 0), dense);
  if (!file.reads("mlp_only_layers")) return;
  const json* dense = file.find("mlp_only_layers");
  json first = json::array();  // as many
  for (std::size_t i = 0; dense != nullptr && i < dense->size(); ++i) first.push_back(i);
  file.needs(file.size("decoder_sparse_step") == 1 && (dense == nullptr || *dense == first),
             "'decoder_sparse_step' must be 1 and 'mlp_only_layers' 0, 1, ...: here only the first "
             "layers may be without experts");
  out.set("first_dense_layers", &Keys::first_dense_layers, int(first.size()), "mlp_only_layers");
}

/// Sets the divisor of attention scores and the caps of scores and logits.
void set_scores(ConfigFile& file, KeyWriter& out, const ConfigKeys& names) {
  if (!names.query_scalar.empty())
    out.set("query_scalar", &Keys::query_scalar, file.number(names.query_scalar),
            names.query_scalar);
  const auto set_cap = [&](const char* key, double Keys::*member, const std::string& from) {
    if (!from.empty()) out.set(key, member, file.number_if(from).value_or(0.0), from);
  };
  set_cap("attention_cap", &Keys::attention_cap, names.attention_cap);
  set_cap("logits_cap", &Keys::logits_cap, names.logits_cap);
}

void check_fixed(ConfigFile& file, const families::FixedKey& one) {
  const std::string& key = one.key;
  if (const bool* const truth = std::get_if<bool>(&one.value)) {
    file.needs(file.truth(key) == *truth, "'{}' must be {}{}", key, *truth, one.reason);
  } else if (const double* const number = std::get_if<double>(&one.value)) {
    const double found = file.number(key);
    file.needs(found == *number, "'{}' must be {}, found {}", key, *number, found);
  } else {
    const std::string word = std::get<std::string>(one.value), found = file.word(key);
    file.needs(found.empty() || found == word, "'{}' must be {}, found \"{:.40}\"", key, word,
               found);
  }
}

void read(ConfigFile& file, KeyWriter& out, const Kind& kind) {
  const auto& [family, architecture] = kind;
  const ConfigKeys& names = architecture.keys;
  set_common(file, out, family.name);
  set_sizes(file, out, names);
  if (architecture.latent) set_latent(file, out);
  if (family.rotary) set_rope(file, out, names);
  set_key_heads(file, out, architecture.key_heads);
  // Null, if the class has no value of its own, is 4 hidden_size.
  out.set("ffn_size", &Keys::ffn_size,
          file.is_optional(names.ffn_size) ? file.size_if(names.ffn_size).value_or(0)
                                           : file.size(names.ffn_size),
          names.ffn_size);
  out.set("norm_eps", &Keys::norm_eps, file.number(names.norm_eps), names.norm_eps);
  if (!names.parallel_residual.empty())
    out.set("parallel_residual", &Keys::parallel_residual, file.truth(names.parallel_residual),
            names.parallel_residual);
  set_biases(file, out, kind);
  set_experts(file, out, architecture);
  if (const std::string& own = names.qk_norm; !own.empty())
    out.set("qk_norm", &Keys::qk_norm, file.truth(own), own);
  else
    out.set("qk_norm", &Keys::qk_norm, architecture.qk_norm, "architectures");
  out.set("qk_norm_joint", &Keys::qk_norm_joint, architecture.joint_qk_norm, "architectures");
  set_scores(file, out, names);
  refuse_activation(file, names.activation, families::activation_names(family.mlp));
  refuse_dropout(file, out, names.dropouts);
  for (const std::string& key : names.absent) {
    const json* const value = file.find(key);
    file.needs(value == nullptr, "'{}' must be null, found {}", key,
               value == nullptr ? "" : deck::describe_json(*value));
  }
  if (const std::string& key = architecture.extra_layers; !key.empty())
    if (const int layers = file.size_if(key, 0).value_or(0); layers > 0)
      log::warn(
          "{}: '{}' = {}: weights behind the last layer, which predict later tokens, are left out, "
          "as in the Transformers library",
          file.path(), key, layers);
  for (const families::FixedKey& one : architecture.fixed) check_fixed(file, one);
  set_window(file, out, architecture.full_every);
  set_window_rope(file, out);
}

/// What a file asks for that no family here has, as far as its keys and name say.
std::string missing(ConfigFile& file, const std::string& name, const Architecture* architecture) {
  std::vector<std::string> parts;
  for (const char* key :
       {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    const json* value = file.find(key);
    if (architecture != nullptr && architecture->experts) continue;
    if (value != nullptr && *value != 1 && parts.empty())
      parts.emplace_back("experts of another kind");
  }
  if (file.find("kv_lora_rank") != nullptr && (architecture == nullptr || !architecture->latent))
    parts.emplace_back("latent attention of another kind");
  const json* alibi = file.find("alibi");
  if ((alibi != nullptr && *alibi == true) || name.starts_with("Bloom") || name.starts_with("MPT"))
    parts.emplace_back("ALiBi positions");
  if (file.find("vision_config") != nullptr) parts.emplace_back("images");
  return fmt::format("{}", fmt::join(parts, " and "));
}

/// The kind of model by its architecture or, if the file names none, by its type.
Kind kind_of(ConfigFile& file) {
  const json* names = file.find("architectures");
  const std::string type = file.word("model_type");
  file.needs(names != nullptr || !type.empty(),
             "neither 'architectures' nor 'model_type' says what kind of model it is");
  file.needs(
      names == nullptr || (names->is_array() && names->size() == 1 && (*names)[0].is_string()),
      "'architectures' must be a list of one name, found {}",
      names ? deck::describe_json(*names) : "");
  const std::string name = names != nullptr ? (*names)[0].get<std::string>() : type;
  std::optional<Kind> found;
  std::vector<std::string> known;
  for (const Family& family : families::families())
    for (const Architecture& one : family.architectures) {
      known.push_back(names != nullptr ? one.name : one.model_type);
      if (known.back() == name) found.emplace(Kind{family, one});
    }
  const std::string without = missing(file, name, found ? &found->architecture : nullptr);
  file.needs(found.has_value(), "{} \"{:.40}\" is not supported{}. Supported: {}",
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
  const Kind kind = kind_of(file);
  file.set_class(kind.architecture.class_keys);
  KeyWriter writer(filled, file);
  read(file, writer, kind);
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
