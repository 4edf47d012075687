#include "pipeline.hpp"

#include <algorithm>
#include <utility>

namespace brume::tuner {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t most_thresholds = 256;

using Row = std::vector<double>;  ///< by layers

/// For each number of layers the best point under a threshold, and its cost.
struct Best {
  Row cost;
  std::vector<int> point;
};

/// The first stage has nothing to hide its delta behind, so it counts in full there.
double exposed_s(const Point& point, int stage) {
  return point.stable_s + (stage == 0 ? std::max(point.delta_s, 0.0) : 0.0);
}

Best best_under(const Pipeline& pipeline, int stage, double threshold_s, bool count_deltas) {
  Best best{Row(std::size_t(pipeline.num_layers) + 1, infinity),
            std::vector<int>(std::size_t(pipeline.num_layers) + 1, -1)};
  const std::vector<Point>& points = pipeline.points[std::size_t(stage)];
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].stable_s > threshold_s) continue;
    const double cost_s = exposed_s(points[i], count_deltas ? 0 : stage);
    const auto layers = std::size_t(points[i].layers);
    if (cost_s >= best.cost[layers]) continue;
    best.cost[layers] = cost_s;
    best.point[layers] = int(i);
  }
  return best;
}

/// Fewest seconds of all stages together, no stage above the threshold.
struct Cheapest {
  double sum_s = infinity;
  std::vector<Point> stages;
};

Cheapest cheapest_under(const Pipeline& pipeline, double threshold_s, bool count_deltas) {
  const auto size = std::size_t(pipeline.num_layers) + 1;
  const auto num_stages = std::size_t(pipeline.num_stages());
  Row used(size, infinity);
  used[0] = 0.0;
  std::vector<std::vector<int>> layers_of(num_stages, std::vector<int>(size, 0));
  std::vector<Best> best;
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    best.push_back(best_under(pipeline, int(stage), threshold_s, count_deltas));
    Row next(size, infinity);
    for (std::size_t before = 0; before < size; ++before)
      for (std::size_t l = 1; before + l < size && used[before] < infinity; ++l)
        if (const double sum_s = used[before] + best[stage].cost[l]; sum_s < next[before + l]) {
          next[before + l] = sum_s;
          layers_of[stage][before + l] = int(l);
        }
    used = std::move(next);
  }
  Cheapest found{used.back(), {}};
  if (found.sum_s == infinity) return found;
  found.stages.resize(num_stages);
  std::size_t left = size - 1;
  for (std::size_t stage = num_stages; stage-- > 0;) {
    const auto l = std::size_t(layers_of[stage][left]);
    found.stages[stage] = pipeline.points[stage][std::size_t(best[stage].point[l])];
    left -= l;
  }
  return found;
}

/// Stable times that the slowest stage can have, thinned to a few hundred.
Row thresholds(const Pipeline& pipeline) {
  Row all;
  for (const auto& points : pipeline.points)
    for (const Point& point : points) all.push_back(point.stable_s);
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() <= most_thresholds) return all;
  Row few;
  for (std::size_t i = 1; i <= most_thresholds; ++i)
    few.push_back(all[i * all.size() / most_thresholds - 1]);
  return few;
}

/// For stages before (or, `from_end`, after) a stage and layers used by them: fewest seconds
/// together, and the least that the slowest of them takes.
struct Rest {
  std::vector<Row> sum_s, slowest_s;  ///< [stage][layers]
};

Rest rest(const Pipeline& pipeline, bool from_end) {
  const auto size = std::size_t(pipeline.num_layers) + 1;
  const int num_stages = pipeline.num_stages();
  Row sum(size, infinity), slowest(size, infinity);
  sum[0] = slowest[0] = 0.0;
  Rest found{std::vector<Row>(std::size_t(num_stages)), std::vector<Row>(std::size_t(num_stages))};
  for (int k = 0; k < num_stages; ++k) {
    const int stage = from_end ? num_stages - 1 - k : k;
    found.sum_s[std::size_t(stage)] = sum;
    found.slowest_s[std::size_t(stage)] = slowest;
    Row least(size, infinity), cheapest(size, infinity);
    for (const Point& p : pipeline.points[std::size_t(stage)]) {
      const auto l = std::size_t(p.layers);
      least[l] = std::min(least[l], p.stable_s);
      cheapest[l] = std::min(cheapest[l], exposed_s(p, stage));
    }
    Row next_sum(size, infinity), next_slowest(size, infinity);
    for (std::size_t before = 0; before < size; ++before)
      for (std::size_t l = 1; before + l < size; ++l) {
        next_sum[before + l] = std::min(next_sum[before + l], sum[before] + cheapest[l]);
        next_slowest[before + l] =
            std::min(next_slowest[before + l], std::max(slowest[before], least[l]));
      }
    sum = std::move(next_sum);
    slowest = std::move(next_slowest);
  }
  return found;
}

}  // namespace

