/// @file The fluid model of tasks that slow each other down.
#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {

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

Interference Profile::interference_model() const {
  require(interference.size() == num_resources * num_resources, Failure::input,
          "profile '{}': interference needs {} numbers, found {}", origin,
          num_resources * num_resources, interference.size());
  Interference model;
  for (int q = 0; q < num_resources; ++q)
    for (int j = 0; j < num_resources; ++j)
      model.added[q][j] = interference[std::size_t(q * num_resources + j)];
  return model;
}

}  // namespace brume::hardware
