#include "engine/expert_loads.hpp"

#include <algorithm>
#include <numeric>

namespace brume::engine {

double load_factor(std::span<const double> loads, int num_experts) {
  const std::size_t experts = std::size_t(num_experts), layers = loads.size() / experts;
  double sum = 0.0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto of_layer = loads.subspan(layer * experts, experts);
    const double all = std::accumulate(of_layer.begin(), of_layer.end(), 0.0);
    if (all > 0.0) sum += *std::ranges::max_element(of_layer) * double(experts) / all;
  }
  return layers > 0 ? sum / double(layers) : 0.0;
}

double idle_experts(std::span<const double> loads) {
  if (loads.empty()) return 0.0;
  return double(std::ranges::count(loads, 0.0)) / double(loads.size());
}

void move_corrections(std::span<const double> loads, std::int64_t first, float rate,
                      std::span<float> corrections) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  for (std::size_t i = 0; i < corrections.size(); ++i) {
    const double above = loads[std::size_t(first) + i] * double(loads.size()) - sum;
    if (above != 0.0) corrections[i] += above < 0.0 ? rate : -rate;
  }
}

}  // namespace brume::engine
