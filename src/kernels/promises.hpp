/// @file What kernels promise of their arguments, the same for hosts and devices: sizes that fit.
/// What lies in memory is not looked at.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/cached_attention.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/experts.hpp"
#include "kernels/heads.hpp"
#include "kernels/latent.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

/// Breaks with the kernel's name when a promise on its arguments does not hold.
void promise(bool holds, const char* kernel, const char* what);

template <class A, class B>
bool same_extents(const A& a, const B& b) {
  return a.extent(0) == b.extent(0) && a.extent(1) == b.extent(1);
}

template <class Matrix, class Vector>
bool is_row_of(const Vector& row, const Matrix& matrix) {
  return row.extent(0) == matrix.extent(1);
}

template <class Matrix, class Vector>
bool is_column_of(const Vector& column, const Matrix& matrix) {
  return column.extent(0) == matrix.extent(0);
}

template <class X, class W, class Y>
void promise_product(const char* kernel, const X& x, const W& w, const Y& y) {
  promise(x.extent(1) == w.extent(1) && y.extent(0) == x.extent(0) && y.extent(1) == w.extent(0),
          kernel, "[N, I], [O, I] and [N, O] must fit");
}

template <class U, class Bias, class A>
void promise_activation(const char* kernel, const U& u, const Bias& bias, const A& a) {
  promise(same_extents(u, a) && (bias.data() == nullptr || is_row_of(bias, u)), kernel,
          "[N, F] and the bias [F], or none, must fit");
}

template <class U, class A>
void promise_swiglu(const char* kernel, const U& u, const A& a) {
  promise(u.extent(0) == a.extent(0) && u.extent(1) == 2 * a.extent(1), kernel,
          "u [N, 2 F] and a [N, F] must fit");
}

template <class A>
void promise_gates(const char* kernel, const A& a, const ConstVector& gates) {
  promise(gates.data() == nullptr || is_column_of(gates, a), kernel, "gates must be empty or [N]");
}

template <class Logits>
void promise_sigmoid(const char* kernel, const Logits& logits, const ConstVector& gates) {
  promise(logits.extent(1) == 1 && is_column_of(gates, logits), kernel,
          "logits [N, 1] and gates [N] must fit");
}

template <class X, class W, class Dx>
void promise_router(const char* kernel, const ConstMatrix& logits, const X& x, const W& w,
                    const Matrix& dw, const Dx& dx) {
  promise_product(kernel, x, w, logits);
  promise((dw.data() == nullptr || same_extents(dw, w)) && same_extents(dx, x), kernel,
          "dw must be empty or [E, C], dx [N, C]");
}

template <class Copies>
void promise_held(const char* kernel, const Copies& copies, const Routes& routes) {
  promise(routes.host_begins != nullptr &&
              copies.extent(0) == std::size_t(routes.host_begins[routes.num_held]),
          kernel, "there must be a row for each copy of the experts that the rank holds");
}

inline void promise_choice(const char* kernel, const ConstMatrix& logits, const Router& router,
                           const Routes& routes) {
  promise(logits.extent_int(1) == routes.num_experts && routes.chosen > 0 &&
              routes.chosen <= routes.num_experts && routes.first_held >= 0 &&
              routes.num_held >= 0 && routes.first_held + routes.num_held <= routes.num_experts,
          kernel,
          "logits [N, E] and routes of E experts, of which the rank holds some, must fit, with 0 < "
          "k <= E");
  promise(router.groups > 0 && router.groups <= most_expert_groups &&
              routes.num_experts % router.groups == 0 && router.chosen_groups > 0 &&
              router.chosen_groups <= router.groups &&
              routes.chosen <= router.chosen_groups * (routes.num_experts / router.groups),
          kernel, "groups must divide the experts, and the chosen ones have k experts or more");
}

inline void promise_routes(const char* kernel, const ConstMatrix& logits, const Router& router,
                           const ConstVector& gates, const Routes& routes) {
  promise_choice(kernel, logits, router, routes);
  promise(gates.size() == logits.extent(0) * std::size_t(routes.chosen), kernel,
          "gates must be [N k]");
}

inline void promise_routes_backward(const char* kernel, const ConstMatrix& logits,
                                    const Router& router, const ConstVector& d_gates,
                                    const Routes& routes, const RouterLoss& loss,
                                    const Matrix& d_logits) {
  promise_choice(kernel, logits, router, routes);
  if (routes.rows != nullptr)
    promise_held(kernel, d_gates, routes);
  else
    promise(d_gates.size() == logits.extent(0) * std::size_t(routes.chosen), kernel,
            "gradients of gates must be [N k]");
  promise(same_extents(d_logits, logits) &&
              (loss.seq_len == 0 || (logits.extent(0) + std::size_t(loss.before + loss.after)) %
                                            std::size_t(loss.seq_len) ==
                                        0),
          kernel, "d_logits must be [N, E], of whole sequences");
  promise(loss.counts == nullptr || (loss.seq_len == 0 && loss.parts > 0), kernel,
          "counts of parts must be those of one sequence");
}

