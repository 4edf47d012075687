/// @file The kernels of devices without a device: each notes its launches as `kernels/portable`,
/// cuBLASLt and cuDNN make them, with the bytes and FLOPs that follow from its operands' shapes.
#include "launches.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/error.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "kernels/affine.hpp"
#include "kernels/attention.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/experts.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"
#include "kernels/token_rows.hpp"
#include "kernels/update_rules.hpp"
#include "kernels/workspace.hpp"
#include "model/optimizers.hpp"

namespace brume::perf {

std::vector<Launch>& launches() {
  static std::vector<Launch> all;
  return all;
}

}  // namespace brume::perf

namespace brume::kernels {
namespace {

/// Bytes of an operand; a number is one itself.
double bytes_of(double bytes) { return bytes; }
template <class View>
double bytes_of(const View& view) {
  return double(view.size() * sizeof(view.data()[0]));
}

/// An operand that is read and written.
template <class View>
double updated(const View& view) {
  return 2.0 * bytes_of(view);
}
template <class View>
double written(Write write, const View& view) {
  return write == Write::accumulate ? updated(view) : bytes_of(view);
}

template <class... Operands>
void note(std::string kernel, double flops, const Operands&... operands) {
  perf::launches().push_back({std::move(kernel), (0.0 + ... + bytes_of(operands)), flops});
}

/// `sum_columns` of kernels/portable: sums of parts of the rows, then of these.
template <class... Operands>
void note_column_sums(const char* kernel, std::size_t rows, std::size_t width, double out,
                      const Operands&... operands) {
  const auto room = std::size_t(workspace_bytes) / std::max<std::size_t>(1, width * sizeof(float));
  const std::size_t parts = std::max<std::size_t>(1, std::min({rows / 64, room, std::size_t{64}}));
  if (parts == 1) return note(kernel, 0.0, operands..., out);
  const double partial = double(parts * width * sizeof(float));
  note(kernel, 0.0, operands..., partial);
  note(fmt::format("{} (parts)", kernel), 0.0, partial, out);
}

template <class X, class W, class Y>
void note_product(const char* kernel, const X& x, const W& w, const Y& y, Write write,
                  std::size_t inner) {
  note(fmt::format("{} {} x {} x {}", kernel, y.extent(0), y.extent(1), inner),
       2.0 * double(y.size()) * double(inner), x, w, written(write, y));
}

/// A product of 8 bits: of each factor the largest magnitude, its scale, and a rounded copy.
template <class A, class B, class Y, class... Beside>
void note_float8(const char* kernel, const A& a, const B& b, const Y& y, Write write,
                 std::size_t inner, const Beside&... beside) {
  const auto round = [](const auto& factor) {
    note("float8_largest", 0.0, factor);
    note("float8_scale", 0.0);
    note("round_to_float8", 0.0, factor, double(factor.size()));
  };
  round(a), round(b);
  note(fmt::format("{} {} x {} x {} in 8 bits", kernel, y.extent(0), y.extent(1), inner), 0.0,
       double(a.size()), double(b.size()), written(write, y), beside...);
  perf::launches().back().fp8_flops = 2.0 * double(y.size()) * double(inner);
}

/// One expert's part of the rows.
template <class View>
View share(const View& all, const Routes& routes) {
  return {all.data(), all.extent(0) / std::size_t(routes.num_held), all.extent(1), all.stride(0)};
}

/// FLOPs of one product of attention: of scores that are not hidden.
double product_flops(const AttentionShape& s) {
  double pairs = 0.0;  // documents, which lie in memory, are not looked at
  for (int query = 0; query < s.seq_len; ++query)
    pairs += std::min(query + 1, s.window > 0 ? s.window : s.seq_len);
  return 2.0 * s.batch * s.heads * s.head_dim * pairs;
}

}  // namespace

// --- products and attention: cuBLASLt, cuDNN ----------------------------------------------------

template <class Storage>
void linear_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Write write,
                    MatrixOf<Storage> y, Factors factors) {
  if (factors == Factors::fp8) return note_float8("linear_forward", x, w, y, write, x.extent(1));
  note_product("linear_forward", x, w, y, write, x.extent(1));
}
template <class Storage>
void linear_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w, Write write,
                           MatrixOf<Storage> dx, Factors factors) {
  if (factors == Factors::fp8)
    return note_float8("linear_backward_input", dy, w, dx, write, dy.extent(1));
  note_product("linear_backward_input", dy, w, dx, write, dy.extent(1));
}
template <class Storage>
void linear_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                            Matrix dw, Factors factors) {
  if (factors == Factors::fp8)
    return note_float8("linear_backward_weight", dy, x, dw, write, dy.extent(0));
  note_product("linear_backward_weight", dy, x, dw, write, dy.extent(0));
}

