/// @file Experts of a config.json.
#include <algorithm>
#include <limits>
#include <string>

#include "base/log.hpp"
#include "config_file.hpp"

namespace brume::model {
namespace {

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

}  // namespace

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

}  // namespace brume::model
