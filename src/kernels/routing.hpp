/// @file The formulas of a router, for one token. Constexpr, so that code on devices may call them.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/experts.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {

/// A value in the order by which experts are chosen.
constexpr float order_of(float value) { return value == value ? value : -INFINITY; }

/// Chooses the largest of some values, of equal ones the first.
///
/// @param value_of  value of number 0 to count - 1
/// @param numbers   [chosen] rising
template <class ValueOf>
constexpr void choose(const ValueOf& value_of, int count, int chosen, std::int32_t* numbers) {
  // The chosen ones so far by falling values, then by their numbers.
  for (int i = 0; i < count; ++i) {
    const float value = value_of(i);
    int place = i < chosen ? i : chosen;
    for (; place > 0 && value > value_of(numbers[place - 1]); --place)
      if (place < chosen) numbers[place] = numbers[place - 1];
    if (place < chosen) numbers[place] = i;
  }
  for (int i = 1; i < chosen; ++i) {  // by their numbers alone
    const std::int32_t number = numbers[i];
    int place = i;
    for (; place > 0 && numbers[place - 1] > number; --place) numbers[place] = numbers[place - 1];
    numbers[place] = number;
  }
}

constexpr float sigmoid(float logit) { return 1.0f / (1.0f + vector_exp(-logit)); }

struct LogitOrder {
  const float* logits;

  constexpr float operator()(int expert) const { return order_of(logits[expert]); }
};

struct CorrectedOrder {
  const float *logits, *correction;

  constexpr float operator()(int expert) const {
    return order_of(sigmoid(logits[expert]) + (correction != nullptr ? correction[expert] : 0.0f));
  }
};

/// A group by its largest value, or by the sum of its two largest ones.
template <class Order>
struct GroupOrder {
  Order values;
  int group_size;
  bool by_two;

  constexpr float operator()(int group) const {
    float largest = -INFINITY, second = -INFINITY;
    for (int i = 0; i < group_size; ++i) {
      const float value = values(group * group_size + i);
      if (value > largest)
        second = largest, largest = value;
      else if (value > second)
        second = value;
    }
    return by_two ? largest + second : largest;
  }
};

/// Experts of some groups; those of other groups come last.
template <class Order>
struct InGroups {
  Order values;
  int group_size;
  std::uint64_t groups;  ///< a bit per group

  constexpr float operator()(int expert) const {
    return (groups >> (expert / group_size) & 1) == 0 ? -INFINITY : values(expert);
  }
};

template <class Order>
constexpr void choose_in_groups(const Order& values, const Router& router, int num_experts,
                                int chosen, std::int32_t* experts) {
  if (router.chosen_groups == router.groups) return choose(values, num_experts, chosen, experts);
  const int size = num_experts / router.groups;
  std::int32_t groups[most_expert_groups] = {};
  choose(GroupOrder<Order>{values, size, router.sigmoid}, router.groups, router.chosen_groups,
         groups);
  std::uint64_t bits = 0;
  for (int i = 0; i < router.chosen_groups; ++i) bits |= std::uint64_t{1} << groups[i];
  choose(InGroups<Order>{values, size, bits}, num_experts, chosen, experts);
}

