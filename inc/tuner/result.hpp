/// @file Result of a search: plans with their predictions, reasons and statistics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/error.hpp"
#include "plan/plan.hpp"
#include "schedule/account.hpp"

namespace brume::tuner {

/// How the search went.
struct Search {
  double seconds = 0.0;
  std::int64_t policies = 0;     ///< stage strategies evaluated
  std::int64_t feasible = 0;     ///< strategies within the memory limits
  std::int64_t evaluations = 0;  ///< expression evaluations
  std::int64_t dynamic_programs = 0;
  int milp_solves = 0;
  int simulated = 0;     ///< plans that were simulated, most of them coarsely
  int other_orders = 0;  ///< configurations of other orders than 1F1B, which nothing is proven of
  /// The distance of the model's bound for all plans of 1F1B from the best plan's time, relative to
  /// that; at most that of `least_work_s`, which it is where the model bounds not all.
  double gap = 0.0;
  bool bounds_all = true;  ///< false: stages with frozen layers were priced as if all were trained
  /// Least time of computing alone [s]: no plan is simulated below that.
  double least_work_s = 0.0;
  bool confirmed = false;  ///< GLPK came to the same bound as the dynamic program
  int refused = 0;         ///< plans that placement refused
  int adapted = 0;         ///< plans like given ones that fit by prediction
  double limit_s = 0.0;    ///< search.time_limit_s
  bool cut_short = false;  ///< it ended the search: the gap is wider than asked for, or fewer plans
                           ///< were simulated
  bool interrupted = false;  ///< somebody did
};

/// Memory that a group's ranks hold.
struct GroupMemory {
  std::int64_t device_bytes = 0;  ///< largest arena of a rank
  std::int64_t host_bytes = 0;    ///< largest sum over a node's ranks
  std::int64_t disk_bytes = 0;    ///< the same
};

/// A plan with its prediction.
struct RankedPlan {
  plan::Plan plan;
  analyzer::Prediction prediction;
  /// Event simulation of all ranks' Programs, or of one of each stage; none: too large.
  std::optional<double> simulated_s;
  std::optional<schedule::Account> account;  ///< account of these Programs
  std::vector<GroupMemory> placed;           ///< memory per group
  /// The closed form's bytes for the largest stage, if placement is off by more than 1 % and
  /// 1 MiB: the prediction's peaks are then the placed ones.
  std::optional<std::int64_t> closed_form_bytes;

  std::int64_t placed_device_bytes() const;  ///< largest arena of any rank
  std::int64_t placed_host_bytes() const;    ///< largest sum over a node's ranks
  std::int64_t placed_disk_bytes() const;    ///< the same

  /// The time by which plans are ranked [s].
  double seconds() const { return simulated_s.value_or(prediction.iteration_s); }
};

/// An upper bound of the iteration time of the best plan without one knob.
struct Ablation {
  std::string knob;                   ///< "recomputation", "optimizer offload", ...
  std::optional<double> iteration_s;  ///< the bound [s]; none: nothing fits without the knob
};

/// A key of the deck with which an iteration would take less time.
struct Faster {
  std::string key;
  int value;
  double iteration_s;
};

struct Result {
  std::vector<RankedPlan> best;  ///< best first, at least one
  std::vector<Ablation> ablations;
  std::vector<std::string> untried;  ///< knobs that there was no time to look for a plan without
  /// The fastest plan that misses the limit, and by how many bytes.
  std::string nearest_infeasible;
  std::vector<Faster> faster;  ///< fewer nodes, or a larger batch that divides better
  Search search;
};

/// Why there is no plan, in a word for tables.
class Infeasible : public Error {
 public:
  Infeasible(std::string word, const std::string& what)
      : Error(Failure::infeasible, what), word_(std::move(word)) {}
  const std::string& word() const { return word_; }

 private:
  std::string word_;
};

}  // namespace brume::tuner
