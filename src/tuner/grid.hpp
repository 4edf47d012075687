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

#include "analyzer/messages.hpp"
#include "base/deadline.hpp"
#include "space.hpp"

namespace brume::tuner {

/// Shares that leave the device, of weights, gradients, optimizer state and activations; then of
/// the last two, of what leaves, what lies on disk.
using Ratios = std::array<double, 6>;
inline constexpr std::size_t first_on_disk = 4;

/// One strategy of a stage and what it costs.
struct Point {
  int layout = 0;  ///< of the frame
  int layers = 0;
  int ckpt_layers = 0;
  int zero_level = 0;
  Ratios ratios{};
  double stable_s = 0.0;
  double delta_s = 0.0;        ///< what the first and last microbatch add, where nothing hides it
  double less_s = 0.0;         ///< by how much their passes are shorter than others
  double alone_delta_s = 0.0;  ///< what they add where nothing hides updates
  double device_bytes = 0.0;   ///< peak, per rank
  double host_bytes = 0.0;     ///< per rank
  double disk_bytes = 0.0;     ///< per rank

  double optim_disk_ratio() const { return ratios[2] * ratios[4]; }
  double act_disk_ratio() const { return ratios[3] * ratios[5]; }
  /// The first forward and the last backward, with their updates as far as they are waited for [s].
  double whole_s() const { return stable_s + delta_s; }
  /// The same where nothing hides updates.
  double alone_s() const { return stable_s + alone_delta_s; }
  /// Both passes of the microbatch that is fastest here.
  double shortest_s() const { return stable_s - less_s; }
  bool same_strategy(const Point& other) const;
};

/// Where in a pipeline a stage stands.
struct Seat {
  const Frame& frame;
  int layout;
  int after;  ///< stages after it

  const Layout& mesh() const { return frame.layouts[std::size_t(layout)]; }
  /// Its neighbours are taken to be of its own group; MessageTable knows what others cost.
  analyzer::StageRole role() const;
};

/// The strategies a search may choose from, each list in rising order.
struct Axes {
  Axes(const deck::SearchKeys& search);
  /// Without a disk.
  Axes in_memory() const;

  std::vector<int> zero_levels;
  std::array<std::vector<double>, std::tuple_size_v<Ratios>> ratios;
  bool recompute;
};

/// Along which axes neither time nor, but for shares on disk, host bytes fall; where one may fall,
/// all values are tried.
using Rising = std::array<bool, std::tuple_size_v<Ratios>>;

/// The expressions of all stage roles of one model on one machine. Pricing throws OutOfTime when
/// the deadline has passed.
class Grid {
 public:
  /// What it is given must outlive it.
  Grid(const model::Config& model, const hardware::Machine& machine, const Deadline& deadline);

  void price_time(const Seat& seat, std::span<Point> points);    ///< sets stable and delta
  void price_memory(const Seat& seat, std::span<Point> points);  ///< sets bytes on each tier

  /// Seconds of messages between stages of these layouts, which share a node where they can
  /// (analyzer/messages.hpp).
  double stream_s(const Layout& from, const Layout& to);
  analyzer::TiedTimes tied(const Layout& first, const Layout& last);

  /// The analyzer's prediction of a plan [s].
  double predicted_s(const plan::Plan& plan) { return analyzer_.analyze(plan).iteration_s; }
  analyzer::Analyzer& analyzer() { return analyzer_; }

  /// Looks at random strategies of a seat and the next one along each axis of ratios.
  Rising rising(const Seat& seat, const Axes& axes);

  std::int64_t evaluations() const { return evaluations_; }
  const model::Config& model() const { return model_; }
  const hardware::Machine& machine() const { return machine_; }

 private:
  struct Role {
    symbolic::Tape time;    ///< stable, delta, less, alone delta
    symbolic::Tape memory;  ///< forward peak, backward peak, host, disk
  };
  const Role& role(analyzer::StageRole wanted);
  void evaluate(const symbolic::Tape& tape, const Seat& seat, std::span<const Point> points);

  const model::Config& model_;
  const hardware::Machine& machine_;
  const Deadline& deadline_;
  std::map<analyzer::StageRole, std::unique_ptr<Role>> roles_;
  std::map<std::tuple<analyzer::StageRole, int, int, int, int, int>, Rising> rising_;
  analyzer::Analyzer analyzer_;
  std::map<std::pair<Layout, Layout>, double> streams_s_;
  std::map<std::pair<Layout, Layout>, analyzer::TiedTimes> tied_;
  std::vector<std::vector<double>> inputs_, outputs_;  ///< columns of the last evaluation
  std::int64_t evaluations_ = 0;
};

}  // namespace brume::tuner
