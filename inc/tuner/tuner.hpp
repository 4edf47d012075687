/// @file Finds the fastest plan that fits: intra-stage Pareto fronts, an inter-stage MILP,
/// simulation of the best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "hardware/profile.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::tuner {

/// How the search went.
struct Search {
  double seconds = 0.0;
  std::int64_t policies = 0;     ///< stage strategies evaluated
  std::int64_t feasible = 0;     ///< of these, within the memory limits
  std::int64_t evaluations = 0;  ///< expression evaluations
  int milp_solves = 0;
  double gap = 0.0;  ///< proven relative distance to the optimum of the model
  int struck = 0;    ///< plans that placement refused
};

/// A plan with its prediction.
struct Candidate {
  plan::Plan plan;
  analyzer::Prediction prediction;
  double simulated_s = 0.0;              ///< event simulation of its Programs
  std::int64_t placed_device_bytes = 0;  ///< largest arena of any rank
  std::int64_t placed_host_bytes = 0;    ///< largest sum over a node's ranks
};

/// What the best plan would cost without one knob.
struct Ablation {
  std::string knob;                   ///< "recomputation", "optimizer offload", ...
  std::optional<double> iteration_s;  ///< none: nothing fits without it
};

struct Result {
  std::vector<Candidate> best;  ///< best first, at least one
  std::vector<Ablation> ablations;
  std::string
      nearest_infeasible;  ///< the fastest plan that misses the limit, and by how many bytes
  Search search;
};

/// @throws Error(infeasible) when nothing fits: the plan that misses by least, by how many bytes,
/// and what would fit
Result tune(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
            const hardware::Profile& profile, const deck::SearchKeys& search);

/// For people: the plan as a table, why it was chosen, next best, what did not fit.
std::string report(const Result& result, const hardware::Cluster& cluster);

}  // namespace brume::tuner
