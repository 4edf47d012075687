#include "tuner/tuner.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.hpp"
#include "base/units.hpp"
#include "placement.hpp"
#include "schedule/simulate.hpp"
#include "search.hpp"
#include "why.hpp"

namespace brume::tuner {
namespace {

/// More plans of one shape would only differ in knobs that hardly matter.
constexpr int most_plans_of_a_frame = 2;

/// Sets the peaks of stages that placement finds off by more than 1 % and 1 MiB to what it takes.
/// @return the largest peak before that, where any was
std::optional<std::int64_t> take_placed_peaks(analyzer::Prediction& prediction,
                                              const Placement& placed) {
  const std::int64_t largest =
      std::ranges::max(prediction.stages, {}, &analyzer::StagePrediction::peak_bytes).peak_bytes();
  bool any = false;
  for (std::size_t i = 0; i < prediction.stages.size(); ++i) {
    analyzer::StagePrediction& stage = prediction.stages[i];
    const std::int64_t bytes = placed.stage_bytes[i], peak = stage.peak_bytes();
    if (std::abs(double(bytes - peak)) <= std::max(0.01 * double(bytes), bytes_per_mib)) continue;
    any = true;
    for (std::int64_t* one : {&stage.peak_forward_bytes, &stage.peak_backward_bytes})
      *one = *one == peak ? bytes : std::min(*one, bytes);
  }
  return any ? std::optional(largest) : std::nullopt;
}

/// The model's fastest plans that can be placed, simulated; fastest simulation first.
std::vector<Candidate> best_plans(const Question& question, Searcher& searcher, Search& statistics,
                                  const Stopwatch& watch) {
  std::vector<Candidate> best;
  std::map<std::size_t, int> of_frame;
  const auto wanted = std::size_t(std::max(1, question.keys.simulate_top));
  while (best.size() < wanted) {
    if (!best.empty() && watch.seconds() > question.keys.time_limit_s) break;
    const std::optional<Found> found = searcher.next();
    if (!found) break;
    const Placement placed = place(found->plan, question.model, question.cluster);
    if (placed.misfit) {
      ++statistics.struck;
      searcher.strike(*found, *placed.misfit);
      continue;
    }
    if (best.empty()) statistics.confirmed = found->confirmed;
    if (best.empty())
      statistics.gap = std::max(0.0, (found->iteration_s - found->bound_s) / found->iteration_s);
    const plan::Plan& plan = found->plan;
    best.push_back(
        {.plan = plan,
         .prediction = analyzer::analyze(plan, question.model, question.machine),
         .simulated_s = !placed.programs.empty()
                            ? std::optional(schedule::simulate(placed.programs, plan,
                                                               question.model, question.machine)
                                                .iteration_s)
                            : std::nullopt,
         .placed = placed.groups,
         .closed_form_bytes = std::nullopt});
    best.back().closed_form_bytes = take_placed_peaks(best.back().prediction, placed);
    if (++of_frame[found->frame] < most_plans_of_a_frame)
      searcher.strike(*found, 0);
    else
      searcher.drop(*found);
  }
  std::ranges::stable_sort(best, {}, &Candidate::seconds);
  return best;
}

}  // namespace

std::int64_t Candidate::placed_device_bytes() const {
  return std::ranges::max_element(placed, {}, &Held::device_bytes)->device_bytes;
}

std::int64_t Candidate::placed_host_bytes() const {
  return std::ranges::max_element(placed, {}, &Held::host_bytes)->host_bytes;
}

std::int64_t Candidate::placed_disk_bytes() const {
  return std::ranges::max_element(placed, {}, &Held::disk_bytes)->disk_bytes;
}

Result tune(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
            const hardware::Machine& machine, const deck::SearchKeys& search,
            const Options& options) {
  const Stopwatch watch;
  const Question question{model, global_batch, cluster, machine, search, options.most_labels};
  Grid grid(model, machine);
  Searcher searcher(question, grid, watch);
  Result result;
  result.best = best_plans(question, searcher, result.search, watch);
  if (result.best.empty()) nothing_fits(question, grid, watch);

  searcher.add_to(result.search);
  if (options.reasons) {
    result.ablations = ablations(question, grid, result.best[0], watch);
    result.nearest_infeasible = nearest_infeasible(question, grid, watch);
  }
  result.search.seconds = watch.seconds();
  return result;
}

}  // namespace brume::tuner
