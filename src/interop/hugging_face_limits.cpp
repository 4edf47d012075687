/// @file The architecture of a model in the Transformers library, and checks that it has one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "hugging_face_config.hpp"

namespace brume::interop {
namespace {

using families::Architecture;
using families::ConfigKeys;
using families::Limit;
using model::Config;

/// Titles of the families whose files have a key.
std::string titles(std::string ConfigKeys::*key) {
  std::vector<std::string> all;
  for (const model::Family& family : families::families())
    if (!(family.architectures.front().keys.*key).empty()) all.push_back(family.title);
  return fmt::format("{}", fmt::join(all, " or "));
}

bool holds(Limit::Kind kind, const Config& m) {
  switch (kind) {
    case Limit::Kind::qkv_bias: return m.qkv_bias;
    case Limit::Kind::no_qkv_bias: return !m.qkv_bias;
    case Limit::Kind::all_biases: return m.qkv_bias && m.linear_bias;
    case Limit::Kind::equal_biases: return m.qkv_bias == m.linear_bias;
    case Limit::Kind::all_key_heads: return m.kv_heads() == m.num_heads;
    case Limit::Kind::heads_fill_hidden: return m.attention_size() == m.hidden_size;
    case Limit::Kind::heads_divide_hidden: return m.hidden_size % m.num_heads == 0;
    case Limit::Kind::no_layer_kinds: return m.windows.empty();
    case Limit::Kind::no_window: return m.window == 0;
    case Limit::Kind::no_qk_norm: return !m.qk_norm;
    case Limit::Kind::gated_shared_expert: return m.shared_expert_gate;
    case Limit::Kind::equal_shared_experts:
      return !m.shared_expert_gate && m.shared_expert_ffn_size % m.expert_ffn_size == 0;
    case Limit::Kind::normalized_topk: return m.normalize_topk;
    case Limit::Kind::softmax_of_all: return !m.normalize_topk;
    case Limit::Kind::one_rope_theta: return m.window_rope_theta == 0.0;
    case Limit::Kind::no_attention_cap: return m.attention_cap == 0.0;
    case Limit::Kind::whole_query_scalar: return query_scalar(m) == std::floor(query_scalar(m));
  }
  return false;
}

}  // namespace

double query_scalar(const Config& m) {
  return m.query_scalar > 0.0 ? m.query_scalar : m.head_dim();
}

const Architecture& architecture(const Config& m) {
  const std::vector<Architecture>& all = m.family->architectures;
  const auto found = std::find_if(all.rbegin(), all.rend(), [&](const Architecture& one) {
    return (m.qkv_bias || !one.qkv_bias) && (m.qk_norm || !one.qk_norm) &&
           (m.window > 0 || !one.window) && (m.num_experts > 0) == one.experts &&
           (m.shared_expert_ffn_size > 0) == one.shared_expert &&
           (m.router == model::RouterKind::sigmoid) == one.sigmoid_router &&
           m.qk_norm_joint == one.joint_qk_norm && m.latent() == one.latent;
  });
  return found == all.rend() ? all.front() : *found;
}

void check_exportable(const Config& m) {
  const Architecture& one = architecture(m);
  const ConfigKeys& names = one.keys;
  export_needs(
      !names.query_scalar.empty() || m.query_scalar == 0.0 || m.query_scalar == m.head_dim(),
      "only {} has a query_scalar of its own", titles(&ConfigKeys::query_scalar));
  export_needs(m.latent() == one.latent,
               "latent attention is exported with experts and a shared expert only");
  export_needs((m.shared_expert_ffn_size > 0) == one.shared_expert &&
                   (m.router == model::RouterKind::sigmoid) == one.sigmoid_router &&
                   m.qk_norm_joint == one.joint_qk_norm,
               "no architecture has this choice of a router, of a shared expert, and of norms of "
               "queries and keys over all heads");
  export_needs(m.expert_groups == 1 || !names.expert_groups.empty(), "{} has no expert_groups",
               one.model_type);
  export_needs(m.routed_scale == 1.0 || !names.routed_scale.empty(), "{} has no routed_scale",
               one.model_type);
  for (const Limit& limit : one.limits)
    export_needs(holds(limit.kind, m), "{}",
                 fmt::format(fmt::runtime(limit.text), query_scalar(m)));
  export_needs(
      !m.rotary() || !names.rotary_share.empty() || m.latent() || m.rotary_dim() == m.head_dim(),
      "only {} turns a part of a head, {} turns all", titles(&ConfigKeys::rotary_share),
      m.family->name);
}

}  // namespace brume::interop
