/// @file Launches as `kernels/portable` makes them, noted instead of done.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/experts.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"
#include "kernels/token_rows.hpp"
#include "kernels/update_rules.hpp"
#include "launch_notes.hpp"
#include "model/optimizers.hpp"

namespace brume::kernels {

template <class Storage>
void add_bias(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> bias, MatrixOf<Storage> y) {
  note("add_bias", 0.0, x, bias, y);
}
template <class Storage>
void add_residual(ConstMatrixOf<Storage> x, MatrixOf<Storage> y) {
  note("add_residual", 0.0, x, y, y);
}
template <class Storage>
void bias_backward(ConstMatrixOf<Storage> dy, Write write, Vector db) {
  note_column_sums("bias_backward", dy.extent(0), dy.extent(1), written(write, db), dy);
}
template <class Storage>
void gelu_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a) {
  note("gelu_forward", 0.0, u, bias, a);
}
template <class Storage>
void gelu_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, ConstMatrixOf<Storage> da,
                   MatrixOf<Storage> du) {
  note("gelu_backward", 0.0, u, bias, da, du);
}
template <class Storage>
void gelu_erf_forward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias, MatrixOf<Storage> a) {
  note("gelu_erf_forward", 0.0, u, bias, a);
}
template <class Storage>
void gelu_erf_backward(ConstMatrixOf<Storage> u, ConstVectorOf<Storage> bias,
                       ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  note("gelu_erf_backward", 0.0, u, bias, da, du);
}
template <class Storage>
void swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  note("swiglu_forward", 0.0, u, a, gates);
}
template <class Storage>
void swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du,
                     ConstVector gates, Vector d_gates, Write) {
  note("swiglu_backward", 0.0, u, da, du, gates, d_gates);
}
template <class Storage>
void clamped_swiglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a, ConstVector gates) {
  note("clamped_swiglu_forward", 0.0, u, a, gates);
}
template <class Storage>
void clamped_swiglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da,
                             MatrixOf<Storage> du, ConstVector gates, Vector d_gates, Write write) {
  note("clamped_swiglu_backward", 0.0, u, da, du, gates, written(write, d_gates));
}
template <class Storage>
void geglu_forward(ConstMatrixOf<Storage> u, MatrixOf<Storage> a) {
  note("geglu_forward", 0.0, u, a);
}
template <class Storage>
void geglu_backward(ConstMatrixOf<Storage> u, ConstMatrixOf<Storage> da, MatrixOf<Storage> du) {
  note("geglu_backward", 0.0, u, da, du);
}

void add(ConstVector x, Vector y) { note("add", 0.0, x, updated(y)); }
template <class Storage>
void copy(ConstVectorOf<Storage> x, VectorOf<Storage> y) {
  note("copy", 0.0, x, y);
}
template <class Storage>
void scale(float, MatrixOf<Storage> y) {
  note("scale", 0.0, updated(y));
}
void fill(float, Vector y) { note("fill", 0.0, y); }
void sum_squares(ConstVector x, Write, double*) {
  note("sum_squares", 0.0, x);
  note("sum_squares (parts)", 0.0);
}

template <class Storage>
void layer_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                        ConstVectorOf<Storage> bias, float, MatrixOf<Storage> y, Vector mean,
                        Vector rstd) {
  note("layer_norm_forward", 0.0, x, gain, bias, y, mean, rstd);
}
template <class Storage>
void layer_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain,
                      ConstVectorOf<Storage> bias, ConstVector mean, ConstVector rstd,
                      MatrixOf<Storage> y) {
  note("layer_norm_apply", 0.0, x, gain, bias, mean, rstd, y);
}
template <class Storage>
void layer_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                         ConstVectorOf<Storage> gain, ConstVector mean, ConstVector rstd,
                         ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                         Vector dgain, Vector dbias) {
  note_column_sums("layer_norm_backward_sums", x.extent(0), 2 * x.extent(1),
                   written(write, dgain) + written(write, dbias), dy, x, mean, rstd);
  note("layer_norm_backward", 0.0, dy, x, gain, mean, rstd, residual, dx);
}
template <class Storage>
void rms_norm_forward(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, float,
                      MatrixOf<Storage> y, Vector rstd, float, ConstMatrixOf<Storage> residual) {
  note("rms_norm_forward", 0.0, x, gain, y, rstd, residual);
}
template <class Storage>
void rms_norm_apply(ConstMatrixOf<Storage> x, ConstVectorOf<Storage> gain, ConstVector rstd,
                    MatrixOf<Storage> y, float) {
  note("rms_norm_apply", 0.0, x, gain, rstd, y);
}
template <class Storage>
void rms_norm_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                       ConstVectorOf<Storage> gain, ConstVector rstd,
                       ConstMatrixOf<Storage> residual, MatrixOf<Storage> dx, Write write,
                       Vector dgain, float) {
  note_column_sums("rms_norm_backward_sums", rstd.size(), gain.size(), written(write, dgain), dy, x,
                   rstd);
  note("rms_norm_backward", 0.0, dy, x, gain, rstd, residual, dx);
}

