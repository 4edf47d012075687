/// @file The formulas of a router, for one token. Constexpr, so that code on devices may call them.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/experts.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {

/// A logit in the order by which experts are chosen.
constexpr float order_of(float logit) { return logit == logit ? logit : -INFINITY; }

/// See choose_experts.
///
/// @param logits   [E]
/// @param experts  [k] rising
constexpr void choose(const float* logits, int num_experts, int chosen, std::int32_t* experts) {
  // The chosen experts so far by falling logits, then by their numbers.
  for (int e = 0; e < num_experts; ++e) {
    int place = e < chosen ? e : chosen;
    for (; place > 0 && order_of(logits[e]) > order_of(logits[experts[place - 1]]); --place)
      if (place < chosen) experts[place] = experts[place - 1];
    if (place < chosen) experts[place] = e;
  }
  for (int i = 1; i < chosen; ++i) {  // by their numbers alone
    const std::int32_t expert = experts[i];
    int place = i;
    for (; place > 0 && experts[place - 1] > expert; --place) experts[place] = experts[place - 1];
    experts[place] = expert;
  }
}

/// The softmax of some logits.
struct Softmax {
  float top, sum;

  constexpr float operator()(float logit) const { return vector_exp(logit - top) / sum; }
  constexpr float log_sum() const { return top + std::log(sum); }
};

/// @param experts  [count] whose logits they are; null: of the first `count`
constexpr Softmax softmax_of(const float* logits, const std::int32_t* experts, int count) {
  Softmax softmax{-INFINITY, 0.0f};
  for (int i = 0; i < count; ++i) {
    const float logit = logits[experts != nullptr ? experts[i] : i];
    softmax.top = logit > softmax.top ? logit : softmax.top;
  }
  for (int i = 0; i < count; ++i)
    softmax.sum += vector_exp(logits[experts != nullptr ? experts[i] : i] - softmax.top);
  return softmax;
}

/// The softmax that gives the gates of token n.
constexpr Softmax gates_of(const float* logits, bool normalizes, const Routes& routes,
                           std::int64_t n) {
  return normalizes ? softmax_of(logits, routes.experts + n * routes.chosen, routes.chosen)
                    : softmax_of(logits, nullptr, routes.num_experts);
}

/// The gate of a shared expert.
constexpr float sigmoid(float logit) { return 1.0f / (1.0f + vector_exp(-logit)); }

/// The gates of token n, by row.
constexpr void write_gates(const float* logits, bool normalizes, const Routes& routes,
                           std::int64_t n, float* gates) {
  const Softmax softmax = gates_of(logits, normalizes, routes, n);
  for (std::int64_t i = n * routes.chosen; i < (n + 1) * routes.chosen; ++i)
    gates[routes.rows[i]] = softmax(logits[routes.experts[i]]);
}

/// The gradient of the logits of token n, with gates g and the softmax p of all logits.
///
///   dl_i = g_i (dg_i - sum_m g_m dg_m) + p_i (balance (c_i - sum_m p_m c_m) + 2 z logsumexp(l))
///
/// The first term is only of chosen experts if `normalizes`, else dg is 0 for others.
///
/// @param d_gates   of the first `held_rows` rows; others are 0
/// @param loads     [E] c; null: the loads are not balanced
/// @param d_logits  [E]
constexpr void write_logits_gradient(const float* logits, bool normalizes, const Routes& routes,
                                     std::int64_t n, const float* d_gates, std::int32_t held_rows,
                                     const RouterLoss& loss, const std::int32_t* loads,
                                     float* d_logits) {
  const std::int32_t* const experts = routes.experts + n * routes.chosen;
  const std::int32_t* const rows = routes.rows + n * routes.chosen;
  const auto d_gate_of = [&](int j) { return rows[j] < held_rows ? d_gates[rows[j]] : 0.0f; };
  const Softmax all = softmax_of(logits, nullptr, routes.num_experts);
  const Softmax gates = normalizes ? gates_of(logits, normalizes, routes, n) : all;
  float mean_gradient = 0.0f, mean_load = 0.0f;
  for (int j = 0; j < routes.chosen; ++j) mean_gradient += gates(logits[experts[j]]) * d_gate_of(j);
  for (int i = 0; loads != nullptr && i < routes.num_experts; ++i)
    mean_load += all(logits[i]) * float(loads[i]);
  const float z = loss.z != 0.0f ? 2.0f * loss.z * all.log_sum() : 0.0f;
  for (int i = 0, j = 0; i < routes.num_experts; ++i) {
    const bool is_chosen = j < routes.chosen && experts[j] == i;
    const float d_gate = is_chosen ? d_gate_of(j++) : 0.0f;
    const float through_gate =
        is_chosen || !normalizes ? gates(logits[i]) * (d_gate - mean_gradient) : 0.0f;
    const float balance = loads != nullptr ? loss.balance * (float(loads[i]) - mean_load) : 0.0f;
    d_logits[i] = through_gate + all(logits[i]) * (balance + z);
  }
}

}  // namespace brume::kernels
