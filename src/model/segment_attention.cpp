/// @file Operators of attention: queries, keys and values; latent features; exchanges of heads.
#include "segment_list.hpp"

namespace brume::model {
namespace {

/// Of the pairs of a query and a key before it, T^2 / 2, those within the window and, in the mean,
/// within a document. Where there are both, the smaller share is what is left at most.
double visible_share(const Config& m, SegmentKind kind) {
  if (kind != SegmentKind::window) return m.document_share;
  const double window = double(std::min(m.window, m.padded_len())) / m.padded_len();
  if (m.generates()) return window;
  return std::min(m.document_share, window * (2.0 - window));
}

}  // namespace

/// Makes of all heads of this rank's tokens some heads of all tokens of the sequence.
///
/// @param columns  of all ranks' heads together: ranks may share one
TensorId SegmentList::to_heads(const std::string& name, TensorId read, const Expr& columns) {
  const TensorId parts = activation(name + ".parts", columns);
  streaming("cut " + name, OperatorKind::cut_heads, read, parts, {s_.tokens, columns},
            s_.tokens * columns);
  const TensorId heads = of_sequence(name + ".heads", columns / s_.cp);
  exchange(name + " to heads", OperatorKind::all_to_all, parts, heads, Axis::cp);
  return heads;
}

/// The way back.
TensorId SegmentList::to_tokens(const std::string& name, TensorId read) {
  const Expr columns = segment_.tensor(read).columns * s_.cp;
  const TensorId parts = activation(name + ".parts", columns);
  exchange(name + " to tokens", OperatorKind::all_to_all, read, parts, Axis::cp);
  const TensorId joined = activation(name, columns);
  streaming("join " + name, OperatorKind::join_heads, parts, joined, {s_.tokens, columns},
            s_.tokens * columns);
  return joined;
}

/// Keys and values of all tokens of a sequence, side by side.
TensorId SegmentList::gathered_keys(TensorId qkv) {
  const Expr columns = 2.0 * s_.keys_tp;
  const TensorId keys = activation("keys", columns);
  streaming("cut keys", OperatorKind::cut_keys, qkv, keys, {s_.tokens, columns},
            s_.tokens * columns);
  const TensorId all = of_sequence("keys.all", columns);
  exchange("gather keys", OperatorKind::all_gather, keys, all, Axis::cp);
  return all;
}

/// Queries, keys and values, of which positions turned nothing so far.
TensorId SegmentList::qkv(TensorId normed) {
  const bool shared_keys = m_.kv_heads() != m_.num_heads;
  const std::vector<Module> modules =
      shared_keys ? std::vector{Module::q, Module::kv} : std::vector{Module::qkv};
  TensorId qkv = activation("qkv", s_.qkv_tp);
  linear("qkv", normed, qkv, modules);
  if (m_.qkv_bias) epilogue("qkv bias", qkv, qkv, modules);
  adapt("qkv", normed, qkv,
        {{Module::qkv, s_.qkv_tp},
         {Module::q, s_.attended_tp},
         {Module::kv, 2.0 * s_.keys_tp},
         {Module::k, s_.keys_tp},
         {Module::v, s_.keys_tp}});
  return qkv;
}

/// Fewer features of each token, and their norm.
TensorId SegmentList::down(const std::string& name, TensorId normed, Module module, Module norm,
                           int rank) {
  const TensorId low = activation(name, double(rank)),
                 out = activation(name + ".out", double(rank));
  linear(name, normed, low, {module});
  adapt(name, normed, low, {{module, double(rank)}});
  this->norm(name + " norm", norm, low, out);
  return out;
}

/// Features that queries of latent attention are made of.
TensorId SegmentList::query_features(TensorId normed) {
  return m_.q_lora_rank > 0
             ? down("q_down", normed, Module::q_down, Module::q_down_norm, m_.q_lora_rank)
             : normed;
}

void SegmentList::latent_queries(TensorId features, TensorId written) {
  linear("q", features, written, {Module::q}, s_.attended_tp);
  adapt("q", features, written, {{Module::q, s_.attended_tp}});
}

/// The same from latent attention's products, which write side by side. Values are as wide as keys.
TensorId SegmentList::latent_qkv(TensorId normed) {
  const Expr still = s_.heads_tp * double(m_.still_dim() + m_.v_head_dim()),
             turned = double(m_.rotary_dim());
  const TensorId queries = query_features(normed);
  const TensorId keys =
      down("kv_down", normed, Module::kv_down, Module::kv_down_norm, m_.kv_lora_rank);
  const TensorId parts = activation("qkv.parts", s_.attended_tp + still + turned);
  latent_queries(queries, parts);
  linear("kv_up", keys, parts, {Module::kv_up}, still);
  adapt("kv_up", keys, parts, {{Module::kv_up, still}});
  linear("k_turned", normed, parts, {Module::k_turned}, turned);
  const TensorId qkv = activation("qkv", s_.qkv_tp);
  streaming("expand", OperatorKind::expand_keys, parts, qkv,
            {s_.tokens, s_.heads_tp, 3.0 * s_.head_dim}, s_.tokens * s_.qkv_tp);
  return qkv;
}

/// Keys and values of all tokens of a sequence, side by side. Ranks gather the latent features and
/// the turned key that make them, and each one widens all.
TensorId SegmentList::gathered_latents(TensorId normed, std::optional<TensorId>& queries) {
  const double turned = m_.rotary_dim(), rank = m_.kv_lora_rank;
  const auto rope = [&](TensorId id, Module module, const Expr& heads, const Expr& columns) {
    streaming("rope " + segment_.tensor(id).name, OperatorKind::rope, id, id,
              {s_.tokens, heads, columns}, s_.tokens * heads * columns)
        .modules = {module};
  };
  const TensorId features = query_features(normed);
  queries = activation("queries", s_.attended_tp);
  latent_queries(features, *queries);
  rope(*queries, Module::q, s_.heads_tp, s_.head_dim);
  const TensorId low = activation("kv_down", rank + turned),
                 latents = activation("latents", rank + turned);
  linear("kv_down", normed, low, {Module::kv_down}, rank);
  adapt("kv_down", normed, low, {{Module::kv_down, rank}});
  linear("k_turned", normed, low, {Module::k_turned}, turned);
  rope(low, Module::k_turned, 1.0, turned);
  Operator& norm = streaming("kv_down norm", OperatorKind::rms_norm, low, latents,
                             {s_.tokens, rank}, s_.tokens * rank);
  norm.modules = {Module::kv_down_norm};
  norm.statistics = {statistic("kv_down norm.rstd", s_.tokens)};
  const TensorId all = of_sequence("latents.all", rank + turned);
  segment_.tensor(all).stays = true;
  exchange("gather latents", OperatorKind::all_gather, latents, all, Axis::cp);
  const Expr still = s_.heads_tp * double(m_.still_dim() + m_.v_head_dim()),
             columns = 2.0 * s_.attended_tp, rows = s_.b * s_.seq;
  const TensorId parts = of_sequence("keys.parts", still), keys = of_sequence("keys.all", columns);
  segment_.tensor(parts).remade = segment_.tensor(keys).remade = true;
  linear("kv_up", all, parts, {Module::kv_up});
  adapt("kv_up", all, parts, {{Module::kv_up, still}});
  streaming("expand", OperatorKind::expand_keys, parts, keys,
            {rows, s_.heads_tp, 2.0 * s_.head_dim}, rows * columns)
      .second = all;
  return keys;
}

/// Attention to kept keys: each token sees all of s_.seq keys, each sequence's keys are read once.
void SegmentList::cached_attention(TensorId qkv, TensorId attended, const Expr& heads,
                                   const Expr& head_dim, const Expr& key_columns) {
  const Expr keys = double(m_.generation.sequences) * s_.seq, columns = heads * head_dim;
  segment_.operators.push_back({.name = "attention",
                                .kind = OperatorKind::cached_attention,
                                .read = qkv,
                                .written = attended,
                                .modules = std::vector<Module>(m_.sinks() ? 1 : 0, Module::sinks),
                                .dims = {s_.tokens, s_.seq, heads, head_dim},
                                .forward_flops = cached_attention_flops(s_.tokens, s_.seq, columns),
                                .forward_bytes = 8.0 * (keys * key_columns + s_.tokens * columns),
                                .share = visible_share(m_, segment_.kind)});
}

/// A product of each head with its part of kv_up.
void SegmentList::latent_product(const char* name, OperatorKind kind, TensorId read,
                                 TensorId written, const Expr& outputs, const Expr& inputs) {
  product(name, kind, read, written, {{Module::kv_up}, outputs, inputs});
  Operator& op = segment_.operators.back();
  op.forward_flops = op.forward_flops * s_.heads_tp;
  op.forward_bytes = op.forward_bytes * s_.heads_tp;
  op.dims = {s_.tokens * s_.heads_tp, outputs, inputs, s_.heads_tp};
}

/// The same where latent features are kept: they are the one key and value of all heads.
TensorId SegmentList::latent_attention(TensorId normed) {
  const double turned = m_.rotary_dim(), rank = m_.kv_lora_rank, kept = turned + rank;
  const TensorId queries = query_features(normed);
  const TensorId low = activation("kv_down", rank);
  const TensorId parts = activation("latent.parts", kept + s_.attended_tp);
  linear("kv_down", normed, low, {Module::kv_down});
  adapt("kv_down", normed, low, {{Module::kv_down, rank}});
  norm("kv_down norm", Module::kv_down_norm, low, parts);
  latent_queries(queries, parts);
  linear("k_turned", normed, parts, {Module::k_turned}, turned);
  const TensorId heads = activation("latent.heads", (s_.heads_tp + 2.0) * kept);
  latent_product("absorb", OperatorKind::absorb_queries, parts, heads, rank,
                 double(m_.still_dim()));
  streaming("rope", OperatorKind::rope, heads, heads, {s_.tokens, s_.heads_tp + 1.0, kept},
            s_.tokens * (s_.heads_tp + 1.0) * kept);
  const TensorId attended = activation("latent.attended", s_.heads_tp * kept);
  cached_attention(heads, attended, s_.heads_tp, kept, kept);
  const TensorId values = activation("values", s_.values_tp);
  latent_product("expand", OperatorKind::expand_values, attended, values, double(m_.v_head_dim()),
                 rank);
  return values;
}

/// @return what the output's product reads
TensorId SegmentList::attention(TensorId normed) {
  if (m_.keeps_latents()) return latent_attention(normed);
  // Ranks that share a sequence see all of it, each with a part of the heads or of the queries.
  const bool by_heads = sharing_ == Sharing::heads;
  const bool by_latents = sharing_ == Sharing::keys && m_.latent();
  std::optional<TensorId> queries;
  TensorId qkv = by_latents    ? gathered_latents(normed, queries)
                 : m_.latent() ? latent_qkv(normed)
                               : this->qkv(normed);
  const Expr turned = s_.attended_tp + s_.keys_tp;  // features of queries and keys
  if (m_.qk_norm) {
    const Expr heads = s_.tokens * (turned / s_.head_dim);
    const TensorId out = activation("qk.out", s_.qkv_tp);
    const std::vector<Expr> dims =
        m_.qk_norm_joint ? std::vector{s_.tokens, turned} : std::vector{heads, s_.head_dim};
    Operator& norm =
        streaming("qk norm", OperatorKind::rms_norm, qkv, out, dims, s_.tokens * turned);
    norm.modules = {Module::q_norm, Module::k_norm};
    norm.statistics = {statistic("qk.rstd", m_.qk_norm_joint ? 2.0 * s_.tokens : heads)};
    qkv = out;
  }
  if (m_.rotary() && !by_latents)
    streaming("rope", OperatorKind::rope, qkv, qkv, {s_.tokens, turned / s_.head_dim, s_.head_dim},
              s_.tokens * turned);
  Expr heads = s_.heads_tp;
  if (sharing_ == Sharing::keys && !by_latents) {
    queries = qkv;
    qkv = gathered_keys(qkv);
  }
  if (by_heads) {
    qkv = to_heads("qkv", qkv, s_.attended_tp + 2.0 * max(s_.keys_tp, s_.cp * s_.head_dim));
    heads = heads / s_.cp;
  }
  const TensorId attended = by_heads ? of_sequence("attended.heads", s_.attended_tp / s_.cp)
                                     : activation("attended", s_.attended_tp);
  // Queries of some tokens and all heads are as much work as those of all tokens and some heads.
  if (sharing_ == Sharing::keys) heads = ceil(heads / s_.cp);
  const Expr flops = 2.0 * s_.tokens * s_.seq * s_.attended_tp;  // half of the square: causal
  const std::vector<Module> sinks(m_.sinks() ? 1 : 0, Module::sinks);
  // Attention computes with values as wide as keys.
  const auto narrowed = [&] {
    if (m_.v_head_dim() == m_.head_dim()) return attended;
    const Expr rows = segment_.tensor(attended).rows;
    const Expr columns = by_heads ? s_.values_tp / s_.cp : s_.values_tp;
    const TensorId narrow =
        by_heads ? of_sequence("narrow.heads", columns) : activation("narrow", columns);
    streaming("narrow", OperatorKind::narrow_values, attended, narrow, {rows, columns},
              rows * columns);
    return narrow;
  };
  if (m_.generates()) {
    cached_attention(qkv, attended, heads, s_.head_dim, s_.keys_tp);
    return narrowed();
  }
  segment_.operators.push_back({.name = "attention",
                                .kind = OperatorKind::attention,
                                .read = qkv,
                                .written = attended,
                                .statistics = {statistic("lse", s_.tokens * s_.heads_tp)},
                                .second = queries,
                                .modules = sinks,
                                .dims = {s_.b, s_.seq, heads, s_.head_dim},
                                .forward_flops = flops,
                                .backward_flops = 2.5 * flops,
                                .forward_bytes = 16.0 * s_.tokens * s_.attended_tp,
                                .backward_bytes = 32.0 * s_.tokens * s_.attended_tp,
                                .share = visible_share(m_, segment_.kind)});
  return by_heads ? to_tokens("attended", narrowed()) : narrowed();
}

}  // namespace brume::model
