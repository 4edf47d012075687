#include "point.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "numbers.hpp"

namespace brume::tuner {
namespace {

bool falls(double from, double to) { return to < from - sum_rounding * std::abs(from); }

}  // namespace

bool StageTimes::is_faster_than(const StageTimes& other) const {
  return falls(other.stable_s, stable_s) || falls(other.fill_s(), fill_s()) ||
         falls(other.shortest_s(), shortest_s()) || falls(other.standalone_s(), standalone_s());
}

void StageTimes::take_less_of(const StageTimes& other) {
  const double whole = std::min(fill_s(), other.fill_s());
  const double shortest = std::min(shortest_s(), other.shortest_s());
  const double alone = std::min(standalone_s(), other.standalone_s());
  stable_s = std::min(stable_s, other.stable_s);
  delta_s = whole - stable_s;
  early_send_s = stable_s - shortest;
  standalone_delta_s = alone - stable_s;
}

std::vector<Point> points_of(int layout, std::span<const Strategy> strategies) {
  std::vector<Point> points;
  points.reserve(strategies.size());
  for (const Strategy& strategy : strategies) points.emplace_back(layout, strategy);
  return points;
}

std::vector<Point> pareto_front(std::vector<Point> points, bool host_matters) {
  std::ranges::stable_sort(points, {}, [](const Point& p) {
    const Ratios& ratios = p.strategy.ratios;
    // Of equal ones the first is kept: the one that saves least.
    return std::tuple{p.stable_s,     p.fill_s(),
                      p.shortest_s(), p.standalone_s(),
                      p.host_bytes,   std::accumulate(ratios.begin(), ratios.end(), 0.0)};
  });
  std::vector<Point> front;
  for (const Point& point : points) {
    const auto beats = [&](const Point& other) {
      return other.fill_s() <= point.fill_s() && other.shortest_s() <= point.shortest_s() &&
             other.standalone_s() <= point.standalone_s() &&
             (!host_matters || other.host_bytes <= point.host_bytes);
    };
    if (std::ranges::none_of(front, beats)) front.push_back(point);  // they are no slower
  }
  return front;
}

bool is_beaten(const StageTimes& times, std::span<const Point> others) {
  return std::ranges::any_of(others,
                             [&](const Point& other) { return !times.is_faster_than(other); });
}

}  // namespace brume::tuner