template <class Storage>
void rope_forward(ConstMatrix table, int, MatrixOf<Storage> x, Documents) {
  note("rope_forward", 0.0, table, updated(x));
}
template <class Storage>
void rope_backward(ConstMatrix table, int, MatrixOf<Storage> dx, Documents) {
  note("rope_backward", 0.0, table, updated(dx));
}

/// Rows of the table that tokens name: each once.
template <class Storage>
void embedding_forward(ConstTokens tokens, ConstMatrixOf<Storage>, ConstMatrixOf<Storage> positions,
                       MatrixOf<Storage> x, VocabularyPart, float, Documents) {
  note("embedding_forward", 0.0, tokens, x, positions, x);
}
/// Places are sorted by a network.
template <class Storage>
void embedding_backward(ConstTokens tokens, ConstMatrixOf<Storage> dx, Matrix d_token_table,
                        Matrix d_position_table, VocabularyPart, float, Documents) {
  const std::size_t room = std::bit_ceil(tokens.size());
  const double places = double(room * sizeof(std::uint64_t));
  note("embedding_places", 0.0, tokens, places);
  for (std::size_t sorted = 2; sorted <= room; sorted *= 2)
    for (std::size_t distance = sorted / 2; distance > 0; distance /= 2)
      note("embedding_sort", 0.0, 2.0 * places);
  const double rows = std::min(bytes_of(d_token_table), double(dx.size() * sizeof(float)));
  note("embedding_backward", 0.0, places, dx, 2.0 * rows);
  if (d_position_table.size() > 0)
    note("embedding_backward_positions", 0.0, dx, updated(d_position_table));
}

/// Of 16 bits, a kernel of our own reads what cuBLASLt would.
template <class Storage>
void router_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Matrix logits,
                    ConstVectorOf<Storage> bias) {
  note_product("router_forward", x, w, logits, Write::replace, x.extent(1));
  if (bias.size() > 0) note("router_bias", 0.0, updated(logits), bias);
}
template <class Storage>
void router_backward(ConstMatrix d_logits, ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                     Write write, Matrix dw, MatrixOf<Storage> dx) {
  if (dw.size() > 0)
    note_product("router_backward_weight", d_logits, x, dw, write, d_logits.extent(0));
  note_product("router_backward_input", d_logits, w, dx, Write::replace, w.extent(0));
}
template <class Storage>
void sigmoid_forward(ConstMatrixOf<Storage> logits, Vector gates) {
  note("sigmoid_forward", 0.0, logits, gates);
}
template <class Storage>
void sigmoid_backward(ConstMatrixOf<Storage> logits, ConstVector d_gates,
                      MatrixOf<Storage> d_logits) {
  note("sigmoid_backward", 0.0, logits, d_gates, d_logits);
}
void note_order(double copies) {
  note("count_keys", 0.0, copies);
  note("order_totals", 0.0);
  note("order_begins", 0.0);
  note("order_rows", 0.0, 2.0 * copies);
}
void choose_experts(ConstMatrix logits, const Router&, Vector gates, Routes) {
  const double copies = double(gates.size() * sizeof(std::int32_t));
  note("choose_experts", 0.0, logits, copies);
  note_order(copies);
  note("choose_experts_gates", 0.0, logits, 2.0 * copies, gates);
}
void count_copies(const Routes& routes, std::int64_t, std::int64_t tokens, Vector counts) {
  note("count_keys", 0.0, double(tokens) * routes.chosen * sizeof(std::int32_t));
  note("expert_loads", 0.0);
  note("count_copies", 0.0, counts);
}
void choose_experts_backward(ConstMatrix logits, const Router&, const Routes&, ConstVector d_gates,
                             const RouterLoss& loss, Matrix d_logits) {
  const double copies = double(d_gates.size() * sizeof(std::int32_t));
  if (loss.balances()) {
    if (loss.counts == nullptr) note("count_keys", 0.0, copies);
    note("expert_loads", 0.0);
  }
  note("choose_experts_backward", 0.0, logits, 2.0 * copies, d_gates, d_logits);
}
void read_choices(ConstVector choices, const Routes&, Vector gates, const TokenRows&) {
  const double copies = double(gates.size() * sizeof(std::int32_t));
  note("read_choices", 0.0, choices, copies, gates);
  note_order(copies);
  note_order(copies);
}
void order_copies(ConstVector of_tokens, const Routes&, Vector gates) {
  note_order(double(gates.size() * sizeof(std::int32_t)));
  note("order_copies", 0.0, of_tokens, double(gates.size() * sizeof(std::int32_t)), gates);
}
void order_copies_backward(ConstVector d_gates, const Routes&, std::int64_t, std::int64_t,
                           std::int64_t, Vector d_choices) {
  note("order_copies_backward", 0.0, d_gates, d_choices);
}
template <class Storage>
void dispatch(ConstMatrixOf<Storage> x, const Routes&, MatrixOf<Storage> y) {
  note("dispatch", 0.0, x, y);
}
template <class Storage>
void combine(ConstMatrixOf<Storage> x, const Routes&, ConstMatrixOf<Storage> residual,
             MatrixOf<Storage> y) {
  note("combine", 0.0, x, residual, y);
}

