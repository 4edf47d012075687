/// @file Search within one pipeline configuration: its strategies, their bounds, its candidates.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/numbers.hpp"
#include "capacity.hpp"
#include "messages.hpp"
#include "plan/plan.hpp"
#include "point.hpp"
#include "search_input.hpp"

namespace brume::tuner {

class Fronts;
class Grid;
struct Assignments;
struct Pipeline;
struct Prices;

/// An assignment as a plan, with its predicted time.
struct Candidate {
  plan::Plan plan;
  std::vector<Point> stages;
  double predicted_s = 0.0;  ///< predicted by the analyzer
};

/// A configuration is bounded by its fastest strategies, memory or not: at once by what the slowest
/// stage takes, then by a dynamic program over them; then by one over the strategies that fit,
/// whose assignments are its candidates.
class PipelineSearch {
 public:
  /// `input` must outlive it. Configurations that differ in their number of stages only share
  /// fronts.
  /// @param bound_s  bound that another search has proven
  PipelineSearch(const SearchInput& input, std::shared_ptr<Fronts> fronts, PipelineConfig config,
                 double bound_s);
  PipelineSearch(const PipelineSearch&) = delete;

  const PipelineConfig& config() const { return config_; }
  const Fronts& fronts() const { return *fronts_; }

  /// Proven: no plan of the configuration that has not been returned is faster [s].
  double bound_s() const { return bound_s_; }
  /// Whether it has looked at its fastest strategies.
  bool begun() const { return step_ != Step::begin; }
  /// Whether there may be plans that have not been returned.
  bool open() const { return step_ != Step::done; }

  /// Fronts that stages may take.
  struct Part {
    int layout, after, least_layers, most_layers;
    double threshold_s;
  };

  // Each step raises the bound, or finds plans whose bound is below `known_s`. Its parts may be
  // given different grids; any may be out of time.

  /// Looks at the fastest strategies: one at a time of those configurations that share fronts.
  void begin(Grid& grid);
  /// Plans the next step. @return the fronts to prepare
  const std::vector<Part>& plan(double known_s);
  StagePosition position(const Part& part) const { return {config_, part.layout, part.after}; }
  void prepare(Grid& grid, const Part& part);
  /// Takes the step that is prepared; nobody may change the fronts meanwhile. @return new
  /// candidates
  std::vector<Candidate> work(Grid& grid);
  /// Has the next fronts count host bytes, where the step found that they matter.
  void settle();

  /// Takes one stage's strategy out: it was seen not to fit.
  void exclude(int after, const Point& point);
  /// Requires from now on that the predicted memory fits in this share of the limit.
  void take_less_memory(double share);

  /// Whether it holds no plan, so that nothing bounds it.
  bool holds_nothing() const { return step_ == Step::done && bound_s_ == infinity; }
  /// Whether its fastest strategies have bounded it, so that strategies that fit are next.
  bool bounded() const { return step_ == Step::limited || next_step_ == Step::limited; }
  /// Continues another search for the configuration.
  /// @param error  memory error that its plans were seen to have
  void restore(bool done, bool bounded, double bound_s, double error);

  /// The bound that GLPK proves, where few strategies may be part of a plan below `known_s`.
  /// @throws OutOfTime
  std::optional<double> confirm(Grid& grid, double known_s);

  std::int64_t programs() const { return programs_; }

 private:
  enum class Step { begin, unlimited, limited, done };
  using Thresholds = std::vector<double>;  ///< [stages after]
  /// The step that is prepared.
  struct Prepared {
    double known_s, cutoff_s;
    Thresholds thresholds_s;
    std::vector<Part> parts;
  };

  void hold_nothing();
  void reopen();
  Prices prices(double threshold_s) const;
  Pipeline empty_pipeline();
  Pipeline unlimited_pipeline();
  Pipeline limited_pipeline(const std::vector<Part>& parts);
  std::vector<Part> parts(const Thresholds& thresholds_s) const;
  std::span<const Point> unlimited(int layout, int after) const;
  StageCapacities capacities(const Thresholds& thresholds_s) const;
  Thresholds thresholds(double cutoff_s) const;
  int most_of_others(const Capacity& capacity, int layout, int after) const;
  std::vector<Candidate> candidates(Grid& grid, const Pipeline& pipeline,
                                    const Assignments& assignments, double known_s);

  const SearchInput& input_;
  PipelineConfig config_;
  std::shared_ptr<Fronts> fronts_;
  std::optional<MessageTable> messages_;
  /// [layout][role] points of the fronts, one for each number of layers
  std::vector<std::array<std::span<const Point>, 4>> unlimited_;
  Step step_ = Step::begin;
  Step next_step_ = Step::unlimited;  ///< step after the first one
  std::optional<Prepared> prepared_;
  std::size_t ends_tried_ = 0;  ///< cutoffs under which this step found nothing
  double bound_s_;
  double fastest_layer_s_ = infinity, shortest_layer_s_ = infinity;  ///< least time of a layer
  double longest_early_send_s_ = 0.0;  ///< most by which a stage's passes may send early
  bool host_matters_ = false;
  std::size_t most_labels_;
  std::int64_t programs_ = 0;
};

}  // namespace brume::tuner
