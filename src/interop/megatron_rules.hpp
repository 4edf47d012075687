/// @file Rules of Megatron-LM that both its writer and its reader obey.
#pragma once

#include "model/model.hpp"

namespace brume::interop {

/// Scores of a group of experts that are added up here: two sigmoids, or one logit.
inline int added_scores(const model::Config& model) {
  return model.router == model::RouterKind::sigmoid ? 2 : 1;
}

/// Whether groups of experts are chosen as here. It adds up the k / groups_per_token largest scores
/// of a group.
///
/// @source  Megatron-LM (August 2026), core/transformer/moe/moe_utils.py (group_limited_topk)
inline bool chooses_groups_alike(const model::Config& model) {
  return model.expert_groups == 1 ||
         model.experts_per_token / model.groups_per_token == added_scores(model);
}

/// Whether yarn's numbers are those that multi-latent attention has no arguments for.
///
/// @source  Megatron-LM, core/transformer/transformer_config.py (MLATransformerConfig)
inline bool has_usual_yarn(const model::RopeScaling& scaling) {
  return scaling.original_seq_len == 4096 && scaling.beta_fast == 32.0 &&
         scaling.beta_slow == 1.0 && scaling.truncate && scaling.attention_factor == 0.0 &&
         (scaling.mscale > 0.0) == (scaling.mscale_all_dim > 0.0);
}

}  // namespace brume::interop
