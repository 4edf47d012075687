/// @file Plain softmax cross-entropy.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

/// The loss; `gradient`, when given, becomes d loss / d logits.
inline double cross_entropy(const Doubles& logits, const std::vector<std::int32_t>& targets,
                            double scale, Doubles* gradient = nullptr) {
  const std::size_t V = logits.size() / targets.size();
  if (gradient) gradient->assign(logits.size(), 0.0);
  double loss = 0.0;
  for (std::size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] < 0) continue;
    const double* const row = &logits[n * V];
    const double top = *std::max_element(row, row + V);
    double sum = 0.0;
    for (std::size_t v = 0; v < V; ++v) sum += std::exp(row[v] - top);
    loss += scale * (top + std::log(sum) - row[targets[n]]);
    if (!gradient) continue;
    for (std::size_t v = 0; v < V; ++v)
      (*gradient)[n * V + v] = scale * std::exp(row[v] - top) / sum;
    (*gradient)[n * V + targets[n]] -= scale;
  }
  return loss;
}

}  // namespace brume::reference
