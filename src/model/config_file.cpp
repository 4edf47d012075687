/// @file Deck keys from the config.json of a Hugging Face model.
#include "config_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "deck/json.hpp"

namespace brume::model {
namespace {
using families::KeyHeads;

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

}  // namespace

std::vector<std::string> ConfigFile::unknown() const {
  constexpr std::size_t longest = 40, most = 20;  // in a message
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items())
    if (!value.is_null() && !met_.contains(key) && !silent_keys.contains(key) &&
        !key.starts_with("_") && !key.starts_with("summary_"))
      keys.push_back(key.substr(0, longest));
  if (keys.size() > most) keys.resize(most), keys.emplace_back("...");
  return keys;
}

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
