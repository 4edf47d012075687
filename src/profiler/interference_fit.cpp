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

int num_present(const CoRun& co_run) {
  int count = 0;
  for (int q = 0; q < num_resources; ++q) {
    if (co_run.alone_s[q] <= 0.0) continue;
    require(co_run.done_s[q] > 0.0, Failure::bug, "resource {} of a co-run has no time", q);
    ++count;
  }
  require(count >= 2, Failure::bug, "a co-run needs two resources, found {}", count);
  return count;
}

/// The two resources of a pair, the one done first first.
std::pair<int, int> present(const CoRun& co_run) {
  int first = -1, second = -1;
  for (int q = 0; q < num_resources; ++q) {
    if (co_run.alone_s[q] <= 0.0) continue;
    (first < 0 ? first : second) = q;
  }
  if (co_run.done_s[second] < co_run.done_s[first]) std::swap(first, second);
  return {first, second};
}

hardware::Interference fit_pairs(std::span<const CoRun> co_runs) {
  std::array<std::array<Sums, num_resources>, num_resources> sums;
  for (const CoRun& co_run : co_runs) {
    if (num_present(co_run) != 2) continue;
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

/// Sum of squared relative errors of the time until all were done.
double loss(const hardware::Interference& model, std::span<const CoRun> co_runs) {
  double sum = 0.0;
  for (const CoRun& co_run : co_runs) {
    const double all_s = *std::ranges::max_element(co_run.done_s);
    const double error = model.overlapped_s(co_run.alone_s) / all_s - 1.0;
    sum += error * error;
  }
  return sum;
}

/// Moves one coefficient at a time as long as that lowers the loss.
void refine(hardware::Interference& model, std::span<const CoRun> co_runs) {
  constexpr int most_sweeps = 50;
  double least = loss(model, co_runs);
  for (double step = 0.5; step > 0.01; step *= 0.5)
    for (int sweep = 0, better = 1; better && sweep < most_sweeps; ++sweep) {
      better = 0;
      for (auto& row : model.added)
        for (double& added : row)
          for (double slowdown : {(1.0 + added) * (1.0 + step), (1.0 + added) / (1.0 + step)}) {
            const double before =
                std::exchange(added, std::clamp(slowdown - 1.0, 0.0, most_slowdown));
            const double now = loss(model, co_runs);
            if (now < least * (1.0 - 1e-9)) {
              least = now;
              better = 1;
            } else {
              added = before;
            }
          }
    }
}

}  // namespace

hardware::Interference fit_interference(std::span<const CoRun> co_runs) {
  hardware::Interference model = fit_pairs(co_runs);
  if (std::ranges::any_of(co_runs, [](const CoRun& c) { return num_present(c) > 2; }))
    refine(model, co_runs);
  return model;
}

}  // namespace brume::profiler
