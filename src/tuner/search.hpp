/// @file Best-first search over frames: the fastest plans of the model, one after the other.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "frame_search.hpp"

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

/// A plan the search found, and where to strike it.
struct Found {
  plan::Plan plan;
  std::size_t frame;
  double iteration_s;  ///< by the model
  double bound_s;      ///< proven: no plan that is left is faster
  bool confirmed;      ///< GLPK came to the same bound
  bool closed;         ///< the bound is as near as asked for; else the time was over before
};

plan::Plan plan_of(const Question& question, const Frame& frame, const std::vector<Point>& stages);

/// A plan that needs little memory, whatever the limit of a device; none when nothing can be split.
/// @throws OutOfTime when none is known by then
std::optional<plan::Plan> smallest_plan(const Question& question, Grid& grid);

/// Frames that may hold the fastest plan are looked at more closely: prices of devices and layers
/// bound each interval of the slowest stage's time, then a dynamic program under its end gives a
/// choice and a bound; intervals that may hide a faster choice are halved.
class Searcher {
 public:
  Searcher(Question question, Grid& grid);

  /// The fastest plan that is left; when the deadline has passed, the fastest known. It stays until
  /// it is struck. None when none is left, see done(), or known.
  std::optional<Found> next();

  /// Whether all plans are struck, or seen not to fit.
  bool done() const;

  /// Proven: no plan that is left is faster [s].
  double bound_s() const;

  /// Takes one stage's strategy out: it was seen not to fit, or has been reported.
  void strike(const Found& found, int stage);

  /// Takes out the whole frame of a plan.
  void drop(const Found& found);

  void add_to(Search& statistics) const;

 private:
  /// The open interval that may hold the fastest plan.
  struct Front {
    FrameSearch* candidate = nullptr;
    std::size_t interval = 0;
    double bound_s = infinity;
  };

  void build_frames();
  void work_on(FrameSearch& candidate, Interval interval);
  Found found(const FrameSearch& best, bool closed) const;
  void take(FrameSearch& candidate, Interval interval, const Pipeline& pipeline,
            const Least& least);
  void open_faster(FrameSearch& candidate, const Interval& interval, const Pipeline& pipeline,
                   const Least& least);
  void confirm(FrameSearch& candidate);

  Front most_promising();
  FrameSearch* fastest();
  double known_s() const;

  Question question_;
  Grid& grid_;
  Axes axes_;
  std::vector<Frame> unbuilt_;  ///< in reverse
  std::deque<FrameSearch> frames_;
  int milp_solves_ = 0;
  std::int64_t programs_ = 0;
};

}  // namespace brume::tuner
