/// @file Time and peak memory of a stage as expressions over its strategy; time of an iteration.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analyzer/pipeline_time.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "symbolic/expr.hpp"

namespace brume::analyzer {

using symbolic::Expr;

/// What is fixed while a stage's strategy varies.
struct StageRole {
  bool first = true;  ///< holds the embedding
  bool last = true;   ///< holds the head
  int group = 0;      ///< of the machine, whose times it takes
  int before = 0;     ///< groups of the stages beside it; its own where there is none
  int after = 0;
  int other_end = 0;  ///< group of the last stage, for the first one, and the reverse
  bool disk = false;  ///< some of what is offloaded may lie on disk; else od and ad do not count

  auto operator<=>(const StageRole&) const = default;
};

/// The variables of a stage's expressions, in the order in which tapes take their columns.
///
///   l layers · c recomputed layers · b microbatch · dp · tp · z ZeRO level · w, g, o, a offload
///   ratios of weights, gradients, optimizer state, activations · od, ad shares of the last two on
///   disk · p earlier microbatches in flight · r microbatches by which a stage runs ahead of the
///   next · G microbatches · S stages · n nodes and m ranks per node of the stage's mesh
const std::vector<std::string>& variables();

/// A term of a sum, with the name under which --explain shows it.
struct Term {
  std::string name;
  Expr value;
};

/// One stage role under one model and profile.
struct StageExpressions {
  std::vector<Term> stable_terms;  ///< [s] summed: a middle microbatch
  std::vector<Term> delta_terms;   ///< [s] summed: what the first and last microbatch add
  Expr stable_s;
  Expr delta_s;
  Expr peak_forward_bytes;  ///< device memory per rank
  Expr peak_backward_bytes;
  Expr host_bytes;  ///< host memory per rank
  Expr disk_bytes;  ///< per rank
};

/// Their functions remember values, so expressions of one call belong to one thread.
StageExpressions stage_expressions(const model::Config& model, const hardware::Machine& machine,
                                   StageRole role);

/// The term "pipeline messages" of a stage's stable time [s], in b, tp, r, G, S, n and m.
Expr messages_s(const model::Config& model, const hardware::Machine& machine, StageRole role);

/// Prediction for one stage of a plan.
struct StagePrediction {
  StageTime time;
  std::int64_t peak_forward_bytes;
  std::int64_t peak_backward_bytes;
  std::int64_t host_bytes;  ///< per rank
  std::int64_t disk_bytes;  ///< per rank

  std::int64_t peak_bytes() const { return std::max(peak_forward_bytes, peak_backward_bytes); }
};

struct Prediction {
  double iteration_s;
  std::vector<StagePrediction> stages;
};

Prediction analyze(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine);

StageRole role_of(const plan::Plan& plan, int stage, const hardware::Machine& machine);

/// The values of `variables()` for one stage of a plan.
std::map<std::string, double, std::less<>> bindings(const plan::Plan& plan, int stage);

/// Formula, terms in numbers and what binds, for people.
std::string explain(const plan::Plan& plan, const model::Config& model,
                    const hardware::Machine& machine, const hardware::Cluster& cluster);

}  // namespace brume::analyzer
