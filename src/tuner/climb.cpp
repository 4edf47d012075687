#include "climb.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "grid.hpp"
#include "other_orders.hpp"
#include "placement.hpp"
#include "plan/neighbours.hpp"
#include "schedule/steady.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {
namespace {

constexpr double least_step = 0.002;    ///< share of the fastest plan's time
constexpr double memory_error = 0.025;  ///< share by which plans may need less memory

/// Differences of plans whose predictions are off alike.
enum class Kind { values, layers, shape };

Kind kind(const plan::Plan& a, const plan::Plan& b) {
  const auto shape = [](const plan::Stage& s) {
    return std::tuple(s.dp, s.cp, s.gather_keys, s.tp, s.ep, s.dispatch_tokens, s.mlp_tiles,
                      s.microbatch);
  };
  if (a.order != b.order || a.microbatches != b.microbatches ||
      !std::ranges::equal(a.stages, b.stages, {}, shape, shape))
    return Kind::shape;
  return std::ranges::equal(a.stages, b.stages, {}, &plan::Stage::layers, &plan::Stage::layers)
             ? Kind::values
             : Kind::layers;
}

/// Neighbours of each kind that are simulated: the longer that takes, the fewer.
int most_simulated(const plan::Plan& plan, const model::Config& model) {
  constexpr int passes = 8000, fewest = 8, most = 32;  // passes over layers
  const int microbatches = std::min(plan.microbatches, schedule::steady_microbatches(plan));
  return std::clamp(passes / (model.num_layers * microbatches), fewest, most);
}

/// Share by which a neighbour may take less than expected. Formulas of other orders than 1F1B count
/// the slowest stage, whose work messages and waits may hide.
double expected_error(const plan::Plan& plan, const plan::Plan& neighbour, Kind kind) {
  if (neighbour.order != plan.order) return 0.1;
  return kind == Kind::layers && !plan.order.is_1f1b() ? 0.2 : 0.01;
}

class Climber {
 public:
  Climber(const SearchInput& input, WorkerPool& workers, const std::vector<plan::Plan>& refused)
      : input_(input), workers_(workers), refused_(refused) {}

  /// Goes on from a plan while neighbours are faster than all before.
  void climb_from(plan::Plan plan, Climb& found) {
    double seconds = simulated_s(plan);
    fastest_s_ = std::min(fastest_s_, seconds);
    while (std::optional<plan::Plan> next = step(plan, seconds, found.simulated)) {
      found.plan = plan = *std::move(next);
      seconds = fastest_s_;
    }
  }

 private:
  /// A neighbour and the time that is expected of it.
  struct Neighbour {
    plan::Plan plan;
    double expected_s;
    Kind kind;
  };

  /// A plan's time by one rank of each stage, even of few ranks.
  double simulated_s(const plan::Plan& plan) const {
    return schedule::steady_time(plan, input_.model, input_.machine, input_.deadline,
                                 workers_.threads(), input_.packings, true);
  }

  /// The same of the first microbatches alone.
  double first_s(const plan::Plan& plan) const {
    const int steady = schedule::steady_microbatches(plan);
    return plan.microbatches <= steady ? simulated_s(plan)
                                       : simulated_s(schedule::of_microbatches(plan, steady));
  }

  /// Neighbours that may fit and be the fastest plan, by rising expected time. Predictions of plans
  /// of one shape are off alike; predictions of another shape may be too slow alike.
  std::vector<Neighbour> promising(const plan::Plan& plan, double plan_s) const {
    std::vector<plan::Plan> all = plan::neighbours(plan, input_.model, input_.cluster, input_.keys);
    const analyzer::Prediction own = workers_.grid().analyzer().analyze(plan);
    const double least_share =
        std::min(1.0 - memory_error, fitting_share(plan, own, input_.cluster));
    std::vector<std::optional<Neighbour>> kept(all.size());
    workers_.each(all.size(), [&](std::size_t i, Grid& grid) {
      input_.deadline.check();
      if (input_.conform) all[i] = input_.conform(std::move(all[i]));
      const analyzer::Prediction prediction = grid.analyzer().analyze(all[i]);
      if (fitting_share(all[i], prediction, input_.cluster) < least_share) return;
      const Kind kind = tuner::kind(all[i], plan);
      const double scale = plan_s / own.iteration_s;
      const double expected_s =
          prediction.iteration_s * (kind == Kind::shape ? std::min(1.0, scale) : scale);
      if (expected_s < fastest_s_ * (1.0 + expected_error(plan, all[i], kind)))
        kept[i] = {std::move(all[i]), expected_s, kind};
    });
    std::vector<Neighbour> found;
    for (std::optional<Neighbour>& one : kept)
      if (one) found.push_back(*std::move(one));
    std::ranges::stable_sort(found, {}, &Neighbour::expected_s);
    return found;
  }

  bool fits(const plan::Plan& plan) const {
    return !sample(plan, input_.model, input_.cluster, workers_.threads(), input_.deadline,
                   input_.packings, true)
                .misfit;
  }

  /// A neighbour that is faster than all plans before, if there is one.
  std::optional<plan::Plan> step(const plan::Plan& plan, double plan_s, int& simulated) {
    const int most = most_simulated(plan, input_.model);
    std::array<int, 3> tried{};  // [kind]
    const double own_first_s = first_s(plan);
    for (Neighbour& other : promising(plan, plan_s)) {
      if (other.plan == plan || std::ranges::find(refused_, other.plan) != refused_.end()) continue;
      if (tried[std::size_t(other.kind)]++ >= most) continue;
      ++simulated;
      // Few of those that are expected to take as long take less.
      if (other.kind != Kind::shape && other.expected_s > fastest_s_ * (1.0 - least_step) &&
          first_s(other.plan) > own_first_s * (1.0 - least_step))
        continue;
      const double seconds = simulated_s(other.plan);
      if (seconds >= fastest_s_ * (1.0 - least_step) || !fits(other.plan)) continue;
      fastest_s_ = seconds;
      return std::move(other.plan);
    }
    return std::nullopt;
  }

  const SearchInput& input_;
  WorkerPool& workers_;
  const std::vector<plan::Plan>& refused_;
  double fastest_s_ = infinity;
};

}  // namespace

Climb climb(const SearchInput& input, WorkerPool& workers, const std::vector<plan::Plan>& starts,
            const std::vector<plan::Plan>& refused) {
  Climb found{.plan = starts[0]};
  try {
    Climber climber(input, workers, refused);
    for (const plan::Plan& start : starts) climber.climb_from(start, found);
  } catch (const OutOfTime&) {
  }
  return found;
}

}  // namespace brume::tuner