template <class Storage>
void add_experts_bias(ConstMatrixOf<Storage> b, const Routes&, ConstVector gates,
                      MatrixOf<Storage> y) {
  note("add_experts_bias", 0.0, b, gates, updated(y));
}
template <class Storage>
void experts_bias_backward(ConstMatrixOf<Storage> dy, const Routes&, ConstVector gates, Write write,
                           Matrix db) {
  note("experts_bias_backward", 0.0, dy, gates, written(write, db));
}
template <class Storage>
void experts_bias_backward_gates(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> b, const Routes&,
                                 Vector d_gates) {
  note("experts_bias_backward_gates", 0.0, dy, b, d_gates);
}

template <class Storage>
void cross_entropy(MatrixOf<Storage> logits, ConstTokens targets, float, bool with_gradient, Write,
                   double*, float, double* misses) {
  note("cross_entropy", 0.0, with_gradient ? updated(logits) : bytes_of(logits), targets);
  note("cross_entropy (sum)", 0.0);
  if (misses) note("cross_entropy (sum)", 0.0);
}
template <class Storage>
void cross_entropy_part(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart,
                        Matrix statistics, float) {
  note("cross_entropy_part", 0.0, logits, targets, statistics);
}
template <class Storage>
void cross_entropy_combine(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart,
                           ConstMatrix statistics, int, float, Write, double*, float,
                           double* misses) {
  note("cross_entropy_combine", 0.0, updated(logits), targets, statistics);
  note("cross_entropy_combine (sum)", 0.0);
  if (misses) note("cross_entropy_combine (sum)", 0.0);
}

UpdateKernel update_kernel(std::string_view, Moments) {
  return [](const Update&, const double*, const UpdatedElements& elements) {
    const double rounded_bytes = elements.rounded.index() > 0 ? sizeof(bfloat16) : 0.0;
    note("clip", 0.0);
    note(model::adamw.name, 0.0,
         (model::adamw.moved_bytes() + rounded_bytes) * double(elements.count));
  };
}

}  // namespace brume::kernels

#include "kernels/instances/cross_entropy.hpp"
#include "kernels/instances/embedding.hpp"
#include "kernels/instances/experts.hpp"
#include "kernels/instances/gelu.hpp"
#include "kernels/instances/layer_norm.hpp"
#include "kernels/instances/pointwise.hpp"
#include "kernels/instances/rms_norm.hpp"
#include "kernels/instances/rope.hpp"
#include "kernels/instances/swiglu.hpp"
