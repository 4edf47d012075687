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

/// search.time_limit_s, of which a step of the search may take a part.
class Budget {
 public:
  explicit Budget(double limit_s) : limit_s_(limit_s), deadline_(limit_s) {}
  double seconds() const { return watch_.seconds(); }
  double left_s() const { return std::max(0.0, limit_s_ - watch_.seconds()); }
  void allow(double time_s) { deadline_.set(time_s); }
  const Deadline& deadline() const { return deadline_; }

 private:
  double limit_s_;
  Stopwatch watch_;
  Deadline deadline_;
};

/// A plan that was placed, with its prediction and, if there is time, its simulation.
Candidate candidate(const Question& question, const plan::Plan& plan, const Placement& placed) {
  Candidate found{.plan = plan,
                  .prediction = analyzer::analyze(plan, question.model, question.machine),
                  .simulated_s = std::nullopt,
                  .placed = placed.groups,
                  .closed_form_bytes = std::nullopt};
  found.closed_form_bytes = take_placed_peaks(found.prediction, placed);
  if (placed.programs.empty()) return found;
  try {
    found.simulated_s = schedule::simulate(placed.programs, plan, question.model, question.machine,
                                           question.deadline)
                            .iteration_s;
  } catch (const OutOfTime&) {
  }
  return found;
}

/// Collects the model's fastest plans that can be placed, simulated.
class BestPlans {
 public:
  BestPlans(const Question& question, Searcher& searcher, Search& statistics, Budget& budget)
      : question_(question),
        searcher_(searcher),
        statistics_(statistics),
        budget_(budget),
        wanted_(std::size_t(std::max(1, question.keys.simulate_top))) {}

  /// Fastest simulation first.
  std::vector<Candidate> collect() {
    try {
      while (best_.size() < wanted_)
        if (const std::optional<Found> found = next(); !found || !take(*found)) break;
    } catch (const OutOfTime&) {
    }
    close();
    std::ranges::stable_sort(best_, {}, &Candidate::seconds);
    return std::move(best_);
  }

 private:
  /// A plan counts once it has been placed, so the first one has to come while there is time.
  std::optional<Found> next() {
    constexpr double share = 0.7;
    budget_.allow(best_.empty() ? share * budget_.left_s() : budget_.left_s());
    std::optional<Found> found = searcher_.next();
    if (found || !best_.empty() || searcher_.done()) return found;
    budget_.allow(budget_.left_s());
    return searcher_.next();
  }

  /// @return whether there may be others
  bool take(const Found& found) {
    const bool known = std::ranges::any_of(
        best_, [&](const Candidate& other) { return other.plan == found.plan; });
    if (!known) {
      budget_.allow(budget_.left_s() + (best_.empty() ? placing_s : 0.0));
      const Placement placed =
          place(found.plan, question_.model, question_.cluster, question_.deadline);
      if (placed.misfit) {
        ++statistics_.struck;
        searcher_.strike(found, *placed.misfit);
        return true;
      }
      best_.push_back(candidate(question_, found.plan, placed));
    }
    if (!bounded_) bound_s_ = found.bound_s;
    // What may be faster yet shares strategies with it: nothing is struck before that is settled.
    if (!found.closed) return budget_.left_s() > 0.0;
    if (!bounded_) statistics_.confirmed = found.confirmed;
    bounded_ = true;
    if (++of_frame_[found.frame] < most_plans_of_a_frame)
      searcher_.strike(found, 0);
    else
      searcher_.drop(found);
    return true;
  }

  /// How near the fastest one is to the optimum, and whether the search came to its end.
  void close() {
    if (best_.empty()) return;
    double fastest_s = infinity;
    for (const Candidate& plan : best_)
      fastest_s = std::min(fastest_s, plan.prediction.iteration_s);
    if (!bounded_) bound_s_ = std::max(bound_s_, searcher_.bound_s());
    statistics_.gap = std::max(0.0, (fastest_s - bound_s_) / fastest_s);
    statistics_.cut_short = !bounded_ || (best_.size() < wanted_ && !searcher_.done());
  }

  const Question& question_;
  Searcher& searcher_;
  Search& statistics_;
  Budget& budget_;
  std::size_t wanted_;
  std::vector<Candidate> best_;
  std::map<std::size_t, int> of_frame_;
  double bound_s_ = 0.0;  ///< no plan is faster
  bool bounded_ = false;  ///< by a plan that was proven
};

void add_reasons(const Question& question, Grid& grid, Result& result) {
  result.ablations = ablations(question, grid, result.best[0], result.untried);
  try {
    result.nearest_infeasible = nearest_infeasible(question, grid);
  } catch (const OutOfTime&) {
  }
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
  Budget budget(search.time_limit_s);
  const Question question{model,  global_batch,        cluster,          machine,
                          search, options.most_labels, budget.deadline()};
  Grid grid(model, machine, budget.deadline());
  Searcher searcher(question, grid);
  Result result;
  result.search.limit_s = search.time_limit_s;
  result.best = BestPlans(question, searcher, result.search, budget).collect();
  budget.allow(budget.left_s());
  if (result.best.empty()) {
    if (searcher.done()) nothing_fits(question, grid);
    nothing_found(question, searcher, result.search.struck);
  }

  searcher.add_to(result.search);
  if (options.reasons) add_reasons(question, grid, result);
  result.search.seconds = budget.seconds();
  return result;
}

}  // namespace brume::tuner
