/// @file The config.json of a model, written.
#include "hugging_face_config.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "deck/json.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using families::Architecture;
using families::ConfigKeys;
using families::KeyHeads;
using families::Limit;
using model::Config;
using nlohmann::json;

constexpr std::size_t largest_config_bytes = std::size_t{16} << 20;

const char* torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return "float32";
    case Dtype::bf16: return "bfloat16";
    case Dtype::f16: return "float16";
  }
  return "";
}

/// Writes the config.json of a model as one of its family's architectures.
class ConfigWriter {
 public:
  explicit ConfigWriter(const Config& m)
      : model_(m),
        architecture_(architecture(m)),
        names_(architecture_.keys),
        class_(json::parse(architecture_.class_keys)),
        config_(json::parse(architecture_.written)) {}

  json write() {
    check_exportable(model_);
    config_.update({{"architectures", {architecture_.name}},
                    {"model_type", architecture_.model_type},
                    {names_.num_layers, model_.num_layers},
                    {names_.hidden_size, model_.hidden_size},
                    {names_.num_heads, model_.num_heads},
                    {names_.seq_len, model_.seq_len},
                    {names_.ffn_size, model_.ffn_size},
                    {names_.norm_eps, model_.norm_eps},
                    {names_.activation, families::activation_names(model_.mlp()).front()},
                    {"vocab_size", model_.vocab_size},
                    {"tie_word_embeddings", model_.tied_head}});
    if (model_.init_std <= 1.0) config_["initializer_range"] = model_.init_std;  // Llama's most
    for (const std::string& dropout : names_.dropouts) config_[dropout] = 0.0;
    if (!names_.bias.empty()) config_[names_.bias] = model_.linear_bias;
    if (!names_.qk_norm.empty()) config_[names_.qk_norm] = model_.qk_norm;
    if (!architecture_.extra_layers.empty()) config_[architecture_.extra_layers] = 0;
    if (!names_.qkv_bias.empty()) config_[names_.qkv_bias] = model_.qkv_bias;
    if (!names_.parallel_residual.empty()) config_[names_.parallel_residual] = model_.parallel();
    set_heads();
    if (model_.num_experts > 0) set_experts();
    set_scores();
    if (model_.rotary()) set_rotary();
    set_window();
    return config_;
  }

 private:
  bool reads(const char* key) const { return class_.contains(key); }
  bool has(Limit::Kind kind) const {
    return std::ranges::find(architecture_.limits, kind, &Limit::kind) !=
           architecture_.limits.end();
  }

  void set_heads() {
    if (model_.latent())
      config_.update({{"qk_nope_head_dim", model_.still_dim()},
                      {"qk_rope_head_dim", model_.rotary_dim()},
                      {"v_head_dim", model_.v_head_dim()},
                      {"kv_lora_rank", model_.kv_lora_rank},
                      {"q_lora_rank", model_.q_lora_rank > 0 ? json(model_.q_lora_rank) : json()}});
    else if (!has(Limit::Kind::heads_fill_hidden))
      config_["head_dim"] = model_.head_dim();
    const bool one = model_.kv_heads() == 1, all = model_.kv_heads() == model_.num_heads;
    const bool grouped = model_.layer_norms == 2 || !(one || all);
    switch (architecture_.key_heads) {
      case KeyHeads::none: return;
      case KeyHeads::optional:
      case KeyHeads::required: config_["num_key_value_heads"] = model_.kv_heads(); return;
      case KeyHeads::falcon:
        config_.update({{"new_decoder_architecture", grouped},
                        {"multi_query", one && !grouped},
                        {"num_kv_heads", model_.kv_heads()},
                        {"num_ln_in_parallel_attn", model_.layer_norms}});
    }
  }

  void set_experts() {
    config_[names_.num_experts] = model_.num_experts;
    config_[names_.experts_per_token] = model_.experts_per_token;
    const std::string& inner = names_.expert_ffn_size;
    config_[inner.empty() ? names_.ffn_size : inner] = model_.expert_ffn_size;
    if (const std::string& shared = names_.shared_expert_ffn_size; !shared.empty())
      config_[shared] = model_.shared_expert_ffn_size;
    if (const std::string& number = names_.shared_experts; !number.empty())
      config_[number] = model_.shared_expert_ffn_size / model_.expert_ffn_size;
    if (!names_.routed_scale.empty()) config_[names_.routed_scale] = model_.routed_scale;
    const bool by_groups = names_.choice.empty() || model_.expert_groups > 1;
    if (!names_.choice.empty())
      config_[names_.choice] = by_groups ? "group_limited_greedy" : "greedy";
    if (!names_.expert_groups.empty() && by_groups) {
      config_[names_.expert_groups] = model_.expert_groups;
      config_[names_.groups_per_token] = model_.groups_per_token;
    }
    if (!names_.normalize_topk.empty()) config_[names_.normalize_topk] = model_.normalize_topk;
    if (const std::string& dense = names_.first_dense_layers; !dense.empty()) {
      config_[dense] = model_.first_dense_layers;
      return;
    }
    const bool some_dense = reads("mlp_only_layers");
    export_needs(some_dense || model_.first_dense_layers == 0, "all layers of a {} have experts",
                 architecture_.model_type);
    for (int layer = 0; layer < model_.first_dense_layers; ++layer)
      config_["mlp_only_layers"].push_back(layer);
  }