/// See choose_experts.
///
/// @param logits   [E]
/// @param experts  [k] rising
constexpr void choose_experts_of(const float* logits, const Router& router, int num_experts,
                                 int chosen, std::int32_t* experts) {
  if (router.sigmoid)
    choose_in_groups(CorrectedOrder{logits, router.correction}, router, num_experts, chosen,
                     experts);
  else
    choose_in_groups(LogitOrder{logits}, router, num_experts, chosen, experts);
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

/// The sum of some sigmoids, which is never 0.
///
/// @param experts  [count] whose sigmoids they are; null: of the first `count`
constexpr float sum_of_sigmoids(const float* logits, const std::int32_t* experts, int count) {
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum += sigmoid(logits[experts != nullptr ? experts[i] : i]);
  return sum + 1e-20f;
}

/// The gates of token n, by row.
constexpr void write_gates(const float* logits, const Router& router, const Routes& routes,
                           std::int64_t n, float* gates) {
  const std::int32_t* const experts = routes.experts + n * routes.chosen;
  const auto row = [&](int j) {
    const std::int64_t copy = n * routes.chosen + j;
    return routes.rows != nullptr ? std::int64_t{routes.rows[copy]} : copy;
  };
  if (router.sigmoid) {
    const float sum = router.normalizes ? sum_of_sigmoids(logits, experts, routes.chosen) : 1.0f;
    for (int j = 0; j < routes.chosen; ++j)
      gates[row(j)] = sigmoid(logits[experts[j]]) / sum * router.scale;
    return;
  }
  const Softmax softmax = gates_of(logits, router.normalizes, routes, n);
  for (int j = 0; j < routes.chosen; ++j)
    gates[row(j)] = softmax(logits[experts[j]]) * router.scale;
}

/// Gradients of the gates of one token, of the first `held_rows` rows; others are 0.
struct GateGradients {
  const std::int32_t* rows;  ///< null: d_gates begins with the token's
  const float* d_gates;
  std::int32_t held_rows;
  float scale;  ///< of gates

  constexpr float operator()(int j) const {
    if (rows == nullptr) return d_gates[j] * scale;
    return rows[j] < held_rows ? d_gates[rows[j]] * scale : 0.0f;
  }
};

/// The gradient of the logits of token n by sigmoids s, with gates g over their scale, p = s / sum
/// of all s, and the softmax q of all logits.
///
///   dl_i = (1 - s_i) (g_i (dg_i - mean) + p_i balance (c_i - sum_m p_m c_m)) + 2 z logsumexp(l)
///   q_i
///
/// dg is 0 for experts that are not chosen, and mean is sum_m g_m dg_m of gates that sum to 1.
constexpr void write_sigmoid_gradient(const float* logits, const Router& router,
                                      const Routes& routes, std::int64_t n,
                                      const GateGradients& d_gates, const RouterLoss& loss,
                                      const std::int32_t* loads, float* d_logits) {
  const std::int32_t* const experts = routes.experts + n * routes.chosen;
  const int num_experts = routes.num_experts;
  const float chosen = router.normalizes ? sum_of_sigmoids(logits, experts, routes.chosen) : 1.0f;
  const float all = loads != nullptr ? sum_of_sigmoids(logits, nullptr, num_experts) : 1.0f;
  float mean_gradient = 0.0f, mean_load = 0.0f;
  for (int j = 0; router.normalizes && j < routes.chosen; ++j)
    mean_gradient += sigmoid(logits[experts[j]]) / chosen * d_gates(j);
  for (int i = 0; loads != nullptr && i < num_experts; ++i)
    mean_load += sigmoid(logits[i]) / all * float(loads[i]);
  const Softmax softmax =
      loss.z != 0.0f ? softmax_of(logits, nullptr, num_experts) : Softmax{0.0f, 1.0f};
  const float z = loss.z != 0.0f ? 2.0f * loss.z * softmax.log_sum() : 0.0f;
  for (int i = 0, j = 0; i < num_experts; ++i) {
    const float score = sigmoid(logits[i]);
    float slope = 0.0f;  // of the logarithm of the score
    if (j < routes.chosen && experts[j] == i)
      slope = score / chosen * (d_gates(j++) - mean_gradient);
    if (loads != nullptr) slope += score / all * loss.balance * (float(loads[i]) - mean_load);
    d_logits[i] = (1.0f - score) * slope + (z != 0.0f ? z * softmax(logits[i]) : 0.0f);
  }
}

/// The gradient of the logits of token n, with gates g over their scale and the softmax p of all
/// logits.
///
///   dl_i = g_i (dg_i - sum_m g_m dg_m) + p_i (balance (c_i - sum_m p_m c_m) + 2 z logsumexp(l))
///
/// The first term is only of chosen experts if gates are normalized, else dg is 0 for others. See
/// write_sigmoid_gradient for scores that are sigmoids.
///
/// @param d_gates   of the first `held_rows` rows; others are 0
/// @param loads     [E] c; null: the loads are not balanced
/// @param d_logits  [E]
constexpr void write_logits_gradient(const float* logits, const Router& router,
                                     const Routes& routes, std::int64_t n, const float* d_gates,
                                     std::int32_t held_rows, const RouterLoss& loss,
                                     const std::int32_t* loads, float* d_logits) {
  const std::int32_t* const experts = routes.experts + n * routes.chosen;
  const std::int64_t before = n * routes.chosen;
  const bool by_row = routes.rows != nullptr;
  const GateGradients d_gate_of{by_row ? routes.rows + before : nullptr,
                                by_row ? d_gates : d_gates + before, held_rows, router.scale};
  if (router.sigmoid)
    return write_sigmoid_gradient(logits, router, routes, n, d_gate_of, loss, loads, d_logits);
  const bool normalizes = router.normalizes;
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

/// The expert of a row, counted from the first one that the rank holds.
///
/// @param begins  Routes::begins, where the kernel runs
constexpr int held_expert(const std::int32_t* begins, int num_held, std::int64_t row) {
  int first = 0, end = num_held;  // the first of its end is behind the row
  while (first < end) {
    const int middle = (first + end) / 2;
    if (begins[middle + 1] > row)
      end = middle;
    else
      first = middle + 1;
  }
  return first;
}

}  // namespace brume::kernels
