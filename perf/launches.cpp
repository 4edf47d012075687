/// @file The kernels of devices without a device: each notes its launches as `kernels/portable`,
/// cuBLASLt and cuDNN make them, with the bytes and FLOPs that follow from its operands' shapes.
///
/// This file has the products and attention, which are cuBLASLt's and cuDNN's.
#include "launches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/affine.hpp"
#include "kernels/attention.hpp"
#include "kernels/experts.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"
#include "launch_notes.hpp"

namespace brume::perf {

std::vector<Launch>& launches() {
  static std::vector<Launch> all;
  return all;
}

}  // namespace brume::perf

namespace brume::kernels {
namespace {

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

}  // namespace brume::kernels

#include "kernels/instances/attention_sinks.hpp"
#include "kernels/instances/experts_products.hpp"
#include "kernels/instances/matmul.hpp"

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