inline void promise_counts(const char* kernel, const Routes& routes, std::int64_t tokens,
                           const Vector& counts) {
  promise(
      routes.experts != nullptr && tokens >= 0 && std::int64_t(counts.size()) == routes.num_experts,
      kernel, "counts must be [E]");
}

inline void promise_choices(const char* kernel, const ConstVector& choices, const Routes& routes,
                            int ranks) {
  promise(ranks > 0 && routes.num_held * ranks == routes.num_experts && routes.chosen > 0 &&
              choices.size() % std::size_t(2 * ranks * routes.chosen) == 0,
          kernel, "choices [S, 2, M k] and routes of S ranks, which divide the experts, must fit");
}

template <class Tokens, class Copies>
void promise_copies(const char* kernel, const Tokens& tokens, const Copies& copies,
                    const Routes& routes) {
  promise_held(kernel, copies, routes);
  promise(copies.extent(1) == tokens.extent(1), kernel,
          "tokens [N, C] and their copies [R, C] must fit");
}

template <class X, class W, class Y>
void promise_experts(const char* kernel, const X& x, const W& w, const Y& y, const Routes& routes) {
  promise_held(kernel, x, routes);
  promise(x.extent(1) == w.extent(1) && y.extent(0) == x.extent(0) &&
              w.extent(0) == y.extent(1) * std::size_t(routes.num_held),
          kernel, "[R, I], [H O, I] and [R, O] must fit");
}

template <class Bias, class Y>
void promise_experts_bias(const char* kernel, const Bias& bias, const Y& y, const Routes& routes,
                          const ConstVector& gates) {
  promise_held(kernel, y, routes);
  promise(bias.extent(0) == std::size_t(routes.num_held) && bias.extent(1) == y.extent(1) &&
              (gates.data() == nullptr || is_column_of(gates, y)),
          kernel, "biases [H, O], gates [R], or none, and [R, O] must fit");
}

template <class X, class Gain, class Y, class Rstd>
void promise_norm(const char* kernel, const X& x, const Gain& gain, const Y& y, const Rstd& rstd) {
  promise(same_extents(x, y) && is_row_of(gain, x) && is_column_of(rstd, x), kernel,
          "[N, C], gain [C] and rstd [N] must fit");
}

template <class X, class Gain, class Y, class Rstd>
void promise_rms_norm(const char* kernel, const X& x, const Gain& gain, const Y& y,
                      const Rstd& rstd) {
  const std::size_t width = gain.extent(0);
  promise(same_extents(x, y) && width > 0 && x.extent(1) % width == 0 &&
              rstd.extent(0) == x.extent(0) * (x.extent(1) / width),
          kernel, "[N, G C], gain [C] and rstd [N G] must fit");
}

/// A parameter's gradient, which nobody may want.
template <class Gradient, class Gain>
void promise_gradient(const char* kernel, const Gradient& gradient, const Gain& gain) {
  promise(gradient.data() == nullptr || gradient.extent(0) == gain.extent(0), kernel,
          "gradients must be empty or [C]");
}

template <class X, class Residual>
void promise_residual(const char* kernel, const X& x, const Residual& residual) {
  promise(residual.data() == nullptr || same_extents(residual, x), kernel,
          "residual must be empty or [N, C]");
}

template <class Table, class X>
void promise_rope(const char* kernel, const Table& table, int head_dim, const X& x) {
  const int turned = table.extent_int(1);
  promise(table.extent(0) > 0 && turned > 0 && turned % 2 == 0 && turned <= head_dim &&
              x.extent_int(1) % head_dim == 0,
          kernel, "the table must be [T, R] with an even R up to D, x [N, H D]");
}

template <class X, class Parts>
void promise_heads(const char* kernel, const X& x, const HeadBlocks& blocks, const Parts& parts) {
  bool fits = blocks.parts > 0;
  for (const HeadBlocks::Block& block : blocks.blocks)
    fits = fits && block.ranges > 0 && block.columns % block.ranges == 0 &&
           blocks.parts % block.ranges == 0;
  promise(fits && x.extent_int(1) == blocks.columns() &&
              parts.size() == x.extent(0) * std::size_t(blocks.parts * blocks.width()),
          kernel, "x must be [N, C], y P N W elements, and ranges must divide blocks and P parts");
}

template <class X, class Y>
void promise_latent(const char* kernel, const X& x, int x_columns, const Y& y, int y_columns) {
  promise(
      x.extent(0) == y.extent(0) && x.extent_int(1) == x_columns && y.extent_int(1) == y_columns,
      kernel, "both must have as many rows, and the columns of the shape");
}

