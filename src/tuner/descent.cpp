#include "descent.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

namespace brume::tuner {
namespace {

constexpr int most_given = 3;           ///< layers
constexpr std::size_t most_timed = 32;  ///< neighbours of an assignment, those of the least bounds
constexpr int most_steps = 16, most_in_vain = 4;
constexpr double bound_error = 0.002;  ///< most by which a bound may exceed a prediction
constexpr int most_far = 1;  ///< steps without gain, while the fastest known plan is faster

struct ByKey {
  bool operator()(const std::vector<Point>& a, const std::vector<Point>& b) const {
    return std::ranges::lexicographical_compare(a, b, {}, &Point::key, &Point::key);
  }
};

/// The neighbours of an assignment whose bound is below a time.
class Neighbours {
 public:
  Neighbours(const Pipeline& pipeline, const std::vector<Point>& stages, double below_s)
      : pipeline_(pipeline), stages_(stages), below_s_(below_s) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      change(i);
      for (std::size_t to = 0; to < stages_.size(); ++to)
        for (int layers = 1; to != i && layers <= most_given; ++layers) give(i, to, layers);
    }
  }

  /// Returns the neighbours, sorted by bound.
  std::vector<Assignment> take() {
    std::ranges::stable_sort(found_, {}, &Assignment::least_s);
    return std::move(found_);
  }

 private:
  /// Visits the points that a stage may have with these layers, on a mesh of its size. Points that
  /// are too slow for all microbatches are skipped.
  template <typename Body>
  void each_point(std::size_t stage, int layers, Body&& body) const {
    const Layout& mesh = pipeline_.layout(stages_[stage]);
    for (const Cell& cell : pipeline_.cells[stages_.size() - 1 - stage]) {
      const Layout& other = pipeline_.layout(cell);
      if (cell.layers != layers || other.group != mesh.group || other.devices() != mesh.devices())
        continue;
      for (const Point& point : cell.points)
        if (pipeline_.config.microbatches * point.stable_s < below_s_) body(point);
    }
  }

  void add(const std::vector<Point>& stages) {
    const double bound_s = least_s(pipeline_, stages);
    if (bound_s < below_s_ && fits_host(pipeline_, stages)) found_.push_back({stages, bound_s});
  }

  void change(std::size_t i) {
    const auto shares = [](const Point& a, const Point& b) { return a.key() == b.key(); };
    const Point& now = stages_[i];
    std::vector<std::size_t> alike;
    for (std::size_t j = 0; j < stages_.size(); ++j)
      if (shares(stages_[j], now)) alike.push_back(j);
    each_point(i, now.layers(), [&](const Point& point) {
      std::vector<Point> stages = stages_;
      stages[i] = point;
      add(stages);
      if (alike.size() == 1 || alike[0] != i) return;
      for (const std::size_t j : alike)
        each_point(j, now.layers(), [&](const Point& there) {
          if (shares(there, point)) stages[j] = there;
        });
      add(stages);
    });
  }

  void give(std::size_t from, std::size_t to, int layers) {
    std::vector<Point> stages = stages_;
    each_point(from, stages_[from].layers() - layers, [&](const Point& fewer) {
      stages[from] = fewer;
      each_point(to, stages_[to].layers() + layers, [&](const Point& more) {
        stages[to] = more;
        add(stages);
      });
    });
  }

  const Pipeline& pipeline_;
  const std::vector<Point>& stages_;
  double below_s_;
  std::vector<Assignment> found_;
};

}  // namespace

std::vector<Timed> descend(const Pipeline& pipeline, const TimeOf& time, std::vector<Timed> from,
                           std::size_t width, double known_s) {
  std::set<std::vector<Point>, ByKey> seen;
  for (const Timed& assignment : from) seen.insert(assignment.stages);
  const auto keep_fastest = [](std::vector<Timed>& assignments, std::size_t count) {
    std::ranges::stable_sort(assignments, {}, &Timed::seconds);
    assignments.resize(std::min(assignments.size(), count));
  };
  keep_fastest(from, width);
  double fastest_s = from.empty() ? infinity : from[0].seconds;
  if (fastest_s >= known_s) keep_fastest(from, 1);
  // The slowest of the neighbours that a step would keep: none whose bound is higher replaces it.
  const auto slowest_kept_s = [&](std::vector<double>& seconds) {
    if (seconds.size() < width) return infinity;
    std::ranges::nth_element(seconds, seconds.begin() + std::ptrdiff_t(width) - 1);
    return seconds[width - 1];
  };
  std::vector<Timed> best;
  for (int step = 0, in_vain = 0; step < most_steps; ++step) {
    if (in_vain == (fastest_s < known_s ? most_in_vain : most_far)) break;
    std::vector<Timed> next;
    std::vector<double> seconds;  // of these
    for (const Timed& assignment : from) {
      if (pipeline.deadline.left_s() <= 0.0) return best;
      std::size_t timed = 0;
      for (const Assignment& beside : Neighbours(pipeline, assignment.stages, fastest_s).take()) {
        if (timed == most_timed) break;
        if (!seen.insert(beside.stages).second) continue;
        ++timed;
        if (beside.least_s * (1.0 - bound_error) > slowest_kept_s(seconds)) continue;
        next.push_back({beside.stages, time(beside.stages)});
        seconds.push_back(next.back().seconds);
      }
    }
    if (next.empty()) break;
    keep_fastest(next, width);
    best.insert(best.end(), next.begin(), next.end());
    keep_fastest(best, width);
    in_vain = best[0].seconds < fastest_s ? 0 : in_vain + 1;
    fastest_s = std::min(fastest_s, best[0].seconds);
    from = std::move(next);
  }
  return best;
}

}  // namespace brume::tuner
