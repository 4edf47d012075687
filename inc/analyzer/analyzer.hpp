/// @file Time and peak memory of a stage as expressions over its strategy; time of an iteration.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "analyzer/messages.hpp"
#include "analyzer/pipeline_time.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "symbolic/expr.hpp"

namespace brume::analyzer {

using symbolic::Expr;

/// The inputs that stay fixed while a stage's strategy varies.
struct StageRole {
  bool first = true;   ///< holds the embedding
  bool last = true;    ///< holds the head
  bool layers = true;  ///< holds layers; else the embedding or the head alone
  int group = 0;       ///< group of the machine, which gives the times
  int before = 0;      ///< groups of the stages beside it; its own where there is none
  int after = 0;
  int frozen = 0;     ///< number of first blocks that are not trained
  int dense = 0;      ///< number of first layers without experts where others have them
  bool disk = false;  ///< some of what is offloaded may lie on disk; else od and ad do not count
  bool host_update = false;      ///< the node's processor may step some; else oh does not count
  bool gather_keys = false;      ///< ranks that share sequences do, else they exchange heads
  bool dispatch_tokens = false;  ///< data-parallel ranks that divide experts do, else they gather
  int mlp_tiles = 1;             ///< tiles of tokens in which a rank works on a dense MLP
  /// Slowdowns against most node pairs, of the stage's collectives over nodes and of collectives of
  /// all ranks.
  double times = 1.0, world_times = 1.0;
  int first_in_unit = 0;  ///< node of a unit of the network at which the stage begins

  /// The lists of plans whose ranks divide segments along these axes.
  model::Division division(model::AxisSet axes) const {
    return {axes, gather_keys ? model::Sharing::keys : model::Sharing::heads, dispatch_tokens,
            mlp_tiles};
  }
  bool trains_embedding() const { return first && frozen == 0; }
  /// Layers without a backward. Where there are none, formulas stay as short as they are then.
  int frozen_layers() const { return std::max(frozen - (first ? 1 : 0), 0); }
  bool trains_all_layers() const { return frozen_layers() == 0; }

  auto operator<=>(const StageRole&) const = default;
};

/// The variables of a stage's expressions, in the order in which tapes take their columns: the
/// symbols of plan::knobs, in the order of its rows.
const std::vector<std::string>& variables();

/// A term of a sum, with the name under which --explain shows it.
struct Term {
  std::string name;
  Expr value;
};

/// Each of a stage's times is the sum of a list.
using TimeTerms = PassTimesOf<std::vector<Term>>;
using TimeExpressions = PassTimesOf<Expr>;

/// One stage role under one model and profile.
struct StageExpressions {
  TimeTerms terms;
  TimeExpressions time;
  Expr peak_forward_bytes;  ///< device memory per rank
  Expr peak_backward_bytes;
  Expr host_bytes;        ///< host memory per rank
  Expr disk_bytes;        ///< per rank
  Expr persistent_bytes;  ///< device bytes that stay from step to step
  Expr kept_bytes;        ///< ... by a microbatch between its forward and its backward
};

/// Their functions remember values, so expressions of one call belong to one thread.
StageExpressions stage_expressions(const model::Config& model, const hardware::Machine& machine,
                                   StageRole role);

/// Prediction for one stage of a plan; memory is that of the ranks which it lies on.
struct StagePrediction {
  PassTimes time;
  std::int64_t peak_forward_bytes;
  std::int64_t peak_backward_bytes;
  std::int64_t host_bytes;  ///< per rank
  std::int64_t disk_bytes;  ///< per rank

  std::int64_t peak_bytes() const { return std::max(peak_forward_bytes, peak_backward_bytes); }
};

struct Prediction {
  double iteration_s;
  std::vector<StagePrediction> stages;
  std::vector<double> messages_s = {};  ///< messages_s of Pipeline
  TiedTimes tied = {};
};

struct ChunkBytes;

/// Predicts plans of one model on one machine. For one thread.
class Analyzer {
 public:
  /// The arguments must outlive the object.
  Analyzer(const model::Config& model, const hardware::Machine& machine);
  ~Analyzer();

  Prediction analyze(const plan::Plan& plan);

 private:
  class RoleTape;
  /// A microbatch's backward in two parts.
  struct SplitBackward {
    double weights_s;      ///< time of the second part
    double overhead_s;     ///< task overhead in addition to a whole backward
    double between_bytes;  ///< kept between the two parts
  };
  RoleTape& tape(const plan::Plan& plan, int stage);
  const SplitBackward& split_backward(const plan::Plan& plan, int stage);
  // Of stages in the order of variables().
  using Numbers = std::span<const std::vector<double>>;
  ChunkBytes chunk_bytes(const plan::Plan& plan, int stage, std::vector<double> numbers);
  void set_memory_by_passes(const plan::Plan& plan, int first, Numbers numbers,
                            Prediction& prediction);

  const model::Config& model_;
  const hardware::Machine& machine_;
  std::map<StageRole, std::unique_ptr<RoleTape>> tapes_;
  /// Key: group, first layer, layers, stored layers, split.
  std::map<std::tuple<std::string, int, int, int, model::Split>, SplitBackward> splits_;
  MessageTimes messages_;
};

/// The same, of one plan.
Prediction analyze(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine);

/// Device bytes that a microbatch keeps between the two parts of a split backward, for all layers
/// of a stage: inputs of their products, and gradients of the products' outputs.
double between_parts_bytes(const plan::Stage& stage, const model::Config& model);

StageRole role_of(const plan::Plan& plan, int stage, const model::Config& model,
                  const hardware::Machine& machine);

/// The values of `variables()` for one stage of a plan.
std::map<std::string, double, std::less<>> bindings(const plan::Plan& plan, int stage);

/// Formula, terms in numbers and what binds, for people.
std::string explain(const plan::Plan& plan, const model::Config& model,
                    const hardware::Machine& machine, const hardware::Cluster& cluster);

}  // namespace brume::analyzer