  void set_scores() {
    if (!names_.query_scalar.empty())
      config_[names_.query_scalar] = std::int64_t(query_scalar(model_));
    const auto set_cap = [&](const std::string& key, double cap) {
      if (!key.empty()) config_[key] = cap > 0.0 ? json(cap) : json(nullptr);
    };
    set_cap(names_.attention_cap, model_.attention_cap);
    set_cap(names_.logits_cap, model_.logits_cap);
  }

  json rope_scaling() const {
    using Kind = model::RopeScaling::Kind;
    const model::RopeScaling& scaling = model_.rope_scaling;
    switch (scaling.kind) {
      case Kind::none: return {{"rope_type", "default"}};
      case Kind::linear: return {{"rope_type", "linear"}, {"factor", scaling.factor}};
      case Kind::llama3:
        return {{"rope_type", "llama3"},
                {"factor", scaling.factor},
                {"low_freq_factor", scaling.low_freq_factor},
                {"high_freq_factor", scaling.high_freq_factor},
                {"original_max_position_embeddings", scaling.original_seq_len}};
      case Kind::yarn: break;
    }
    json rope{{"rope_type", "yarn"},
              {"factor", scaling.factor},
              {"beta_fast", scaling.beta_fast},
              {"beta_slow", scaling.beta_slow},
              {"original_max_position_embeddings", scaling.original_seq_len}};
    // The library looks for this key in no table of a kind of layers.
    export_needs(scaling.truncate || !reads("rope_local_base_freq"),
                 "it truncates yarn's range where kinds of layers have angles of their own");
    if (!scaling.truncate) rope["truncate"] = false;
    const auto set_given = [&](const char* key, double value) {
      if (value > 0.0) rope[key] = value;
    };
    set_given("attention_factor", scaling.attention_factor);
    set_given("mscale", scaling.mscale);
    set_given("mscale_all_dim", scaling.mscale_all_dim);
    return rope;
  }

  /// Newer versions of the library read rope_parameters, older ones the other keys.
  void set_rotary() {
    json rope = rope_scaling();
    rope["rope_theta"] = model_.rope_theta;
    if (!model_.latent() &&
        model_.rotary_dim() != model_.head_dim())  // so that the product, rounded down, is it again
      rope["partial_rotary_factor"] = (model_.rotary_dim() + 0.5) / model_.head_dim();
    config_[names_.rope_theta] = model_.rope_theta;
    if (!names_.rotary_share.empty())
      config_[names_.rotary_share] = rope.value("partial_rotary_factor", 1.0);
    config_["rope_parameters"] = rope;
    if (rope["rope_type"] != "default") config_["rope_scaling"] = rope;
    if (!reads("rope_local_base_freq")) return;
    const bool own = model_.window_rope_theta > 0.0;
    const json local{{"rope_type", "default"}, {"rope_theta", model_.window_rope_theta}};
    config_["rope_local_base_freq"] = own ? model_.window_rope_theta : model_.rope_theta;
    config_["rope_parameters"] = {{"full_attention", rope},
                                  {"sliding_attention", own ? local : rope}};
  }

  /// Newer files list the layers that have a window.
  void set_window() {
    const bool windows = model_.window > 0, switched = reads("use_sliding_window");
    if (windows) config_["sliding_window"] = model_.window;
    if (switched) config_["use_sliding_window"] = windows;
    if (reads("max_window_layers")) config_["max_window_layers"] = 0;
    if (!reads("layer_types") || (switched && !windows)) return;
    json types = json::array();
    for (int layer = 0; layer < model_.num_layers; ++layer) {
      types.push_back(windows && model_.has_window(layer) ? "sliding_attention" : "full_attention");
    }
    config_["layer_types"] = types;
  }

  const Config& model_;
  const Architecture& architecture_;
  const ConfigKeys& names_;
  const json class_;
  json config_;
};

void set_dtype(json& config, Dtype dtype) {
  config["dtype"] = config["torch_dtype"] = torch_name(dtype);  // newer and older name
}

/// Whether a config.json describes the model, for sequences of its length.
bool describes(const fs::path& path, const Config& m) {
  deck::ModelKeys keys;
  keys.config = keys.config_place = path.string();
  keys.given = {"seq_len", "dropout"};
  keys.seq_len = m.seq_len;
  try {
    return model::text(model::config(model::resolved(keys), "fp32")) == model::text(m);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

json hugging_face_config(const Config& m, Dtype dtype) {
  json config = ConfigWriter(m).write();
  set_dtype(config, dtype);
  return config;
}

json hugging_face_config(const Config& m, Dtype dtype, const fs::path& original) {
  std::error_code none;
  if (original.empty() || !fs::exists(original, none) || !describes(original, m))
    return hugging_face_config(m, dtype);
  json config = deck::load_json(original.string(), largest_config_bytes);
  set_dtype(config, dtype);
  const Architecture& kind = architecture(m);
  config.erase("quantization_config");                            // of codes, which are not written
  if (!kind.extra_layers.empty()) config[kind.extra_layers] = 0;  // they were not read
  const std::string& positions = kind.keys.seq_len;
  // A table of positions has just these.
  if (!m.rotary() || config.value(positions, 0) < m.seq_len) config[positions] = m.seq_len;
  return config;
}

}  // namespace brume::interop
