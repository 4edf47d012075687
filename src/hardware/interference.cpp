/// @file The fluid model of tasks that slow each other down.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

Interference interference_of(const std::vector<double>& added, const std::string& origin) {
  require(added.size() == num_resources * num_resources, Failure::input,
          "profile '{}': interference needs {} numbers, found {}", origin,
          num_resources * num_resources, added.size());
  Interference model;
  for (int q = 0; q < num_resources; ++q)
    for (int j = 0; j < num_resources; ++j) model.added[q][j] = added[q * num_resources + j];
  return model;
}

}  // namespace

double Interference::overlapped_s(const std::array<double, num_resources>& alone_s) const {
  return std::ranges::max(done_s(alone_s));
}

std::array<double, num_resources> Interference::done_s(
    const std::array<double, num_resources>& alone_s) const {
  std::array<double, num_resources> left_s = alone_s, done_s{};
  double total_s = 0.0;
  // Each phase finishes at least one resource, so there are at most four.
  for (int phase = 0; phase < num_resources; ++phase) {
    std::array<double, num_resources> slowdown{};
    double phase_s = std::numeric_limits<double>::infinity();
    int first_done = -1;
    for (int q = 0; q < num_resources; ++q) {
      if (left_s[q] <= 0.0) continue;
      slowdown[q] = 1.0;
      for (int j = 0; j < num_resources; ++j)
        if (j != q && left_s[j] > 0.0) slowdown[q] += added[q][j];
      if (left_s[q] * slowdown[q] < phase_s) {
        phase_s = left_s[q] * slowdown[q];
        first_done = q;
      }
    }
    if (first_done < 0) break;
    total_s += phase_s;
    for (int q = 0; q < num_resources; ++q) {
      if (left_s[q] <= 0.0) continue;
      left_s[q] -= phase_s / slowdown[q];
      if (q != first_done && left_s[q] > 0.0) continue;
      left_s[q] = 0.0;  // whatever rounding left of it
      done_s[q] = total_s;
    }
  }
  return done_s;
}

Interference Profile::interference_model() const { return interference_of(interference, origin); }

Interference Profile::interference_model(int nodes, int ranks_per_node) const {
  if (group_interference.empty()) return interference_model();
  // A group across nodes is never like one within a node of as many ranks.
  const auto distance = [&](const GroupInterference& group) {
    const double ratio = double(group.nodes * group.ranks_per_node) / (nodes * ranks_per_node);
    return std::pair((group.nodes > 1) != (nodes > 1), std::abs(std::log(ratio)));
  };
  return interference_of(std::ranges::min_element(group_interference, {}, distance)->added, origin);
}

}  // namespace brume::hardware
