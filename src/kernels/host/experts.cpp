#include "kernels/experts.hpp"

#include <algorithm>
#include <vector>

#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/host/ordering.hpp"
#include "kernels/routing.hpp"

namespace brume::kernels {
namespace {

template <class Storage>
FactorOf<Storage> factor(const MatrixView<const Storage>& matrix,
                         Transpose transpose = Transpose::no) {
  return {matrix.data(), std::int64_t(matrix.stride(0)), transpose};
}

/// C = op(A) op(B)  (+ C when accumulating)
template <class StorageA, class StorageB, class Result>
void product(const FactorOf<StorageA>& a, const FactorOf<StorageB>& b, std::size_t inner,
             Write write, const MatrixView<Result>& c) {
  gemm(c.extent(0), c.extent(1), std::int64_t(inner), a, b, write, c.data(), c.stride(0));
}

/// [sequences, E] the copies that each sequence has of each expert.
std::vector<std::int32_t> loads_of(const Routes& routes, std::int64_t tokens,
                                   const RouterLoss& loss) {
  const std::int64_t num_experts = routes.num_experts;
  std::vector<std::int32_t> loads;
  const auto zeros = [&](std::int64_t sequences) {
    with_memory("choose_experts_loads",
                [&] { loads.resize(std::size_t(sequences * num_experts)); });
  };
  if (loss.counts != nullptr) {
    zeros(1);
    for (std::int64_t i = 0; i < loss.parts * num_experts; ++i)
      loads[std::size_t(i % num_experts)] += std::int32_t(loss.counts[i]);
    return loads;
  }
  const std::int64_t sequences = (loss.before + tokens + loss.after) / loss.seq_len,
                     copies = std::int64_t(loss.seq_len) * routes.chosen;
  const std::int32_t* const experts = routes.experts - std::int64_t(loss.before) * routes.chosen;
  zeros(sequences);
  for_each("choose_experts_loads", sequences, [&](std::int64_t sequence) {
    for (std::int64_t i = sequence * copies; i < (sequence + 1) * copies; ++i)
      if (!routes.pads(i / routes.chosen - loss.before))
        ++loads[std::size_t(sequence * num_experts + experts[i])];
  });
  return loads;
}

}  // namespace

template <class Storage>
void router_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Matrix logits,
                    ConstVectorOf<Storage> bias) {
  promise_product("router_forward", x, w, logits);
  product(factor(x), factor(w, Transpose::yes), x.extent(1), Write::replace, logits);
  if (bias.data() == nullptr) return;
  promise(is_row_of(bias, logits), "router_forward", "the bias must be empty or [E]");
  for_each("router_bias", logits.extent(0), [=](std::int64_t n) {
    for (int e = 0; e < logits.extent_int(1); ++e) logits(n, e) += bias(e);
  });
}

template <class Storage>
void router_backward(ConstMatrix d_logits, ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                     Write write, Matrix dw, MatrixOf<Storage> dx) {
  promise_router("router_backward", d_logits, x, w, dw, dx);
  if (dw.data() != nullptr)  // before dx, which may be x
    product(factor(d_logits, Transpose::yes), factor(x), x.extent(0), write, dw);
  product(factor(d_logits), factor(w), w.extent(0), Write::replace, dx);
}

void choose_experts(ConstMatrix logits, const Router& router, Vector gates, Routes routes) {
  promise_routes("choose_experts", logits, router, gates, routes);
  const std::int64_t tokens = logits.extent(0), copies = tokens * routes.chosen;
  for_each("choose_experts", tokens, [=](std::int64_t n) {
    choose_experts_of(&logits(n, 0), router, routes.num_experts, routes.chosen,
                      routes.experts + n * routes.chosen);
  });
  if (routes.rows != nullptr)
    order_by(
        copies, routes.num_experts,
        [=](std::int64_t copy) { return routes.place(routes.experts[copy]); }, routes.begins,
        routes.rows);
  for_each("choose_experts_gates", tokens,
           [=](std::int64_t n) { write_gates(&logits(n, 0), router, routes, n, gates.data()); });
}

void count_copies(const Routes& routes, std::int64_t first, std::int64_t tokens, Vector counts) {
  promise_counts("count_copies", routes, tokens, counts);
  std::fill_n(counts.data(), counts.size(), 0.0f);
  for (std::int64_t i = first * routes.chosen; i < (first + tokens) * routes.chosen; ++i)
    if (!routes.pads(i / routes.chosen)) counts(routes.experts[i]) += 1.0f;
}

void choose_experts_backward(ConstMatrix logits, const Router& router, const Routes& routes,
                             ConstVector d_gates, const RouterLoss& loss, Matrix d_logits) {
  promise_routes_backward("choose_experts_backward", logits, router, d_gates, routes, loss,
                          d_logits);
  const std::int64_t tokens = logits.extent(0);
  const std::int32_t held = routes.rows != nullptr ? routes.held_rows() : 0;
  const bool balances = loss.balances();
  const std::vector<std::int32_t> loads =
      balances ? loads_of(routes, tokens, loss) : std::vector<std::int32_t>();
  for_each("choose_experts_backward", tokens, [&](std::int64_t n) {
    const bool pads = routes.pads(n);
    const std::int64_t sequence = balances && !pads ? loss.sequence(n) : -1;
    write_logits_gradient(
        &logits(n, 0), router, routes, n, d_gates.data(), held, pads ? RouterLoss{} : loss,
        sequence >= 0 ? loads.data() + sequence * std::int64_t(routes.num_experts) : nullptr,
        &d_logits(n, 0));
  });
}

