/// @file Costs of many strategies at once: the analyzer's expressions, compiled.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/deadline.hpp"
#include "plan/knobs.hpp"
#include "space.hpp"

namespace brume::tuner {

/// What does not stay on the device, in the order of plan::shares; parts of what leaves, of that.
using Ratios = std::array<double, plan::num_shares>;

/// One strategy of a stage and what it costs.
struct Point {
  int layout = 0;  ///< of the frame
  int layers = 0;
  int ckpt_layers = 0;
  int stored_layers = 0;
  bool stores_rest = false;  ///< all layers that are not recomputed are stored
  int zero_level = 0;
  int replicas = 1;
  Ratios ratios{};
  double stable_s = 0.0;
  double delta_s = 0.0;        ///< what the first and last microbatch add, where nothing hides it
  double less_s = 0.0;         ///< by how much the fastest microbatch's messages leave sooner
  double alone_delta_s = 0.0;  ///< what they add where nothing hides updates
  double device_bytes = 0.0;   ///< peak, per rank
  double host_bytes = 0.0;     ///< per rank
  double disk_bytes = 0.0;     ///< per rank

  /// A share of all that there is of its kind, as a plan has it.
  double ratio(std::size_t share) const {
    const auto whole = plan::shares[share].whole;
    return whole ? ratios[*whole] * ratios[share] : ratios[share];
  }
  /// Whether the parts of each share are within it together.
  bool parts_fit() const;
  /// The same strategy of one of so many chunks of its layers, the first of which may have one
  /// layer more than others.
  Point of_chunk(int chunk, int chunks) const;
  /// Sets what the strategy chooses.
  void apply_to(plan::Stage& stage) const;
  /// The first forward and the last backward until their messages leave, with their updates as far
  /// as they are waited for [s].
  double whole_s() const { return stable_s + delta_s; }
  /// The same to their end, where nothing hides updates.
  double alone_s() const { return stable_s + alone_delta_s; }
  /// Both passes of the microbatch that is fastest here, until their messages leave.
  double shortest_s() const { return stable_s - less_s; }
  /// What it chooses.
  auto knobs() const {
    return std::tie(layout, layers, ckpt_layers, stored_layers, zero_level, replicas, ratios);
  }
  /// How much of its layers is made again: -l none, 0 what is cheap, l all. A layer is recomputed
  /// in full only where none is stored, for that costs more time a byte. Where the rest is stored,
  /// 0 is none.
  int level() const { return stores_rest ? ckpt_layers : ckpt_layers - stored_layers; }
  void set_level(int level) {
    ckpt_layers = std::max(level, 0);
    stored_layers = stores_rest ? layers - ckpt_layers : std::max(-level, 0);
  }
  /// Takes each of the times in which points compete that another one has less of.
  void take_less_of(const Point& other);
  auto times() { return std::tie(stable_s, delta_s, less_s, alone_delta_s); }
  /// Whether one of the times in which points compete is less, by more than rounding.
  bool is_faster_than(const Point& other) const;
};

/// A stage of this layout, without savings.
plan::Stage stage_of(const Layout& mesh, const std::string& group);

/// Where in a pipeline a stage stands.
struct Seat {
  const Frame& frame;
  int layout;
  int after;  ///< stages after it

  const Layout& mesh() const { return frame.layouts[std::size_t(layout)]; }
  /// Its neighbours are taken to be of its own group; MessageTable knows what others cost.
  analyzer::StageRole role() const;
};

/// Ends of what Point::level() may be.
struct Levels {
  int least, most;
};

/// The strategies a search may choose from, each list in rising order.
struct Axes {
  Axes(const deck::SearchKeys& search);
  /// Without a disk.
  Axes in_memory() const;
  /// Of backwards in two parts: gradients are added up where they are kept, and between the two
  /// parts a layer that is recomputed keeps all.
  Axes of_split_backwards() const;

  /// How a stage of this layout may shard its state; the first one shards least.
  struct Sharding {
    int zero_level, replicas;
  };
  std::vector<Sharding> shardings(const Layout& mesh) const;

  std::vector<int> zero_levels;
  std::array<std::vector<double>, plan::num_shares> ratios;
  bool recompute, store, store_rest, shard_within_node;

  Levels levels(int layers) const { return {store ? -layers : 0, recompute ? layers : 0}; }
  /// Levels between which times are lines, but for what a stage's first and last layer differ by
  /// from others.
  std::vector<int> ends(int layers) const;
  /// The same, but of few layers all levels.
  std::vector<int> turning_levels(int layers) const;
};

/// The expressions of all stage roles of one model on one machine. Pricing throws OutOfTime when
/// the deadline has passed.
class Grid {
 public:
  /// What it is given must outlive it.
  Grid(const model::Config& model, const hardware::Machine& machine, const Deadline& deadline);
  ~Grid();

  void price_time(const Seat& seat, std::span<Point> points);    ///< sets stable and delta
  void price_memory(const Seat& seat, std::span<Point> points);  ///< sets bytes on each tier

  /// Seconds of messages between stages of these layouts, which share a node where they can
  /// (analyzer/messages.hpp).
  double stream_s(const Layout& from, const Layout& to);
  /// What the gradient of a tied head's table takes home after the last stage's last backward.
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
  const std::vector<double>& values(const Seat& seat);
  void evaluate(Priced& priced, const Seat& seat, std::span<const Point> points);
  void add_between_parts(const Seat& seat, std::span<const Point> points);

  const model::Config& model_;
  const hardware::Machine& machine_;
  const Deadline& deadline_;
  std::map<analyzer::StageRole, std::unique_ptr<Role>> roles_;
  analyzer::Analyzer analyzer_;
  std::map<std::pair<Layout, Layout>, double> streams_s_;
  std::map<std::tuple<Layout, Layout, bool>, double> tied_gradients_s_;
  std::map<Layout, std::array<double, 2>> between_parts_bytes_;  ///< of a layer, of a stored one
  /// Variables of a seat, by layout, microbatches, run-ahead, those in flight, whether there are
  /// others.
  std::map<std::tuple<Layout, int, int, double, bool>, std::vector<double>> values_;
  std::array<std::vector<double>, 4> outputs_;  ///< columns of the last evaluation
  std::array<std::vector<double>, 4> results_;  ///< the same in the order of its batches
  std::vector<std::vector<double>> columns_;    ///< of its last batch
  std::int64_t evaluations_ = 0;
};

}  // namespace brume::tuner
