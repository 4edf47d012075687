#include "hugging_face_config.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "deck/json.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using model::Config;
using model::Family;
using nlohmann::json;

constexpr std::size_t largest_config_bytes = std::size_t{16} << 20;

template <typename... Args>
void needs(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds)
    throw Error(Failure::input, "the Transformers library has no counterpart of this model: {}",
                fmt::format(format, std::forward<Args>(args)...));
}

const char* torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return "float32";
    case Dtype::bf16: return "bfloat16";
    case Dtype::f16: return "float16";
  }
  return "";
}

json gpt2(const Config& m) {
  needs(m.qkv_bias, "GPT-2 has biases of queries, keys and values");
  needs(m.kv_heads() == m.num_heads, "GPT-2 has as many key heads as query heads");
  needs(m.attention_size() == m.hidden_size, "GPT-2 has head_dim = hidden_size / num_heads");
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_layer", m.num_layers},
          {"n_embd", m.hidden_size},
          {"n_head", m.num_heads},
          {"n_inner", m.ffn_size},
          {"n_positions", m.seq_len},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", m.norm_eps},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr}};
}

/// The sizes of a family with rotary positions. Newer versions read rope_parameters, older ones
/// the other two.
json rotary(const Config& m) {
  needs(m.rotary_dim() == m.head_dim() || m.family == Family::neox,
        "only GPT-NeoX turns a part of a head, {} turns all", model::name(m.family));
  json rope{{"rope_theta", m.rope_theta}, {"rope_type", "default"}};
  const model::RopeScaling& scaling = m.rope_scaling;
  if (scaling.kind != model::RopeScaling::Kind::none) {
    const bool llama3 = scaling.kind == model::RopeScaling::Kind::llama3;
    rope["rope_type"] = llama3 ? "llama3" : "linear";
    rope["factor"] = scaling.factor;
    if (llama3) {
      rope["low_freq_factor"] = scaling.low_freq_factor;
      rope["high_freq_factor"] = scaling.high_freq_factor;
      rope["original_max_position_embeddings"] = scaling.original_seq_len;
    }
  }
  if (m.rotary_dim() != m.head_dim())  // so that the product, rounded down, is it again
    rope["partial_rotary_factor"] = (m.rotary_dim() + 0.5) / m.head_dim();
  json config{{"num_hidden_layers", m.num_layers},  {"hidden_size", m.hidden_size},
              {"num_attention_heads", m.num_heads}, {"max_position_embeddings", m.seq_len},
              {"rope_theta", m.rope_theta},         {"rope_parameters", rope}};
  if (rope["rope_type"] != "default") config["rope_scaling"] = rope;
  return config;
}

/// Which layers have a window, as newer and older files say it.
void set_window(json& config, const Config& m) {
  json types = json::array();
  for (int layer = 0; layer < m.num_layers; ++layer) {
    const bool windowed =
        m.window > 0 &&
        (m.layer_kinds.empty() ||
         m.layer_kinds[std::size_t(layer) % m.layer_kinds.size()] == model::LayerKind::window);
    types.push_back(windowed ? "sliding_attention" : "full_attention");
  }
  if (m.window > 0) config["sliding_window"] = m.window;
  config["layer_types"] = types;
}

json llama(const Config& m) {
  const bool mistral = m.window > 0 && !m.qk_norm && !m.qkv_bias;
  const bool plain = m.window == 0 && !m.qk_norm && !m.qkv_bias;
  needs(!plain || m.hidden_size % m.num_heads == 0, "Llama's heads divide its hidden_size");
  needs(!mistral || m.layer_kinds.empty(), "all layers of Mistral have a window");
  needs(m.window_rope_theta == 0.0, "its layers have one base of rotary angles");
  needs(!(m.qk_norm && m.qkv_bias), "Qwen3 has no biases of queries, keys and values");
  json config = rotary(m);
  config.update({{"architectures",
                  {m.qk_norm    ? "Qwen3ForCausalLM"
                   : m.qkv_bias ? "Qwen2ForCausalLM"
                   : mistral    ? "MistralForCausalLM"
                                : "LlamaForCausalLM"}},
                 {"model_type", m.qk_norm    ? "qwen3"
                                : m.qkv_bias ? "qwen2"
                                : mistral    ? "mistral"
                                             : "llama"},
                 {"num_key_value_heads", m.kv_heads()},
                 {"head_dim", m.head_dim()},
                 {"intermediate_size", m.ffn_size},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", m.norm_eps},
                 {"attention_dropout", 0.0}});
  if (m.window > 0) set_window(config, m);
  if (mistral) {
    config.erase("layer_types");
    return config;
  }
  if (m.qkv_bias || m.qk_norm) {
    config["use_sliding_window"] = m.window > 0;
    config["max_window_layers"] = 0;
  }
  if (!m.qkv_bias) config["attention_bias"] = false;
  if (plain) config["mlp_bias"] = false;
  return config;
}