template <class Storage>
void sigmoid_forward(ConstMatrixOf<Storage> logits, Vector gates) {
  promise_sigmoid("sigmoid_forward", logits, gates);
  for_each("sigmoid_forward", logits.extent(0),
           [=](std::int64_t n) { gates(n) = sigmoid(logits(n, 0)); });
}

template <class Storage>
void sigmoid_backward(ConstMatrixOf<Storage> logits, ConstVector d_gates,
                      MatrixOf<Storage> d_logits) {
  promise_sigmoid("sigmoid_backward", logits, d_gates);
  promise_sigmoid("sigmoid_backward", d_logits, d_gates);
  for_each("sigmoid_backward", logits.extent(0), [=](std::int64_t n) {
    const float gate = sigmoid(logits(n, 0));
    d_logits(n, 0) = Storage(gate * (1.0f - gate) * d_gates(n));
  });
}

template <class Storage>
void dispatch(ConstMatrixOf<Storage> x, const Routes& routes, MatrixOf<Storage> y) {
  promise_copies("dispatch", x, y, routes);
  const std::int32_t held = routes.held_rows();
  for_each("dispatch", routes.tokens(x.extent(0)), [=](std::int64_t n) {
    const std::int64_t place = routes.places != nullptr ? routes.places[n] : n;
    for (std::int64_t i = n * routes.chosen; i < (n + 1) * routes.chosen; ++i)
      if (routes.rows[i] < held) std::copy_n(&x(place, 0), x.extent(1), &y(routes.rows[i], 0));
  });
}

template <class Storage>
void combine(ConstMatrixOf<Storage> x, const Routes& routes, ConstMatrixOf<Storage> residual,
             MatrixOf<Storage> y) {
  promise_copies("combine", y, x, routes);
  promise_residual("combine", y, residual);
  constexpr int columns_at_once = 512;
  const int width = y.extent_int(1);
  const bool adds = residual.data() != nullptr;
  const std::int32_t held = routes.held_rows();
  for_each("combine", routes.tokens(y.extent(0)), [=](std::int64_t n) {
    const std::int32_t* const rows = routes.rows + n * routes.chosen;
    const std::int64_t place = routes.places != nullptr ? routes.places[n] : n;
    if (place == no_row) return;
    for (int first = 0; first < width; first += columns_at_once) {
      const int count = std::min(columns_at_once, width - first);
      float sums[columns_at_once] = {};
      for (int j = 0; j < routes.chosen; ++j) {
        if (rows[j] >= held) continue;
        const Storage* const in = &x(rows[j], first);
#pragma omp simd
        for (int c = 0; c < count; ++c) sums[c] += in[c];
      }
      const Storage* const added = adds ? &residual(place, first) : nullptr;
      Storage* const out = &y(place, first);
      if (added == nullptr) {
#pragma omp simd
        for (int c = 0; c < count; ++c) out[c] = sums[c];
      } else {
#pragma omp simd
        for (int c = 0; c < count; ++c) out[c] = added[c] + sums[c];
      }
    }
  });
}

template <class Storage>
void add_experts_bias(ConstMatrixOf<Storage> b, const Routes& routes, ConstVector gates,
                      MatrixOf<Storage> y) {
  promise_experts_bias("add_experts_bias", b, y, routes, gates);
  const int width = y.extent_int(1);
  for_each("add_experts_bias", y.extent(0), [=](std::int64_t r) {
    const Storage* const in = &b(held_expert(routes.host_begins, routes.num_held, r), 0);
    const float gate = gates.data() != nullptr ? gates(r) : 1.0f;
    Storage* const out = &y(r, 0);
#pragma omp simd
    for (int c = 0; c < width; ++c) out[c] = Storage(float(out[c]) + gate * float(in[c]));
  });
}

template <class Storage>
void experts_bias_backward(ConstMatrixOf<Storage> dy, const Routes& routes, ConstVector gates,
                           Write write, Matrix db) {
  promise_experts_bias("experts_bias_backward", db, dy, routes, gates);
  for_each("experts_bias_backward", routes.num_held, [=](std::int64_t h) {
    float* const sum = &db(h, 0);
    const int width = db.extent_int(1);
    if (write == Write::replace) std::fill_n(sum, width, 0.0f);
    for (std::int64_t r = routes.host_begins[h]; r < routes.host_begins[h + 1]; ++r) {
      const float gate = gates.data() != nullptr ? gates(r) : 1.0f;
      const Storage* const row = &dy(r, 0);
#pragma omp simd
      for (int c = 0; c < width; ++c) sum[c] += gate * float(row[c]);
    }
  });
}

template <class Storage>
void experts_bias_backward_gates(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> b,
                                 const Routes& routes, Vector d_gates) {
  promise_experts_bias("experts_bias_backward_gates", b, dy, routes, d_gates);
  for_each("experts_bias_backward_gates", dy.extent(0), [=](std::int64_t r) {
    const Storage* const bias = &b(held_expert(routes.host_begins, routes.num_held, r), 0);
    const Storage* const row = &dy(r, 0);
    d_gates(r) = sum_terms(dy.extent_int(1), [=](int c) { return row[c] * bias[c]; });
  });
}

}  // namespace brume::kernels

#include "kernels/instances/experts.hpp"
