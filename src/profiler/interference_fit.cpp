#include "profiler/interference_fit.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace brume::profiler {
namespace {

using hardware::num_resources;

/// A task that seems to stand still beside another is noise beyond this.
constexpr double most_slowdown = 20.0;

/// Sums of the relative least squares fit of one slowdown.
struct Sums {
  double inverse = 0.0, inverse_squared = 0.0;

  void add(double slowdown) {
    const double s = std::clamp(slowdown, 1.0 / most_slowdown, most_slowdown);
    inverse += 1.0 / s;
    inverse_squared += 1.0 / (s * s);
  }
  double added() const {
    return inverse_squared > 0.0 ? std::max(0.0, inverse / inverse_squared - 1.0) : 0.0;
  }
};

/// The two resources of a co-run, the one done first first.
std::pair<int, int> present(const CoRun& co_run) {
  int first = -1, second = -1, count = 0;
  for (int q = 0; q < num_resources; ++q) {
    if (co_run.alone_s[q] <= 0.0) continue;
    require(co_run.done_s[q] > 0.0, Failure::bug, "resource {} of a co-run has no time", q);
    (count++ == 0 ? first : second) = q;
  }
  require(count == 2, Failure::bug, "a co-run needs two resources, found {}", count);
  if (co_run.done_s[second] < co_run.done_s[first]) std::swap(first, second);
  return {first, second};
}

}  // namespace

hardware::Interference fit_interference(std::span<const CoRun> co_runs) {
  std::array<std::array<Sums, num_resources>, num_resources> sums;
  for (const CoRun& co_run : co_runs) {
    const auto [q, j] = present(co_run);
    const double together_s = co_run.done_s[q];
    const double progress_s = co_run.alone_s[j] - (co_run.done_s[j] - together_s);
    sums[q][j].add(together_s / co_run.alone_s[q]);
    sums[j][q].add(together_s / std::max(progress_s, together_s / most_slowdown));
  }
  hardware::Interference model;
  for (int q = 0; q < num_resources; ++q)
    for (int j = 0; j < num_resources; ++j) model.added[q][j] = sums[q][j].added();
  return model;
}

}  // namespace brume::profiler
