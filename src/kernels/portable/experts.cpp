#include "kernels/experts.hpp"

#include <algorithm>
#include <type_traits>

#include "base/text.hpp"
#include "kernels/matmul.hpp"
#include "kernels/portable/expert_loads.hpp"
#include "kernels/portable/launch.hpp"
#include "kernels/portable/ordering.hpp"
#include "kernels/routing.hpp"

namespace brume::kernels {
namespace {

// Factors of two formats have no product of a library. A sum of terms that both factors share is
// made for a few numbers of one factor at a time.
constexpr int sums_at_once = 4;

/// out(p, c) = sum_r a(r, p) b(r, c) for 0 <= r < terms, by write(p, c, sum).
template <class A, class B, class Store>
void sum_products(const char* name, std::int64_t rows, std::int64_t columns, std::int64_t terms,
                  const A& a, const B& b, const Store& write) {
  for_each(
      name, ceil_div(rows, sums_at_once) * columns, KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t first = i / columns * sums_at_once, c = i % columns;
        float sums[sums_at_once] = {};
        for (std::int64_t r = 0; r < terms; ++r) {
          const float factor = b(r, c);
          for (int k = 0; k < sums_at_once; ++k)  // no branch, which would part the reads
            sums[k] += a(r, first + k < rows ? first + k : rows - 1) * factor;
        }
        for (int k = 0; k < sums_at_once; ++k)
          if (first + k < rows) write(first + k, c, sums[k]);
      });
}

/// l[n,e] = sum_i x[n,i] w[e,i], a few of them by each unit.
template <class Storage>
void narrow_router_forward(const ConstMatrixOf<Storage>& x, const ConstMatrixOf<Storage>& w,
                           const Matrix& logits) {
  const int num_experts = logits.extent_int(1), width = x.extent_int(1);
  const std::int64_t blocks = ceil_div(num_experts, sums_at_once);
  const std::int64_t units = std::int64_t(logits.extent(0)) * blocks;
  for_each_unit(
      "router_forward", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = unit_of(team);
        if (unit >= units) return;
        const std::int64_t n = unit / blocks;
        const int first = int(unit % blocks) * sums_at_once;
        float sums[sums_at_once] = {};
        for (int i = lane_of(team); i < width; i += unit_lanes) {
          const float factor = x(n, i);
          for (int k = 0; k < sums_at_once; ++k)
            sums[k] += factor * w(first + k < num_experts ? first + k : num_experts - 1, i);
        }
        for (int k = 0; k < sums_at_once; ++k) {
          const float sum = sum_of_lanes(team, sums[k]);
          if (lane_of(team) == 0 && first + k < num_experts) logits(n, first + k) = sum;
        }
      });
}

template <class Storage>
void narrow_router_backward_weight(const ConstMatrix& d_logits, const ConstMatrixOf<Storage>& x,
                                   Write write, const Matrix& dw) {
  const bool adds = write == Write::accumulate;
  sum_products(
      "router_backward_weight", dw.extent(0), dw.extent(1), x.extent(0),
      KOKKOS_LAMBDA(std::int64_t n, std::int64_t e) { return d_logits(n, e); },
      KOKKOS_LAMBDA(std::int64_t n, std::int64_t i)->float { return x(n, i); },
      KOKKOS_LAMBDA(std::int64_t e, std::int64_t i, float sum) {
        dw(e, i) = adds ? dw(e, i) + sum : sum;
      });
}

template <class Storage>
void narrow_router_backward_input(const ConstMatrix& d_logits, const ConstMatrixOf<Storage>& w,
                                  const MatrixOf<Storage>& dx) {
  sum_products(
      "router_backward_input", dx.extent(0), dx.extent(1), w.extent(0),
      KOKKOS_LAMBDA(std::int64_t e, std::int64_t n) { return d_logits(n, e); },
      KOKKOS_LAMBDA(std::int64_t e, std::int64_t i)->float { return w(e, i); },
      KOKKOS_LAMBDA(std::int64_t n, std::int64_t i, float sum) { dx(n, i) = sum; });
}

}  // namespace