template <class Storage>
void affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y, Factors factors) {
  if (factors == Factors::fp8)
    return note_float8("affine_forward", x, w, y, Write::replace, x.extent(1), bias, residual);
  note(fmt::format("affine_forward {} x {} x {}", y.extent(0), y.extent(1), x.extent(1)),
       2.0 * double(y.size()) * double(x.extent(1)), x, w, bias, residual, y);
}
/// An epilogue writes the bias's gradient; what accumulates it is another launch. In 8 bits there
/// is none for it, and perhaps none for gelu.
template <class Storage>
void affine_backward_parameters(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x, Write write,
                                Matrix dw, Vector db, Factors factors) {
  if (factors == Factors::fp8)
    return affine_backward_parameters_in_passes<Storage>(dy, x, write, dw, db, factors);
  linear_backward_weight<Storage>(dy, x, write, dw, factors);
  perf::launches().back().bytes += bytes_of(db);
  if (db.size() > 0 && write == Write::accumulate) add(db, db);
}
template <class Storage>
void gelu_affine_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                         ConstVectorOf<Storage> bias, MatrixOf<Storage> u, MatrixOf<Storage> a,
                         Factors factors) {
  if (factors == Factors::fp8)
    return gelu_affine_forward_in_passes<Storage>(x, w, bias, u, a, factors);
  note(fmt::format("gelu_affine_forward {} x {} x {}", u.extent(0), u.extent(1), x.extent(1)),
       2.0 * double(u.size()) * double(x.extent(1)), x, w, bias, u, a);
}
template <class Storage>
void gelu_affine_backward(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                          ConstMatrixOf<Storage> u, MatrixOf<Storage> du, Factors factors) {
  if (factors == Factors::fp8)
    return gelu_affine_backward_in_passes<Storage>(dy, w, u, du, factors);
  note(fmt::format("gelu_affine_backward {} x {} x {}", du.extent(0), du.extent(1), dy.extent(1)),
       2.0 * double(du.size()) * double(dy.extent(1)), dy, w, u, du);
}
bool products_have_epilogues() { return true; }

template <class Storage>
void attention_forward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv, MatrixOf<Storage> o,
                       Vector lse, ConstVectorOf<Storage> sinks, ConstMatrixOf<Storage>) {
  note("attention_forward", 2.0 * product_flops(shape), qkv, o, lse);
  if (sinks.size() > 0) note("attention_forward_sinks", 0.0, updated(o), updated(lse));
}
template <class Storage>
void attention_backward_sinks(const AttentionShape&, ConstVectorOf<Storage>,
                              ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                              Write, Vector) {
  note("attention_backward_sinks", 0.0, o, d_o, lse);
}
/// A sum over each row of o d_o, the passes over tiles, and gradients of queries from fp32 sums.
template <class Storage>
void attention_backward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                        ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                        MatrixOf<Storage> dqkv, ConstMatrixOf<Storage>, MatrixOf<Storage>) {
  const double query_sums = double(o.size() * sizeof(float));
  note("attention_backward (o d_o)", 0.0, o, d_o, lse);
  note("attention_backward", 5.0 * product_flops(shape), qkv, d_o, lse, lse, dqkv, query_sums);
  note("attention_backward (queries)", 0.0, query_sums, o);
}

/// The rows of experts that all have as many.
std::vector<std::int32_t> read_begins(const Routes& routes) {
  note("copy", 0.0, 2.0 * double(routes.num_experts + 1) * sizeof(*routes.begins));
  const std::ptrdiff_t copies = routes.rows - routes.experts;
  std::vector<std::int32_t> begins;
  for (int i = 0; i <= routes.num_experts; ++i)
    begins.push_back(std::int32_t(copies * i / routes.num_experts));
  return begins;
}

