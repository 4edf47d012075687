#include "hugging_face_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "hugging_face_config.hpp"

namespace brume::interop {
namespace {

using model::Config;
using model::Parameter;

/// "layers.3.mlp.in" of "layers.3.mlp.in.bias", and the library's word for what it is: a gain is a
/// weight there. Factors of an adapter have PEFT's words.
std::pair<std::string, std::string> split(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  const std::string kind = name.substr(dot + 1);
  if (kind == "bias") return {name.substr(0, dot), ".bias"};
  if (kind == "lora_a") return {name.substr(0, dot), ".lora_A.weight"};
  if (kind == "lora_b") return {name.substr(0, dot), ".lora_B.weight"};
  if (kind == "correction") return {name, ""};  // a tensor's name has its kind
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

/// A head's rows in files and here: files have the turned features last, and the two of a pair side
/// by side.
void add_head(std::vector<RowRun>& runs, const std::string& tensor, std::int64_t first,
              std::int64_t still, std::int64_t turned) {
  for (const std::int64_t odd : {0, 1})
    for (std::int64_t i = odd; i < turned; i += 2) runs.push_back({tensor, first + still + i, 1});
  if (still > 0) runs.push_back({tensor, first, still});
}

/// The rows of a module of latent attention.
///
/// @param module  behind "attention."
std::vector<RowRun> latent_rows(const Config& m, const std::string& tensor,
                                const std::string& module, const std::string& kind,
                                std::int64_t rows) {
  std::vector<RowRun> runs;
  if (module == "k_turned")
    add_head(runs, tensor, m.kv_lora_rank, 0, m.rotary_dim());
  else if (module == "q" && !kind.starts_with(".lora_A"))
    for (std::int64_t head = 0; head < m.num_heads; ++head)
      add_head(runs, tensor, head * m.head_dim(), m.still_dim(), m.rotary_dim());
  else
    runs = {{tensor, 0, rows}};
  return runs;
}

class LayoutBuilder {
 public:
  LayoutBuilder(const Config& config, bool of_adapter, ExpertTensors experts)
      : model_(config), of_adapter_(of_adapter), experts_(experts) {
    if (is_stacked())  // alike for all architectures
      for (const auto& [module, tensor] :
           {std::pair("mlp.router", "mlp.gate"),
            std::pair("mlp.experts.in.weight", "mlp.experts.gate_up_proj"),
            std::pair("mlp.experts.out.weight", "mlp.experts.down_proj")})
        own_[module] = {tensor};
    if (model_.q_lora_rank == 0) own_.erase("attention.q");  // one product makes queries
    const std::string base(of_adapter ? peft_prefix : "");
    layout_.prefix = base + names_.prefix;
    // PEFT has the library's names in memory: there all heads have one name since its version 5.
    layout_.head = base + (of_adapter ? "lm_head" : names_.head) + ".weight";
  }

  HuggingFaceLayout build() {
    for (const model::Block& block : model::blocks(model_))
      for (const Parameter& parameter : block.parameters)
        if (has(parameter.id, block.layer)) add(block, parameter);
    return std::move(layout_);
  }

 private:
  bool has(model::ParameterId id, int layer) const {
    if (id.is_adapter()) return of_adapter_ && model_.adapter.is_in(layer);
    return !of_adapter_ || model_.adapter.saves(id.module);
  }

  bool is_interleaved() const { return form_ == families::ExpertForm::interleaved; }
  bool is_stacked() const { return experts_ == ExpertTensors::stacked && !is_interleaved(); }

  void add(const model::Block& block, const Parameter& parameter) {
    auto [module, kind] = split(parameter.name);
    const bool in_layer = block.kind == model::BlockKind::layer;
    if (in_layer) module = module.substr(block.name.size() + 1);
    const std::string name = parameter.name.substr(in_layer ? block.name.size() + 1 : 0);
    if (module == "norm1" && model_.layer_norms == 1) module = "norm";
    const std::string prefix =
        layout_.prefix + (in_layer ? fmt::format("{}{}.", names_.layers, block.layer) : "");
    const bool matrix = !parameter.name.ends_with(".bias") && parameter.shape.size() > 1;
    const bool transposed = matrix && in_layer && names_.transposed && !of_adapter_;  // nor tables
    Placed placed{.parameter = parameter, .matrix = matrix, .transposed = transposed, .runs = {}};
    const bool of_experts = parameter.id.is_of_experts();
    const bool expert_factor = parameter.id.is_adapter() && of_experts;
    if (expert_factor)
      place_expert_factor(placed, prefix, kind);
    else if (in_layer && own_.contains(name))
      placed.runs = {{prefix + own_.at(name).front(), 0, placed.rows()}};
    else if (model_.latent() && module.starts_with("attention."))
      placed.runs = latent_rows(model_, prefix + names_of(module, true).front() + kind,
                                module.substr(module.find('.') + 1), kind, placed.rows());
    else if (module == "head")
      placed.runs = {{layout_.head, 0, placed.rows()}};
    else if (in_layer && !names_.fused_qkv.empty() &&
             (module == "attention.qkv" || module == "attention.q" || module == "attention.kv"))
      placed.runs = fused(parameter, prefix + names_.fused_qkv + kind, module);
    else
      placed.runs =
          equal_parts(names_of(module, in_layer), prefix, kind, placed.rows(), parameter.name);
    for (const RowRun& run : placed.runs) add_tensor(run, placed);
    const std::int64_t experts = model_.num_experts;
    if (expert_factor && placed.transposed)
      layout_.tensors.back().shape = {placed.own_columns / parameter.shape.back(),
                                      parameter.shape.back() * experts};
    if (of_experts && !expert_factor && is_stacked())
      layout_.tensors.back().shape = {experts, placed.rows() / experts, placed.columns()};
    if (of_experts && is_interleaved()) layout_.tensors.back().shape = place_experts(placed);
    layout_.parameters.push_back(std::move(placed));
    if (of_adapter_ && module == "embedding.token" && model_.tied_head) add_tied_head();
  }

  /// @return the shape of the tensor
  std::vector<std::int64_t> place_experts(Placed& placed) const {
    const bool first = placed.parameter.id.module == model::Module::experts_in;
    const std::int64_t experts = model_.num_experts, parts = first ? 2 : 1,
                       columns = placed.columns(), rows = placed.rows() / experts / parts,
                       all = parts * rows;
    const bool turned = experts_ == ExpertTensors::turned && placed.matrix;
    if (turned)
      placed.experts = {parts, rows, columns, columns, parts * columns, 1};
    else
      placed.experts = {parts, rows, columns, 1, parts, all};
    if (!placed.matrix) return {experts, all};
    return turned ? std::vector{experts, all, columns} : std::vector{experts, columns, all};
  }

  /// B of all experts as [experts, outputs rank] is the transpose of its tensor.
  void place_expert_factor(Placed& placed, const std::string& prefix,
                           const std::string& kind) const {
    const Parameter& parameter = placed.parameter;
    const bool wrapped = parameter.id.module == model::Module::experts_in &&
                         model_.adapter.find(model::Module::experts_out);
    if (parameter.id.part == model::Part::lora_b) {
      placed.own_columns = parameter.elements() / model_.num_experts;
      placed.transposed = true;
    }
    placed.runs = {
        {prefix + (wrapped ? "mlp.experts.base_layer" : "mlp.experts") + kind, 0, placed.rows()}};
  }

  /// PEFT saves the table of a tied head a second time, as the head's.
  void add_tied_head() {
    Placed head = layout_.parameters.back();
    head.runs = {{layout_.head, 0, head.rows()}};
    add_tensor(head.runs.front(), head);
    layout_.parameters.push_back(std::move(head));
  }

  std::vector<RowRun> fused(const Parameter& parameter, const std::string& tensor,
                            const std::string& module) const {
    require(!of_adapter_ || module == "attention.qkv", Failure::input,
            "training.adapter.targets: PEFT has no counterpart of {}: its queries, keys and values "
            "share a first factor",
            parameter.name);
    if (parameter.id.part == model::Part::lora_a) return {{tensor, 0, parameter.shape.front()}};
    return fused_rows(model_, tensor, module);
  }

  /// Tensors with equal parts of a module's rows; none: it has no place in the format.
  std::vector<std::string> names_of(const std::string& module, bool in_layer) const {
    const families::TensorNames::Map& common = in_layer ? names_.of_layer : names_.ends;
    const bool is_own = in_layer && own_.contains(module);
    const auto found = is_own ? own_.find(module) : common.find(module);
    if (!is_own && found == common.end()) return {};
    const std::vector<std::string>& names = found->second;
    if (names.front().find('*') == std::string::npos) return names;
    std::vector<std::string> all;
    for (int expert = 0; expert < model_.num_experts; ++expert)
      for (std::string name : names)
        all.push_back(name.replace(name.find('*'), 1, std::to_string(expert)));
    return all;
  }

  static std::vector<RowRun> equal_parts(const std::vector<std::string>& names,
                                         const std::string& prefix, const std::string& kind,
                                         std::int64_t rows, const std::string& parameter) {
    require(!names.empty(), Failure::input,
            "the parameter {} has no place in Hugging Face's format of this family", parameter);
    std::vector<RowRun> runs;
    for (const std::string& name : names)
      runs.push_back({prefix + name + kind, 0, rows / std::int64_t(names.size())});
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
  const bool of_adapter_;
  const ExpertTensors experts_;
  const families::ExpertForm form_ = architecture(model_).expert_form;
  const families::TensorNames& names_ = model_.family->tensors;
  families::TensorNames::Map own_ = architecture(model_).tensors;  ///< in place of the family's
  HuggingFaceLayout layout_{};
  std::map<std::string, std::size_t> places_;  ///< of tensors
};

}  // namespace

HuggingFaceLayout hugging_face_layout(const Config& config, ExpertTensors experts) {
  return LayoutBuilder(config, false, experts).build();
}

std::optional<ExpertTensors> form_of_experts(std::string_view tensor) {
  if (tensor.ends_with(".mlp.experts.gate_up_proj")) return ExpertTensors::stacked;
  if (tensor.ends_with(".mlp.experts.gate_up_proj_blocks")) return ExpertTensors::turned;
  return std::nullopt;
}

HuggingFaceLayout adapter_layout(const Config& config) {
  return LayoutBuilder(config, true, ExpertTensors::separate).build();
}

engine::Slab whole_slab(const Parameter& parameter, float* data) {
  return {.name = parameter.name,
          .kind = "weight",
          .global_shape = parameter.shape,
          .offset = std::vector<std::int64_t>(parameter.shape.size(), 0),
          .shape = parameter.shape,
          .elements = parameter.elements(),
          .data = data};
}

bool is_buffer(std::string_view tensor) {
  for (const char* end : {".attn.bias", ".attn.masked_bias", ".attention.bias",
                          ".attention.masked_bias", ".rotary_emb.inv_freq"})
    if (tensor.ends_with(end)) return true;
  return false;
}

}  // namespace brume::interop