template <class Storage>
void router_forward(ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w, Matrix logits,
                    ConstVectorOf<Storage> bias) {
  promise_product("router_forward", x, w, logits);
  if constexpr (std::is_same_v<Storage, float>)
    linear_forward(x, w, Write::replace, logits);
  else
    narrow_router_forward<Storage>(x, w, logits);
  if (bias.data() == nullptr) return;
  promise(is_row_of(bias, logits), "router_forward", "the bias must be empty or [E]");
  const std::int64_t experts = std::int64_t(logits.extent(1));
  for_each(
      "router_bias", std::int64_t(logits.extent(0)) * experts, KOKKOS_LAMBDA(std::int64_t i) {
        logits(i / experts, i % experts) += float(bias(i % experts));
      });
}

template <class Storage>
void router_backward(ConstMatrix d_logits, ConstMatrixOf<Storage> x, ConstMatrixOf<Storage> w,
                     Write write, Matrix dw, MatrixOf<Storage> dx) {
  promise_router("router_backward", d_logits, x, w, dw, dx);
  // dx may be x, so dw comes first.
  if constexpr (std::is_same_v<Storage, float>) {
    if (dw.data() != nullptr) linear_backward_weight(d_logits, x, write, dw);
    linear_backward_input(d_logits, w, Write::replace, dx);
  } else {
    if (dw.data() != nullptr) narrow_router_backward_weight<Storage>(d_logits, x, write, dw);
    narrow_router_backward_input<Storage>(d_logits, w, dx);
  }
}

void choose_experts(ConstMatrix logits, const Router& router, Vector gates, Routes routes) {
  promise_routes("choose_experts", logits, router, gates, routes);
  const std::int64_t tokens = logits.extent(0);
  for_each(
      "choose_experts", tokens, KOKKOS_LAMBDA(std::int64_t n) {
        choose_experts_of(&logits(n, 0), router, routes.num_experts, routes.chosen,
                          routes.experts + n * routes.chosen);
      });
  if (routes.rows != nullptr)
    order_by(
        tokens * routes.chosen, routes.num_experts,
        KOKKOS_LAMBDA(std::int64_t copy) { return routes.place(routes.experts[copy]); },
        routes.begins, routes.rows);
  for_each(
      "choose_experts_gates", tokens, KOKKOS_LAMBDA(std::int64_t n) {
        write_gates(&logits(n, 0), router, routes, n, gates.data());
      });
}

void count_copies(const Routes& routes, std::int64_t first, std::int64_t tokens, Vector counts) {
  promise_counts("count_copies", routes, tokens, counts);
  const Loads loads = loads_of_runs(routes, first, tokens, 1);
  for_each(
      "count_copies", routes.num_experts,
      KOKKOS_LAMBDA(std::int64_t i) { counts(i) = float(loads.of_first[i]); });
}

void choose_experts_backward(ConstMatrix logits, const Router& router, const Routes& routes,
                             ConstVector d_gates, const RouterLoss& loss, Matrix d_logits) {
  promise_routes_backward("choose_experts_backward", logits, router, d_gates, routes, loss,
                          d_logits);
  const std::int64_t tokens = logits.extent(0);
  const std::int32_t held = routes.rows != nullptr ? routes.held_rows() : 0;
  const Loads loads = loss.balances() ? loads_of(routes, tokens, loss) : Loads{};
  for_each(
      "choose_experts_backward", tokens, KOKKOS_LAMBDA(std::int64_t n) {
        const bool pads = routes.pads(n);
        const std::int64_t sequence = loads.of_first != nullptr && !pads ? loss.sequence(n) : -1;
        write_logits_gradient(
            &logits(n, 0), router, routes, n, d_gates.data(), held, pads ? RouterLoss{} : loss,
            sequence >= 0 ? loads.of_first + sequence * loads.stride : nullptr, &d_logits(n, 0));
      });
}

template <class Storage>
void sigmoid_forward(ConstMatrixOf<Storage> logits, Vector gates) {
  promise_sigmoid("sigmoid_forward", logits, gates);
  for_each(
      "sigmoid_forward", logits.extent(0),
      KOKKOS_LAMBDA(std::int64_t n) { gates(n) = sigmoid(logits(n, 0)); });
}

