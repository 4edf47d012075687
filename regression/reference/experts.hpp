/// @file Plain routing of tokens to experts.
#pragma once

#include <numeric>

#include "kernels/experts.hpp"
#include "reference/arrays.hpp"

namespace brume::reference {

/// e^l_i / sum_m e^l_m
inline Doubles softmax(const Doubles& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  Doubles out;
  for (const double logit : logits) out.push_back(std::exp(logit - top));
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& value : out) value /= sum;
  return out;
}

/// The routes of tokens, and what they point to.
struct Routed {
  Routed(int tokens, int num_experts, int chosen)
      : experts(std::size_t(tokens) * chosen, -1),
        rows(experts.size(), -1),
        begins(std::size_t(num_experts) + 1, -1),
        num_experts{num_experts},
        chosen{chosen},
        num_held{num_experts} {}

  kernels::Routes routes() {
    return {.experts = experts.data(),
            .rows = rows.data(),
            .begins = begins.data(),
            .num_experts = num_experts,
            .chosen = chosen,
            .first_held = first_held,
            .num_held = num_held,
            .host_begins = begins.data()};
  }
  int held_rows() const { return begin(num_held); }
  int tokens() const { return int(experts.size()) / chosen; }
  int expert(int n, int j) const { return experts[std::size_t(n * chosen + j)]; }
  int row(int n, int j) const { return rows[std::size_t(n * chosen + j)]; }
  int begin(int e) const { return begins[std::size_t(e)]; }
  bool operator==(const Routed&) const = default;

  std::vector<std::int32_t> experts, rows, begins;
  int num_experts, chosen;
  int first_held = 0, num_held;
};

inline Doubles row_of(const Doubles& matrix, int n, int columns) {
  return {matrix.begin() + n * columns, matrix.begin() + (n + 1) * columns};
}

/// Whose order of equal logits is that of the experts.
///
/// @param num_held  number of experts on the rank, from `first_held` on; 0: all
inline Routed routed(const Doubles& logits, int num_experts, int chosen, int first_held = 0,
                     int num_held = 0) {
  const int tokens = int(logits.size()) / num_experts;
  Routed out(tokens, num_experts, chosen);
  out.first_held = first_held;
  if (num_held > 0) out.num_held = num_held;
  for (int n = 0; n < tokens; ++n) {
    const Doubles row = row_of(logits, n, num_experts);
    std::vector<std::int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return row[std::size_t(a)] > row[std::size_t(b)]; });
    std::sort(order.begin(), order.begin() + chosen);
    std::copy_n(order.begin(), chosen, out.experts.begin() + n * chosen);
  }
  int row = 0;
  for (int place = 0; place < num_experts; ++place) {
    out.begins[std::size_t(place)] = row;
    for (std::size_t i = 0; i < out.experts.size(); ++i)
      if (out.experts[i] == (first_held + place) % num_experts) out.rows[i] = row++;
  }
  out.begins[std::size_t(num_experts)] = row;
  return out;
}

inline double sigmoid(double logit) { return 1.0 / (1.0 + std::exp(-logit)); }

/// Values by which a router chooses experts: those of a token's groups, else -infinity.
///
/// @param correction  [E]
inline Doubles corrected_scores(const Doubles& logits, const Doubles& correction,
                                const kernels::Router& router) {
  const std::size_t experts = correction.size(), each = experts / std::size_t(router.groups);
  Doubles out;
  for (std::size_t first = 0; first < logits.size(); first += experts) {
    Doubles scores, sums;
    for (std::size_t e = 0; e < experts; ++e)
      scores.push_back(router.sigmoid ? sigmoid(logits[first + e]) + correction[e]
                                      : logits[first + e]);
    for (auto group = scores.begin(); group != scores.end(); group += std::ptrdiff_t(each)) {
      Doubles sorted(group, group + std::ptrdiff_t(each));
      std::sort(sorted.rbegin(), sorted.rend());
      sums.push_back(sorted[0] + (router.sigmoid && each > 1 ? sorted[1] : 0.0));
    }
    for (std::size_t e = 0; e < experts; ++e) {
      const auto own = std::ptrdiff_t(e / each);
      const auto better = [&](std::ptrdiff_t group) {
        return group < own ? sums[std::size_t(group)] >= sums[std::size_t(own)]
                           : sums[std::size_t(group)] > sums[std::size_t(own)];
      };
      int before = 0;
      for (std::ptrdiff_t group = 0; group < router.groups; ++group) before += better(group);
      out.push_back(before < router.chosen_groups ? scores[e] : -INFINITY);
    }
  }
  return out;
}

/// Gates of given routes, by row.
inline Doubles gates(const Doubles& logits, const kernels::Router& router, const Routed& at) {
  Doubles out(at.experts.size());
  for (int n = 0; n < at.tokens(); ++n) {
    Doubles all = row_of(logits, n, at.num_experts), chosen;
    for (int j = 0; j < at.chosen; ++j) chosen.push_back(all[std::size_t(at.expert(n, j))]);
    if (router.sigmoid) {
      for (Doubles* const scores : {&all, &chosen})
        for (double& score : *scores) score = sigmoid(score);
      const double sum = std::accumulate(chosen.begin(), chosen.end(), 0.0);
      for (double& gate : chosen) gate /= sum;
    } else {
      all = softmax(all), chosen = softmax(chosen);
    }
    for (int j = 0; j < at.chosen; ++j)
      out[std::size_t(at.row(n, j))] =
          double(router.scale) *
          (router.normalizes ? chosen[std::size_t(j)] : all[std::size_t(at.expert(n, j))]);
  }
  return out;
}

/// Both losses of given routes.
inline double router_loss(const Doubles& logits, const kernels::Router& router, const Routed& at,
                          const kernels::RouterLoss& loss) {
  double sum = 0.0;
  for (int n = 0; n < at.tokens(); ++n) {
    const Doubles row = row_of(logits, n, at.num_experts);
    Doubles p = softmax(row);
    // logsumexp(l) = l_i - log p_i
    const double log_sum = row[0] - std::log(p[0]);
    if (router.sigmoid) {
      p = row;
      for (double& score : p) score = sigmoid(score);
      const double all = std::accumulate(p.begin(), p.end(), 0.0);
      for (double& score : p) score /= all;
    }
    sum += loss.z * log_sum * log_sum;
    if (loss.seq_len == 0) continue;
    const int first = n / loss.seq_len * loss.seq_len;
    for (int m = first; m < first + loss.seq_len; ++m)
      for (int j = 0; j < at.chosen; ++j) sum += loss.balance * p[std::size_t(at.expert(m, j))];
  }
  return sum;
}

}  // namespace brume::reference