/// A product for each expert, all of them with as many rows.
template <class Storage>
void experts_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, const Routes& routes,
                     Write write, MatrixOf<Storage> y, Factors factors) {
  for (int i = 0; i < routes.num_held; ++i)
    linear_forward<Storage>(share(x, routes), share(w, routes), write, share(y, routes), factors);
}
template <class Storage>
void experts_backward_input(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> w,
                            const Routes& routes, Write write, MatrixOf<Storage> dx,
                            Factors factors) {
  for (int i = 0; i < routes.num_held; ++i)
    linear_backward_input<Storage>(share(dy, routes), share(w, routes), write, share(dx, routes),
                                   factors);
}
template <class Storage>
void experts_backward_weight(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> x,
                             const Routes& routes, Write write, Matrix dw, Factors factors) {
  for (int i = 0; i < routes.num_held; ++i)
    linear_backward_weight<Storage>(share(dy, routes), share(x, routes), write, share(dw, routes),
                                    factors);
}

// --- kernels/portable ---------------------------------------------------------------------------

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
void choose_experts_backward(ConstMatrix logits, const Router&, const Routes&, ConstVector d_gates,
                             const RouterLoss& loss, Matrix d_logits) {
  const double copies = double(d_gates.size() * sizeof(std::int32_t));
  if (loss.balance != 0.0f && loss.seq_len > 0) {
    note("count_keys", 0.0, copies);
    note("choose_experts_loads", 0.0);
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

#include "kernels/instances/attention_sinks.hpp"
#include "kernels/instances/cross_entropy.hpp"
#include "kernels/instances/embedding.hpp"
#include "kernels/instances/experts.hpp"
#include "kernels/instances/experts_products.hpp"
#include "kernels/instances/gelu.hpp"
#include "kernels/instances/layer_norm.hpp"
#include "kernels/instances/matmul.hpp"
#include "kernels/instances/pointwise.hpp"
#include "kernels/instances/rms_norm.hpp"
#include "kernels/instances/rope.hpp"
#include "kernels/instances/swiglu.hpp"

namespace brume::kernels {
#define BRUME_ATTENTION(Storage)                                                              \
  template void attention_forward<Storage>(const AttentionShape&, ConstMatrixOf<Storage>,     \
                                           MatrixOf<Storage>, Vector, ConstVectorOf<Storage>, \
                                           ConstMatrixOf<Storage>);                           \
  template void attention_backward<Storage>(                                                  \
      const AttentionShape&, ConstMatrixOf<Storage>, ConstMatrixOf<Storage>, ConstVector,     \
      ConstMatrixOf<Storage>, MatrixOf<Storage>, ConstMatrixOf<Storage>, MatrixOf<Storage>)
BRUME_ATTENTION(float);
BRUME_ATTENTION(bfloat16);
BRUME_ATTENTION(float16);
#undef BRUME_ATTENTION
}  // namespace brume::kernels

namespace brume::device {
namespace {

constexpr std::size_t page_bytes = 4096;

}  // namespace

void use_device(int, int) {}
Description describe_device() { return {}; }
std::unique_ptr<Stream> make_stream() { return nullptr; }
void copy(void*, const void*, std::int64_t bytes) {
  kernels::note("copy", 0.0, 2.0 * double(bytes));
}
void fill(void*, std::byte, std::int64_t bytes) { kernels::note("fill", 0.0, double(bytes)); }
void finish() {}
void copy_now(void*, const void*, std::int64_t) {}
bool is_profiled() { return false; }
void Range::begin(const std::string&) {}
void Range::end() {}

// Addresses alone, whatever their number.
Memory::Memory(std::int64_t bytes, Tier tier) : data_(nullptr, Free{tier}), bytes_(bytes) {
  if (bytes == 0) return;
  // What frees it does not know the length, which therefore lies in front: in the one page that is
  // there.
  void* const block = ::mmap(nullptr, std::size_t(bytes) + page_bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(block != MAP_FAILED && ::mprotect(block, page_bytes, PROT_READ | PROT_WRITE) == 0,
          Failure::resource, "no addresses for {} bytes", bytes);
  *static_cast<std::size_t*>(block) = std::size_t(bytes) + page_bytes;
  data_.reset(static_cast<std::byte*>(block) + page_bytes);
}
void Memory::Free::operator()(std::byte* block) const {
  void* const begin = block - page_bytes;
  ::munmap(begin, *static_cast<std::size_t*>(begin));
}

}  // namespace brume::device
