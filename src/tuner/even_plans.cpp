#include "even_plans.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "grid.hpp"
#include "messages.hpp"
#include "node_order.hpp"
#include "other_orders.hpp"
#include "pipeline.hpp"
#include "rows.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {
namespace {

constexpr std::size_t most_predicted = 48;  ///< plans, of the least bounds

/// Layers of each stage, first stage first. Stages between the ends take the layers that are left:
/// the ends have the embedding and the head, too.
std::vector<int> even_layers(int num_layers, int num_stages) {
  std::vector<int> layers(std::size_t(num_stages), num_layers / num_stages);
  for (int i = 1; i <= num_layers % num_stages; ++i)
    ++layers[i + 1 < num_stages ? std::size_t(i) : 0];
  return layers;
}

/// A configuration's fastest even assignment.
class EvenSearch {
 public:
  EvenSearch(const SearchInput& input, const Axes& axes, PipelineConfig config)
      : input_(input), axes_(axes), config_(std::move(config)) {
    const std::vector<int> layers = even_layers(input.model.num_layers, config_.num_stages);
    for (int i = 0; i < config_.num_stages; ++i) {
      const bool end = i == 0 || i + 1 == config_.num_stages;
      const auto alike = [&](const Kind& kind) {
        return !end && !kind.end && kind.layers == layers[i];
      };
      const auto known = std::ranges::find_if(kinds_, alike);
      kind_of_.push_back(std::size_t(known - kinds_.begin()));
      if (known == kinds_.end()) kinds_.push_back({i, end, layers[i]});
    }
  }

  const PipelineConfig& config() const { return config_; }

  /// None where no even assignment fits.
  std::optional<Assignment> fastest(Grid& grid) const {
    std::vector<std::vector<Point>> points;  // [kind, strategy]
    for (const Kind& kind : kinds_) points.push_back(priced(grid, kind));
    const MessageTable messages(grid, config_, input_.cluster);
    const Pipeline pipeline{.config = config_,
                            .messages = messages,
                            .num_layers = input_.model.num_layers,
                            .cluster = input_.cluster,
                            .deadline = input_.deadline,
                            .host_matters = false,
                            .cells = {}};
    const Limits& limits = input_.rows->limits(config_.layouts[0].group);
    Assignment fastest;
    for (std::size_t s = 0; s < points[0].size(); ++s) {
      const auto fits = [&](const auto& kind) { return limits.hold(kind[s], config_.layouts[0]); };
      if (!std::ranges::all_of(points, fits)) continue;
      std::vector<Point> stages;
      for (const std::size_t kind : kind_of_) stages.push_back(points[kind][s]);
      const double bound_s = least_s(pipeline, stages);
      if (bound_s < fastest.least_s) fastest = {std::move(stages), bound_s};
    }
    if (fastest.stages.empty()) return std::nullopt;
    return fastest;
  }

 private:
  /// Stages between the ends of equal layers, or an end alone. They have equal times, and the first
  /// of them needs most memory.
  struct Kind {
    int stage;  ///< the first of them
    bool end;
    int layers;
  };

  std::vector<Point> priced(Grid& grid, const Kind& kind) const {
    std::vector<Point> points;
    for (const Strategy& row : axes_.lowest(config_.layouts[0], kind.layers))
      for (const int level : axes_.ends(kind.layers)) points.emplace_back(0, row.at_level(level));
    const StagePosition position{config_, 0, config_.num_stages - 1 - kind.stage};
    grid.price_memory(position, points);
    grid.price_time(position, points);
    return points;
  }

  const SearchInput& input_;
  const Axes& axes_;
  PipelineConfig config_;
  std::vector<Kind> kinds_;
  std::vector<std::size_t> kind_of_;  ///< [stage] index in kinds_
};

/// Configurations of one layout, in any order of passes.
std::vector<PipelineConfig> even_configs(const SearchInput& input) {
  deck::SearchKeys keys = input.keys;
  keys.unequal_stages = false;
  std::vector<PipelineConfig> found = configs(input.model, input.global_batch, input.cluster, keys);
  for (PipelineConfig& config :
       configs_in_other_orders(input.model, input.global_batch, input.cluster, keys))
    found.push_back(std::move(config));
  const int per_node = input.cluster.groups[0].devices_per_node;
  std::erase_if(found, [&](const PipelineConfig& config) {
    const int devices = config.layouts[0].devices();
    for (int i = 0; i < config.num_stages; ++i)
      if (!may_begin(i * devices, devices, per_node)) return true;
    return false;
  });
  for (PipelineConfig& config : found)
    config.layouts[0].times = least_times(config.layouts[0], input.cluster, input.machine);
  return found;
}

}  // namespace

std::vector<Candidate> even_plans(const SearchInput& input, WorkerPool& workers) {
  if (input.cluster.num_groups() > 1) return {};
  const Axes axes(input.keys), split_axes = axes.of_split_backwards();
  std::vector<EvenSearch> searches;
  for (PipelineConfig& config : even_configs(input))
    searches.emplace_back(input, config.order.splits_backward() ? split_axes : axes,
                          std::move(config));
  std::vector<std::optional<Assignment>> found(searches.size());
  workers.each(searches.size(),
               [&](std::size_t i, Grid& grid) { found[i] = searches[i].fastest(grid); });
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i]) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return found[i]->least_s; });
  order.resize(std::min(order.size(), most_predicted));
  std::vector<std::optional<Candidate>> predicted(order.size());
  workers.each(order.size(), [&](std::size_t i, Grid& grid) {
    std::vector<Point>& stages = found[order[i]]->stages;
    plan::Plan plan = plan_of(input, searches[order[i]].config(), stages);
    const analyzer::Prediction prediction = grid.analyzer().analyze(plan);
    if (fitting_share(plan, prediction, input.cluster) >= 1.0)
      predicted[i] = {std::move(plan), std::move(stages), prediction.iteration_s};
  });
  std::vector<Candidate> candidates;
  for (std::optional<Candidate>& one : predicted)
    if (one) candidates.push_back(*std::move(one));
  std::ranges::stable_sort(candidates, {}, &Candidate::predicted_s);
  return candidates;
}

}  // namespace brume::tuner