/// Queries and the turned key are among the columns, unless the turned key is apart.
template <class Parts, class Qkv, class Turned>
void promise_expansion(const char* kernel, const Parts& parts, const LatentShape& shape,
                       const Qkv& qkv, const Turned& turned) {
  const bool apart = turned.data() != nullptr;
  promise(!apart || (turned.extent(0) == qkv.extent(0) && turned.extent_int(1) == shape.turned),
          kernel, "the turned key must be empty or [N, R]");
  promise_latent(kernel, parts, apart ? shape.heads * shape.pair() : shape.parts(), qkv,
                 apart ? 2 * shape.queries() : shape.columns());
}

template <class Tokens, class X, class Table, class Positions>
void promise_embedding(const char* kernel, const Tokens& tokens, const X& x, const Table& table,
                       const Positions& positions) {
  promise(is_column_of(tokens, x) && (table.data() == nullptr || x.extent(1) == table.extent(1)) &&
              (positions.data() == nullptr ||
               (x.extent(1) == positions.extent(1) && positions.extent(0) > 0)),
          kernel, "tokens [N], tables [R, C] and [T, C], [N, C] must fit");
}

template <class Logits>
void promise_part(const char* kernel, const Logits& logits, const ConstTokens& targets,
                  const Matrix& statistics) {
  promise(is_column_of(targets, logits) && statistics.extent(0) == logits.extent(0) &&
              statistics.extent(1) == num_statistics,
          kernel, "logits [N, R], targets [N] and statistics [N, 3] must fit");
}

template <class Logits>
void promise_combine(const char* kernel, const Logits& logits, const ConstTokens& targets,
                     const ConstMatrix& statistics, int index) {
  promise(is_column_of(targets, logits) &&
              statistics.extent(1) == num_statistics * logits.extent(0) &&
              std::size_t(index) < statistics.extent(0),
          kernel, "logits [N, R], targets [N] and statistics [P, 3 N] must fit");
}

template <class Qkv, class O>
void promise_attention(const char* kernel, const AttentionShape& shape, const Qkv& qkv, const O& o,
                       const ConstVector& lse, const Qkv& keys = {}) {
  const std::size_t tokens = std::size_t(shape.batch) * shape.queries();
  const std::size_t width = std::size_t(shape.heads) * shape.head_dim;
  const bool alone = keys.data() != nullptr && qkv.extent(1) == width;  // queries
  promise(qkv.extent(0) == tokens && (alone || qkv.extent(1) == std::size_t(shape.width())) &&
              o.extent(0) == tokens && o.extent(1) == width &&
              lse.extent(0) == tokens * shape.heads,
          kernel, "qkv [N, (H + 2 K) D], o [N, H D] and lse [batch H T] must fit the shape");
  promise(shape.zigzag.cuts() == (keys.data() != nullptr), kernel,
          "queries of some tokens need the keys of all");
  promise(!shape.zigzag.cuts() ||
              (shape.batch == 1 && shape.seq_len == 2 * shape.zigzag.ranks * shape.zigzag.chunk &&
               keys.extent(0) == std::size_t(shape.seq_len) &&
               keys.extent(1) == std::size_t(2 * shape.keys() * shape.head_dim)),
          kernel, "keys [T, 2 K D] of one sequence in chunks must fit the shape");
  promise(shape.key_head(shape.heads - 1) < shape.keys(), kernel,
          "each group of query heads needs a key head");
}

template <class Sinks>
void promise_sinks(const char* kernel, const AttentionShape& shape, const Sinks& sinks) {
  promise(sinks.data() == nullptr || sinks.extent(0) == std::size_t(shape.heads), kernel,
          "sinks must be empty or [H]");
}

template <class Sinks, class O, class DO>
void promise_attention_sinks(const char* kernel, const AttentionShape& shape, const Sinks& sinks,
                             const O& o, const ConstVector& lse, const DO& d_o,
                             const ConstVector& d_sinks) {
  const std::size_t tokens = std::size_t(shape.batch) * shape.queries(), heads = shape.heads;
  promise(sinks.extent(0) == heads && d_sinks.extent(0) == heads && o.extent(0) == tokens &&
              o.extent(1) == heads * shape.head_dim && same_extents(d_o, o) &&
              lse.extent(0) == tokens * heads,
          kernel, "sinks and dsinks [H], o and do [N, H D] and lse [batch H T] must fit the shape");
}

template <class Qkv, class O, class Cache>
void promise_cached_attention(const char* kernel, const AttentionShape& shape, const Qkv& qkv,
                              const Cache& cache, const O& o) {
  promise(qkv.extent(1) == std::size_t(shape.width()) && o.extent(0) == qkv.extent(0) &&
              o.extent(1) == std::size_t(shape.heads) * shape.head_dim,
          kernel, "qkv [N, (H + 2 K) D] and o [N, H D] must fit the shape");
  promise(shape.key_head(shape.heads - 1) < shape.keys(), kernel,
          "each group of query heads needs a key head");
  promise(cache.data != nullptr && cache.sequences != nullptr && cache.tables != nullptr &&
              cache.block_tokens > 0 && cache.blocks_per_sequence > 0,
          kernel, "there must be a cache with blocks");
}

}  // namespace brume::kernels