template <class Storage>
void sigmoid_backward(ConstMatrixOf<Storage> logits, ConstVector d_gates,
                      MatrixOf<Storage> d_logits) {
  promise_sigmoid("sigmoid_backward", logits, d_gates);
  promise_sigmoid("sigmoid_backward", d_logits, d_gates);
  for_each(
      "sigmoid_backward", logits.extent(0), KOKKOS_LAMBDA(std::int64_t n) {
        const float gate = sigmoid(logits(n, 0));
        d_logits(n, 0) = Storage(gate * (1.0f - gate) * d_gates(n));
      });
}

template <class Storage>
void dispatch(ConstMatrixOf<Storage> x, const Routes& routes, MatrixOf<Storage> y) {
  promise_copies("dispatch", x, y, routes);
  const std::int32_t held = routes.held_rows();
  for_each_row(
      "dispatch", routes.tokens(x.extent(0)), KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t n = team.league_rank();
        const std::int32_t* const rows = routes.rows + n * routes.chosen;
        const std::int64_t place = routes.places != nullptr ? routes.places[n] : n;
        if (place == no_row) return;
        along(
            team, x.extent_int(1), [&](int c) { return x(place, c); },
            [&](int c, Storage value) {
              for (int j = 0; j < routes.chosen; ++j)
                if (rows[j] < held) y(rows[j], c) = value;
            });
      });
}

template <class Storage>
void combine(ConstMatrixOf<Storage> x, const Routes& routes, ConstMatrixOf<Storage> residual,
             MatrixOf<Storage> y) {
  promise_copies("combine", y, x, routes);
  promise_residual("combine", y, residual);
  const std::int32_t held = routes.held_rows();
  for_each_row(
      "combine", routes.tokens(y.extent(0)), KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t n = team.league_rank();
        const std::int32_t* const rows = routes.rows + n * routes.chosen;
        const std::int64_t place = routes.places != nullptr ? routes.places[n] : n;
        if (place == no_row) return;
        const Storage* const added = residual.data() != nullptr ? &residual(place, 0) : nullptr;
        along(
            team, y.extent_int(1),
            [&](int c) {
              float sum = 0.0f;
              for (int j = 0; j < routes.chosen; ++j)
                if (rows[j] < held) sum += x(rows[j], c);
              return optional(added, &y(place, 0), c) + sum;
            },
            [&](int c, float value) { y(place, c) = value; });
      });
}

template <class Storage>
void add_experts_bias(ConstMatrixOf<Storage> b, const Routes& routes, ConstVector gates,
                      MatrixOf<Storage> y) {
  promise_experts_bias("add_experts_bias", b, y, routes, gates);
  for_each_row(
      "add_experts_bias", y.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t r = team.league_rank();
        const int h = held_expert(routes.begins, routes.num_held, r);
        const float gate = gates.data() != nullptr ? gates(r) : 1.0f;
        along(
            team, y.extent_int(1), [&](int c) { return float(y(r, c)) + gate * float(b(h, c)); },
            [&](int c, float value) { y(r, c) = Storage(value); });
      });
}

template <class Storage>
void experts_bias_backward(ConstMatrixOf<Storage> dy, const Routes& routes, ConstVector gates,
                           Write write, Matrix db) {
  promise_experts_bias("experts_bias_backward", db, dy, routes, gates);
  const bool adds = write == Write::accumulate;
  const std::int64_t width = std::int64_t(db.extent(1));
  for_each(
      "experts_bias_backward", routes.num_held * width, KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t h = i / width, c = i % width;
        float sum = adds ? db(h, c) : 0.0f;
        for (std::int64_t r = routes.begins[h]; r < routes.begins[h + 1]; ++r)
          sum += (gates.data() != nullptr ? gates(r) : 1.0f) * float(dy(r, c));
        db(h, c) = sum;
      });
}

template <class Storage>
void experts_bias_backward_gates(ConstMatrixOf<Storage> dy, ConstMatrixOf<Storage> b,
                                 const Routes& routes, Vector d_gates) {
  promise_experts_bias("experts_bias_backward_gates", b, dy, routes, d_gates);
  for_each_row(
      "experts_bias_backward_gates", dy.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t r = team.league_rank();
        const int h = held_expert(routes.begins, routes.num_held, r);
        const float sum = sum_along(team, dy.extent_int(1),
                                    [&](int c) { return float(dy(r, c)) * float(b(h, c)); });
        Kokkos::single(Kokkos::PerTeam(team), [&]() { d_gates(r) = sum; });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/experts.hpp"
