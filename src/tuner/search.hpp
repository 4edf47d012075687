/// @file Best-first search over frames: the fastest plans of the model, one after the other.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "capacity.hpp"
#include "fronts.hpp"
#include "pipeline.hpp"

namespace brume::tuner {

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// What a search is about.
struct Question {
  const model::Config& model;
  int global_batch;
  hardware::Cluster cluster;
  const hardware::Profile& profile;
  deck::SearchKeys keys;
};

/// A plan the search found, and where to strike it.
struct Found {
  plan::Plan plan;
  std::size_t frame;
  double iteration_s;  ///< by the model
  double bound_s;      ///< proven: no plan that is left is faster
  bool confirmed;      ///< GLPK came to the same bound
};

plan::Plan plan_of(const Question& question, const Frame& frame, const std::vector<Point>& stages);

/// A plan that needs little memory, whatever the limit of a device; none when nothing can be split.
std::optional<plan::Plan> smallest_plan(const Question& question, Grid& grid);

/// Each frame is bounded by its fastest strategies, memory or not. Frames that may hold the fastest
/// plan are looked at more closely: the slowest stage's time is cut into intervals; prices of
/// devices and layers bound each, then a dynamic program under its end gives a choice and a bound;
/// intervals that may hide a faster choice are halved.
class Searcher {
 public:
  Searcher(Question question, Grid& grid, const Stopwatch& watch);

  /// The fastest plan that is left; none when nothing fits. It stays until it is struck.
  std::optional<Found> next();

  /// Takes one stage's strategy out: it was seen not to fit, or has been reported.
  void strike(const Found& found, int stage);

  /// Takes out the whole frame of a plan.
  void drop(const Found& found);

  void add_to(Search& statistics) const;

 private:
  /// Plans whose slowest stage takes more than `over_s`, at most `most_s`.
  struct Interval {
    double over_s, most_s;
    double bound_s;                               ///< none of them is faster
    bool limited = false;                         ///< the bound knows of memory limits
    std::optional<Prices> prices = std::nullopt;  ///< their bound is counted in
  };

  /// What is known of one frame.
  struct Candidate {
    Candidate(Frame frame_, Grid& grid, const Axes& axes, Limits limits)
        : frame(std::move(frame_)), fronts(grid, frame, axes, limits) {}
    Candidate(const Candidate&) = delete;

    Frame frame;
    Fronts fronts;
    bool host_matters = false;
    bool confirmed = false;
    double fastest_stage_s = 0.0;  ///< no plan's slowest stage is faster
    double other_s = 0.0;          ///< what comes beside G - 1 times that, at least
    double least_bound_s = 0.0;
    std::vector<std::vector<std::vector<Point>>> unlimited;  ///< [layout][role]
    std::vector<Interval> open;
    std::optional<Choice> best;
  };

  /// The open interval that may hold the fastest plan.
  struct Front {
    Candidate* candidate = nullptr;
    std::size_t interval = 0;
    double bound_s = infinity;
  };

  const std::vector<Point>& unlimited(const Candidate& candidate, int layout, int after) const;
  Prices prices(const Candidate& candidate, double threshold_s) const;
  Rooms rooms(const Candidate& candidate, double threshold_s) const;
  Pipeline pipeline_of(const Candidate& candidate) const;
  Pipeline unlimited_pipeline(const Candidate& candidate) const;
  Pipeline limited_pipeline(Candidate& candidate, double most_s);

  void bound(Candidate& candidate);
  void work_on(Candidate& candidate, std::size_t interval);
  void take(Candidate& candidate, Interval interval, const Pipeline& pipeline, const Least& least);
  void confirm(Candidate& candidate);
  void reopen(Candidate& candidate);

  Front most_promising();
  Candidate* fastest();
  double known_s() const;
  double seconds_left() const;

  Question question_;
  const Stopwatch& watch_;
  Grid& grid_;
  Axes axes_;
  Limits limits_;
  std::deque<Candidate> candidates_;
  int milp_solves_ = 0;
  std::int64_t programs_ = 0;
};

}  // namespace brume::tuner
