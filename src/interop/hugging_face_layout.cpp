#include "hugging_face_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.hpp"

namespace brume::interop {
namespace {

using model::Config;
using model::Family;
using model::Parameter;

/// What a family calls things: ours, without ".weight", ".gain" and ".bias", and theirs. Several
/// names are tensors for equal parts of the rows.
struct Names {
  std::string prefix;  ///< of all but the head
  std::string layers;  ///< before a layer's number
  std::map<std::string, std::vector<std::string>> ends, of_layer;
  std::string head = "lm_head";
  std::string fused =
      {};  ///< queries, keys and values in one tensor, by heads; empty: there is none
};

Names names(const Config& m) {
  switch (m.family) {
    case Family::gpt:
      return {.prefix = "transformer.",
              .layers = "h.",
              .ends = {{"embedding.token", {"wte"}},
                       {"embedding.position", {"wpe"}},
                       {"head.norm", {"ln_f"}}},
              .of_layer = {{"norm1", {"ln_1"}},
                           {"norm2", {"ln_2"}},
                           {"attention.qkv", {"attn.c_attn"}},
                           {"attention.out", {"attn.c_proj"}},
                           {"mlp.in", {"mlp.c_fc"}},
                           {"mlp.out", {"mlp.c_proj"}}}};
    case Family::llama:
    case Family::gemma:
      return {.prefix = "model.",
              .layers = "layers.",
              .ends = {{"embedding.token", {"embed_tokens"}}, {"head.norm", {"norm"}}},
              .of_layer = {
                  {"norm1", {"input_layernorm"}},
                  {"norm2",
                   {m.post_norms() ? "pre_feedforward_layernorm" : "post_attention_layernorm"}},
                  {"post_norm1", {"post_attention_layernorm"}},
                  {"post_norm2", {"post_feedforward_layernorm"}},
                  {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                  {"attention.q", {"self_attn.q_proj"}},
                  {"attention.kv", {"self_attn.k_proj", "self_attn.v_proj"}},
                  {"attention.q_norm", {"self_attn.q_norm"}},
                  {"attention.k_norm", {"self_attn.k_norm"}},
                  {"attention.out", {"self_attn.o_proj"}},
                  {"mlp.in", {"mlp.gate_proj", "mlp.up_proj"}},
                  {"mlp.out", {"mlp.down_proj"}}}};
    case Family::falcon:
      return {.prefix = "transformer.",
              .layers = "h.",
              .ends = {{"embedding.token", {"word_embeddings"}}, {"head.norm", {"ln_f"}}},
              .of_layer = {{"norm1", {m.layer_norms == 2 ? "ln_attn" : "input_layernorm"}},
                           {"norm2", {"ln_mlp"}},
                           {"attention.out", {"self_attention.dense"}},
                           {"mlp.in", {"mlp.dense_h_to_4h"}},
                           {"mlp.out", {"mlp.dense_4h_to_h"}}},
              .fused = "self_attention.query_key_value"};
    case Family::neox:
      return {.prefix = "gpt_neox.",
              .layers = "layers.",
              .ends = {{"embedding.token", {"embed_in"}}, {"head.norm", {"final_layer_norm"}}},
              .of_layer = {{"norm1", {"input_layernorm"}},
                           {"norm2", {"post_attention_layernorm"}},
                           {"attention.out", {"attention.dense"}},
                           {"mlp.in", {"mlp.dense_h_to_4h"}},
                           {"mlp.out", {"mlp.dense_4h_to_h"}}},
              .head = "embed_out",
              .fused = "attention.query_key_value"};
  }
  return {};
}

/// "layers.3.mlp.in" of "layers.3.mlp.in.bias", and the library's word for what it is: a gain is a
/// weight there.
std::pair<std::string, std::string> split(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::string kind = name.substr(dot + 1);
  if (kind == "bias") return {name.substr(0, dot), ".bias"};
  if (kind == "weight" || kind == "gain") return {name.substr(0, dot), ".weight"};
  return {name, ".weight"};  // a table
}

/// The fused rows of queries, keys and values: for each key head its g query heads, its key and its
/// value.
std::vector<RowRun> fused_rows(const Config& m, const std::string& tensor,
                               const std::string& module) {
  const std::int64_t heads = m.num_heads / m.kv_heads(), size = m.head_dim();
  const std::array<std::pair<std::int64_t, std::int64_t>, 3> parts{
      {{0, heads}, {heads, 1}, {heads + 1, 1}}};  // first head and heads of q, k, v in a group
  const std::size_t begin = module == "attention.kv" ? 1 : 0, end = module == "attention.q" ? 1 : 3;
  std::vector<RowRun> runs;
  for (std::size_t part = begin; part < end; ++part)
    for (std::int64_t group = 0; group < m.kv_heads(); ++group)
      runs.push_back(
          {tensor, (group * (heads + 2) + parts[part].first) * size, parts[part].second * size});
  return runs;
}

class LayoutBuilder {
 public:
  explicit LayoutBuilder(const Config& config) : model_(config), names_(names(config)) {
    layout_.prefix = names_.prefix;
    layout_.head = names_.head + ".weight";
  }

  HuggingFaceLayout build() {
    for (const model::Block& block : model::blocks(model_))
      for (const Parameter& parameter : block.parameters) add(block, parameter);
    return std::move(layout_);
  }

 private:
  void add(const model::Block& block, const Parameter& parameter) {
    auto [module, kind] = split(parameter.name);
    const bool in_layer = block.kind == model::BlockKind::layer;
    if (in_layer) module = module.substr(block.name.size() + 1);
    const std::string prefix =
        names_.prefix + (in_layer ? fmt::format("{}{}.", names_.layers, block.layer) : "");
    const bool matrix = !parameter.name.ends_with(".bias") && !parameter.name.ends_with(".gain");
    // GPT-2's linear layers are the transposes; its tables are not.
    const bool transposed = matrix && in_layer && model_.family == Family::gpt;
    Placed placed{.parameter = parameter, .matrix = matrix, .transposed = transposed};
    if (module == "head")
      placed.runs = {{layout_.head, 0, placed.rows()}};
    else if (in_layer && !names_.fused.empty() &&
             (module == "attention.qkv" || module == "attention.q" || module == "attention.kv"))
      placed.runs = fused_rows(model_, prefix + names_.fused + kind, module);
    else
      placed.runs = equal_parts(in_layer ? names_.of_layer : names_.ends, module, prefix, kind,
                                placed.rows(), parameter.name);
    for (const RowRun& run : placed.runs) add_tensor(run, placed);
    layout_.parameters.push_back(std::move(placed));
  }

  static std::vector<RowRun> equal_parts(
      const std::map<std::string, std::vector<std::string>>& names, const std::string& module,
      const std::string& prefix, const std::string& kind, std::int64_t rows,
      const std::string& parameter) {
    const auto found = names.find(module);
    require(found != names.end(), Failure::input,
            "the parameter {} has no place in Hugging Face's format of this family", parameter);
    std::vector<RowRun> runs;
    const auto parts = std::int64_t(found->second.size());
    for (const std::string& name : found->second)
      runs.push_back({prefix + name + kind, 0, rows / parts});
    return runs;
  }

  /// A tensor is as long as all runs that lie in it.
  void add_tensor(const RowRun& run, const Placed& placed) {
    const auto [at, is_new] = places_.try_emplace(run.tensor, layout_.tensors.size());
    if (is_new) {
      NewTensor tensor{run.tensor, {0}};
      if (placed.matrix)
        tensor.shape.insert(placed.transposed ? tensor.shape.begin() : tensor.shape.end(),
                            placed.columns());
      layout_.tensors.push_back(std::move(tensor));
    }
    std::vector<std::int64_t>& shape = layout_.tensors[at->second].shape;
    (placed.transposed ? shape.back() : shape.front()) += run.count;
  }

  const Config& model_;
  Names names_;
  HuggingFaceLayout layout_{};
  std::map<std::string, std::size_t> places_;  ///< of tensors
};

}  // namespace

HuggingFaceLayout hugging_face_layout(const Config& config) {
  return LayoutBuilder(config).build();
}

bool is_buffer(std::string_view tensor) {
  for (const char* end : {".attn.bias", ".attn.masked_bias", ".attention.bias",
                          ".attention.masked_bias", ".rotary_emb.inv_freq"})
    if (tensor.ends_with(end)) return true;
  return false;
}

}  // namespace brume::interop
