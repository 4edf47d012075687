/// @file Costs of many strategies at once: the analyzer's expressions, compiled.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/deadline.hpp"
#include "point.hpp"

namespace brume::tuner {

/// The expressions of all stage roles of one model on one machine. Pricing throws OutOfTime when
/// the deadline has passed.
class Grid {
 public:
  /// The arguments must outlive the object.
  Grid(const model::Config& model, const hardware::Machine& machine, const Deadline& deadline);
  ~Grid();

  /// Sets the points' four times.
  void price_time(const StagePosition& position, std::span<Point> points);
  /// Sets the points' bytes on each tier.
  void price_memory(const StagePosition& position, std::span<Point> points);

  /// Seconds of messages between stages of these layouts, which share a node where they can
  /// (analyzer/messages.hpp).
  double stream_s(const Layout& from, const Layout& to);
  /// Seconds until the gradient of a tied head's table is back on the first stage, after the last
  /// stage's last backward.
  /// @param on_one_node  whether the first and the last stage may share one
  double tied_gradient_s(const Layout& first, const Layout& last, bool on_one_node);

  /// The analyzer's prediction of a plan [s].
  double predicted_s(const plan::Plan& plan) { return analyzer_.analyze(plan).iteration_s; }
  analyzer::Analyzer& analyzer() { return analyzer_; }

  std::int64_t evaluations() const { return evaluations_; }
  const model::Config& model() const { return model_; }
  const hardware::Machine& machine() const { return machine_; }

 private:
  /// Four outputs of a role, and what strategies have in common that were priced.
  struct Priced;
  struct Role;
  Role& role(analyzer::StageRole wanted);
  const std::vector<double>& values(const StagePosition& position);
  void evaluate(Priced& priced, const StagePosition& position, std::span<const Point> points);
  void add_between_parts(const StagePosition& position, std::span<const Point> points);

  const model::Config& model_;
  const hardware::Machine& machine_;
  const Deadline& deadline_;
  std::map<analyzer::StageRole, std::unique_ptr<Role>> roles_;
  analyzer::Analyzer analyzer_;
  std::map<std::pair<Layout, Layout>, double> streams_s_;
  std::map<std::tuple<Layout, Layout, bool>, double> tied_gradients_s_;
  /// Bytes of a layer, and of a stored layer.
  std::map<Layout, std::array<double, 2>> between_parts_bytes_;
  /// Variables of a position, by layout, microbatches, run-ahead, those in flight, whether there
  /// are others.
  std::map<std::tuple<Layout, int, int, double, bool>, std::vector<double>> values_;
  std::array<std::vector<double>, 4> outputs_;  ///< columns of the last evaluation
  std::array<std::vector<double>, 4> results_;  ///< the same in the order of its batches
  std::vector<std::vector<double>> columns_;    ///< columns of its last batch
  std::int64_t evaluations_ = 0;
};

}  // namespace brume::tuner
