/// @file One frame of a search: its strategies, the bounds that follow from them, what is open.
#pragma once

#include <optional>
#include <vector>

#include "capacity.hpp"
#include "crossings.hpp"
#include "fronts.hpp"
#include "pipeline.hpp"

namespace brume::tuner {

/// What a search is about, and how long it may take.
struct Question {
  const model::Config& model;
  int global_batch;
  hardware::Cluster cluster;
  const hardware::Machine& machine;
  deck::SearchKeys keys;
  std::size_t most_labels;  ///< of a state of the dynamic program before some are merged
  const Deadline& deadline;
};

/// Plans whose slowest stage takes more than `over_s`, at most `most_s`.
struct Interval {
  double over_s, most_s;
  double bound_s;                               ///< none of them is faster
  std::size_t most_labels;                      ///< of a state when it is looked at
  bool limited = false;                         ///< the bound knows of memory limits
  std::optional<Prices> prices = std::nullopt;  ///< their bound is counted in
};

/// A frame is bounded by its fastest strategies, memory or not. The slowest stage's time is cut
/// into intervals, each of which asks for prices and for pipelines of the points that it allows.
class FrameSearch {
 public:
  /// `question` and `axes` must outlive it.
  FrameSearch(const Question& question, Grid& grid, const Axes& axes, Frame frame);
  FrameSearch(const FrameSearch&) = delete;

  const Frame& frame() const { return frame_; }
  Fronts& fronts() { return fronts_; }
  const Fronts& fronts() const { return fronts_; }

  /// No plan's slowest stage is faster.
  double fastest_stage_s() const { return fastest_stage_s_; }
  /// What comes beside G - 1 times that, at least.
  double other_s() const { return other_s_; }

  /// A bound on the sum of stable times, memory or not.
  Prices prices(double threshold_s) const;
  /// Without memory limits, between any neighbours.
  Pipeline unlimited_pipeline() const;
  /// The points that stages of at most `most_s` may take, as far as layers and devices can add up.
  Pipeline limited_pipeline(double most_s);
  Pipeline empty_pipeline() const;

  /// All intervals again, none faster than `least_s`.
  void reopen(double least_s);

  std::vector<Interval> open;
  std::optional<Choice> best;
  bool host_matters = false;
  bool confirmed = false;

 private:
  void bound();
  const std::vector<Point>& unlimited(int layout, int after) const;
  Rooms rooms(double threshold_s) const;
  int most_of_others(const Capacity& room, int layout, int after) const;

  const Question& question_;
  Frame frame_;
  Fronts fronts_;
  Crossings crossings_;
  double fastest_stage_s_ = 0.0;
  double other_s_ = 0.0;
  double least_bound_s_ = 0.0;
  std::vector<std::vector<std::vector<Point>>> unlimited_;  ///< [layout][role]
};

}  // namespace brume::tuner
