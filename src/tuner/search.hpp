/// @file Best-first search over shapes: the fastest plans of the model, one after the other.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

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
  int shape;
  double iteration_s;  ///< by the model
  double bound_s;      ///< proven: no plan that is left is faster
};

/// The same search where memory is saved as little as its lists allow. Saving memory costs time, in
/// a middle microbatch as in the first and last one, so this bounds every other strategy from
/// below.
deck::SearchKeys saving_nothing(deck::SearchKeys keys);

class Searcher {
 public:
  Searcher(Question question, Grid& grid, const Stopwatch& watch);

  /// The fastest plan that is left; none when nothing fits. It stays until it is struck.
  std::optional<Found> next();

  /// Takes one stage's strategy out: it was seen not to fit, or has been reported.
  void strike(const Found& found, int stage);

  /// Takes out the whole shape of a plan.
  void drop(const Found& found);

  const Search& statistics() const { return statistics_; }

  /// The plan whose fullest device needs least, whatever the limit; none when no shape is possible.
  std::optional<plan::Plan> smallest();

 private:
  /// What is known of one shape. At first a bound only; then what fits; then its best choice.
  struct Candidate {
    Shape shape;
    Pipeline feasible;  ///< all strategies within the limits, by stage
    Solution solution;
    bool expanded = false;
    bool solved = false;
    double key_s() const { return solved ? solution.best->iteration_s : solution.bound_s; }
    bool hopeless() const { return key_s() == std::numeric_limits<double>::infinity(); }
  };

  Pipeline pipeline_of(const Shape& shape) const;
  std::vector<Point> points(const Shape& shape, int stage, const deck::SearchKeys& keys);
  void bound(Candidate& candidate);
  void expand(Candidate& candidate);
  void estimate(Candidate& candidate);
  void solve(Candidate& candidate);
  double seconds_left() const;
  plan::Plan plan_of(const Shape& shape, const std::vector<Point>& stages) const;

  Question question_;
  const Stopwatch& watch_;
  Grid& grid_;
  std::vector<Candidate> candidates_;
  Search statistics_;
};

}  // namespace brume::tuner
