/// @file Rotary positions and windows of a config.json.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "config_file.hpp"

namespace brume::model {
namespace {

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

/// Sets the number of features of a head that positions turn, from their share of it.
void set_rotary_dim(ConfigFile& file, KeyWriter& out, const ConfigKeys& names, ConfigFile& rope,
                    const std::string& kind) {
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

}  // namespace

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

  set_rotary_dim(file, out, names, rope, kind);
}

namespace {

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

}  // namespace

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

}  // namespace brume::model