double iteration_time(const std::vector<Point>& stages, int microbatches) {
  std::vector<analyzer::StageTime> times;
  for (const Point& point : stages) times.push_back({point.stable_s, point.delta_s});
  return analyzer::iteration_time(times, microbatches);
}

bool fits_host(const Pipeline& pipeline, const std::vector<Point>& stages) {
  const auto per_node = std::size_t(pipeline.stages_per_node);
  for (std::size_t first = 0; first < stages.size(); first += per_node) {
    double sum = 0.0;
    for (std::size_t i = first; i < std::min(first + per_node, stages.size()); ++i)
      sum += pipeline.ranks_on_node * stages[i].host_bytes;
    if (sum > pipeline.host_limit_bytes) return false;
  }
  return true;
}

Solution relax(const Pipeline& pipeline) {
  Solution solution;
  const auto offer = [&](const Cheapest& found) {
    if (found.sum_s == infinity || !fits_host(pipeline, found.stages)) return;
    const double iteration_s = iteration_time(found.stages, pipeline.microbatches);
    if (!solution.best || iteration_s < solution.best->iteration_s)
      solution.best = Choice{found.stages, iteration_s};
  };
  const Row slowest = thresholds(pipeline);
  const bool all = slowest.size() < most_thresholds;
  double below_s = 0.0;  // the slowest stage of what the last threshold did not allow takes longer
  for (double threshold_s : slowest) {
    const Cheapest found = cheapest_under(pipeline, threshold_s, false);
    const double least_s = all ? threshold_s : below_s;
    solution.bound_s =
        std::min(solution.bound_s, (pipeline.microbatches - 1) * least_s + found.sum_s);
    below_s = threshold_s;
    if (found.sum_s == infinity) continue;
    offer(found);
    offer(cheapest_under(pipeline, threshold_s, true));
  }
  if (solution.best) solution.bound_s = std::min(solution.bound_s, solution.best->iteration_s);
  return solution;
}

std::vector<Point> emptiest(const Pipeline& pipeline) {
  const auto size = std::size_t(pipeline.num_layers) + 1;
  // For each number of layers used so far: bytes of the fullest stage, and the stages.
  std::vector<std::pair<double, std::vector<Point>>> used(size, {infinity, {}});
  used[0].first = 0.0;
  for (const auto& points : pipeline.points) {
    std::vector<std::optional<Point>> least(size);
    for (const Point& p : points)
      if (auto& l = least[std::size_t(p.layers)]; !l || p.device_bytes < l->device_bytes) l = p;
    std::vector<std::pair<double, std::vector<Point>>> next(size, {infinity, {}});
    for (std::size_t before = 0; before < size; ++before)
      for (std::size_t l = 1; before + l < size; ++l) {
        if (used[before].first == infinity || !least[l]) continue;
        const double bytes = std::max(used[before].first, least[l]->device_bytes);
        if (bytes >= next[before + l].first) continue;
        next[before + l] = {bytes, used[before].second};
        next[before + l].second.push_back(*least[l]);
      }
    used = std::move(next);
  }
  return used.back().second;
}

void prune(Pipeline& pipeline, double cutoff_s) {
  const Rest before = rest(pipeline, false), after = rest(pipeline, true);
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    const auto s = std::size_t(stage);
    std::erase_if(pipeline.points[s], [&](const Point& point) {
      double bound_s = infinity;
      for (int used = 0; used + point.layers <= pipeline.num_layers; ++used) {
        const auto u = std::size_t(used);
        const auto left = std::size_t(pipeline.num_layers - used - point.layers);
        const double slowest_s =
            std::max({before.slowest_s[s][u], point.stable_s, after.slowest_s[s][left]});
        bound_s = std::min(bound_s, (pipeline.microbatches - 1) * slowest_s + before.sum_s[s][u] +
                                        exposed_s(point, stage) + after.sum_s[s][left]);
      }
      return bound_s > cutoff_s * (1.0 + 1e-9);  // sums in another order
    });
  }
}

}  // namespace brume::tuner