json gemma(const Config& m) {
  const bool third = m.qk_norm;
  needs(third || m.window_rope_theta == 0.0, "layers of Gemma 2 have one base of rotary angles");
  needs(!third || m.attention_cap == 0.0, "Gemma 3 caps no scores");
  needs(!m.qkv_bias, "Gemma has no biases");
  needs(m.hidden_size % m.num_heads == 0, "Gemma's heads divide its hidden_size");
  const double scalar = m.query_scalar > 0.0 ? m.query_scalar : m.head_dim();
  needs(scalar == std::floor(scalar), "Gemma's query_scalar is a whole number, found {}", scalar);
  json config = rotary(m);
  config.update({{"architectures", {third ? "Gemma3ForCausalLM" : "Gemma2ForCausalLM"}},
                 {"model_type", third ? "gemma3_text" : "gemma2"},
                 {"num_key_value_heads", m.kv_heads()},
                 {"head_dim", m.head_dim()},
                 {"intermediate_size", m.ffn_size},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"rms_norm_eps", m.norm_eps},
                 {"query_pre_attn_scalar", std::int64_t(scalar)},
                 {"attn_logit_softcapping", nullptr},
                 {"final_logit_softcapping", nullptr},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0}});
  if (m.attention_cap > 0.0) config["attn_logit_softcapping"] = m.attention_cap;
  if (m.logits_cap > 0.0) config["final_logit_softcapping"] = m.logits_cap;
  set_window(config, m);
  if (third) {
    const bool own = m.window_rope_theta > 0.0;
    const json full = config["rope_parameters"];
    const json local{{"rope_type", "default"}, {"rope_theta", m.window_rope_theta}};
    config["rope_local_base_freq"] = own ? m.window_rope_theta : m.rope_theta;
    config["rope_parameters"] = {{"full_attention", full},
                                 {"sliding_attention", own ? local : full}};
  }
  return config;
}

json falcon(const Config& m) {
  needs(m.attention_size() == m.hidden_size, "Falcon has head_dim = hidden_size / num_heads");
  needs(m.qkv_bias == m.linear_bias, "Falcon's linear layers have biases all or none");
  const bool one = m.kv_heads() == 1, all = m.kv_heads() == m.num_heads;
  const bool grouped = m.layer_norms == 2 || !(one || all);
  json config = rotary(m);
  config.update({{"architectures", {"FalconForCausalLM"}},
                 {"model_type", "falcon"},
                 {"new_decoder_architecture", grouped},
                 {"multi_query", one && !grouped},
                 {"num_kv_heads", m.kv_heads()},
                 {"num_ln_in_parallel_attn", m.layer_norms},
                 {"parallel_attn", true},
                 {"alibi", false},
                 {"bias", m.linear_bias},
                 {"ffn_hidden_size", m.ffn_size},
                 {"activation", "gelu"},
                 {"layer_norm_epsilon", m.norm_eps},
                 {"hidden_dropout", 0.0},
                 {"attention_dropout", 0.0}});
  return config;
}

json neox(const Config& m) {
  needs(m.attention_size() == m.hidden_size, "GPT-NeoX has head_dim = hidden_size / num_heads");
  needs(m.kv_heads() == m.num_heads, "GPT-NeoX has as many key heads as query heads");
  needs(m.qkv_bias && m.linear_bias, "all linear layers of GPT-NeoX have a bias");
  json config = rotary(m);
  const json& rope = config["rope_parameters"];
  config.erase("rope_theta");
  config.update({{"architectures", {"GPTNeoXForCausalLM"}},
                 {"model_type", "gpt_neox"},
                 {"intermediate_size", m.ffn_size},
                 {"hidden_act", "gelu"},
                 {"use_parallel_residual", m.parallel()},
                 {"attention_bias", true},
                 {"rotary_emb_base", m.rope_theta},
                 {"rotary_pct", rope.value("partial_rotary_factor", 1.0)},
                 {"layer_norm_eps", m.norm_eps},
                 {"hidden_dropout", 0.0},
                 {"attention_dropout", 0.0}});
  return config;
}

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
  needs(m.family == Family::gemma || m.query_scalar == 0.0 || m.query_scalar == m.head_dim(),
        "only Gemma has a query_scalar of its own");
  json config;
  switch (m.family) {
    case Family::gpt: config = gpt2(m); break;
    case Family::llama: config = llama(m); break;
    case Family::falcon: config = falcon(m); break;
    case Family::neox: config = neox(m); break;
    case Family::gemma: config = gemma(m); break;
  }
  config.update({{"vocab_size", m.vocab_size}, {"tie_word_embeddings", m.tied_head}});
  if (m.init_std <= 1.0) config["initializer_range"] = m.init_std;  // Llama takes no other
  set_dtype(config, dtype);
  return config;
}

json hugging_face_config(const Config& m, Dtype dtype, const fs::path& original) {
  std::error_code none;
  if (original.empty() || !fs::exists(original, none) || !describes(original, m))
    return hugging_face_config(m, dtype);
  json config = deck::load_json(original.string(), largest_config_bytes);
  set_dtype(config, dtype);
  if (m.family == Family::gpt)
    config["n_positions"] = m.seq_len;  // the table of positions has just these
  else if (config.value("max_position_embeddings", 0) < m.seq_len)
    config["max_position_embeddings"] = m.seq_len;
  return config;
}

}  // namespace brume::interop
