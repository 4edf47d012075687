/// @file Sizes that the formulas of segments share.
#pragma once

#include "heads.hpp"
#include "model/model.hpp"

namespace brume::model {

/// Sizes a segment's formulas speak of.
struct Sizes {
  explicit Sizes(const Config& m, SegmentKind kind = SegmentKind::attention)
      : b(Expr::variable("b")),
        tp(Expr::variable("tp")),
        ep(Expr::variable("ep")),
        cp(Expr::variable("cp")),
        seq(m.padded_len()),
        tokens(b * double(m.computed_tokens()) / cp *
               (kind == SegmentKind::experts ? expert_data_ranks(m) : Expr(1.0))),
        hidden(m.hidden_size),
        heads_tp(Expr(m.num_heads) / tp),
        head_dim(m.head_dim()),
        attended_tp(Expr(m.attention_size()) / tp),
        values_tp(Expr(m.value_size()) / tp),
        keys_tp(m.kv_heads() == m.num_heads ? attended_tp : local_heads(m.kv_heads()) * head_dim),
        qkv_tp(m.kv_heads() == m.num_heads ? 3.0 * attended_tp : attended_tp + 2.0 * keys_tp),
        ffn_tp(m.inner_size(kind) * share_of_expert(kind)),
        mlp_in_tp(m.mlp_in_size(kind) * share_of_expert(kind)),
        shared_tp(m.shared_expert_ffn_size / sum_ranks(SegmentKind::experts)),
        vocab_tp(ceil(double(m.vocab_size) / tp)) {}
  Expr b, tp, ep, cp;
  Expr seq;     ///< tokens that a query may see
  Expr tokens;  ///< of which this rank computes; of experts, of all ranks that divide them
  Expr hidden, heads_tp, head_dim;
  Expr attended_tp, values_tp, keys_tp,
      qkv_tp;  ///< features of this rank's query heads, their values, key heads, q, k and v
  Expr ffn_tp, mlp_in_tp, shared_tp, vocab_tp;

 private:
  /// This rank's share of the inner features of an MLP or an expert.
  Expr share_of_expert(SegmentKind kind) const {
    return kind == SegmentKind::experts ? min(ep / tp, 1.0) : 1.0 / tp;
  }
};

}  // namespace brume::model
