#include "plan/adapted.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/numbers.hpp"
#include "search_space.hpp"

namespace brume::plan {
namespace {

constexpr std::size_t most_divisions = 3;  ///< numbers of microbatches to try of each mesh

/// A count of layers in a stage that has another number of layers.
int in_proportion(int count, int layers_before, int layers) {
  return layers_before == 0 ? 0 : int(std::int64_t{count} * layers / layers_before);
}

class Adaptation {
 public:
  Adaptation(const Plan& plan, const model::Config& model, int global_batch,
             const hardware::Cluster& cluster, const deck::SearchKeys& search)
      : plan_(plan),
        model_(model),
        global_batch_(global_batch),
        cluster_(cluster),
        space_(model, global_batch, cluster, search) {
    plan_.node_order.clear();  // it is for other nodes
    std::int64_t layers = 0;
    for (const Stage& stage : plan_.stages) {
      layers += stage.layers;
      if (std::int64_t{stage.ckpt_layers} + stage.stored_layers > stage.layers) return;
    }
    if (layers != model.num_layers) return;
    if (cluster.num_groups() > 1) {
      if (plan_.global_batch == global_batch) add(plan_);
      return;
    }
    for (Stage& stage : plan_.stages) stage.group.clear();
    std::vector<Plan> resized = on_all_devices();
    for (const Plan& plan : resized) add_divided(plan);
    std::erase_if(resized, [&](const Plan& plan) {
      return std::ranges::all_of(plan.stages,
                                 [&](const Stage& stage) { return global_batch % stage.dp == 0; });
    });
    // Degrees are at most the number of devices.
    for (int times = 2; found_.empty() && times <= cluster.devices(); ++times)
      for (const Plan& plan : resized)
        for (const Plan& narrower : with_less_data_parallelism(plan, times)) add_divided(narrower);
  }

  std::vector<Plan> take() { return std::move(found_); }

 private:
  void add(const Plan& plan) {
    if (std::ranges::find(found_, plan) != found_.end()) return;
    if (space_.allows(plan) && space_.is_valid(plan)) found_.push_back(plan);
  }

  /// The plan with as many times the ranks of a degree, or the stages.
  std::vector<Plan> on_all_devices() const {
    const std::int64_t before = plan_.devices(), now = cluster_.devices();
    if (before == now) return {plan_};
    std::vector<Plan> found;
    for (int Stage::*const degree : {&Stage::dp, &Stage::tp, &Stage::cp}) {
      Plan plan = plan_;
      const bool divides = std::ranges::all_of(plan.stages, [&](Stage& stage) {
        const std::int64_t ranks = stage.*degree * now;
        stage.*degree = int(ranks / before);
        return ranks % before == 0;
      });
      if (divides) found.push_back(std::move(plan));
    }
    const std::int64_t stages = plan_.num_stages() * now;
    if (stages % before == 0) add_with_stages(plan_, stages / before, found);
    return found;
  }

  /// The plan with a part of its data-parallel ranks, and as many times the ranks of another
  /// degree, or the stages.
  std::vector<Plan> with_less_data_parallelism(Plan plan, int times) const {
    for (Stage& stage : plan.stages) {
      if (stage.dp % times != 0) return {};
      stage.dp /= times;
    }
    std::vector<Plan> found;
    for (int Stage::*const degree : {&Stage::tp, &Stage::cp}) {
      Plan other = plan;
      const bool fits = std::ranges::all_of(other.stages, [&](Stage& stage) {
        const std::int64_t ranks = std::int64_t{stage.*degree} * times;
        stage.*degree = int(ranks);
        return ranks <= cluster_.devices();
      });
      if (fits) found.push_back(std::move(other));
    }
    add_with_stages(plan, std::int64_t{plan.num_stages()} * times, found);
    return found;
  }

  void add_with_stages(const Plan& plan, std::int64_t count, std::vector<Plan>& to) const {
    if (plan.order.chunks == 1 && count <= model_.num_layers)
      to.push_back(with_stages(plan, int(count)));
  }

  /// The plan with so many stages of equal layers, each as the stage was that is in its place.
  Plan with_stages(const Plan& before, int count) const {
    Plan plan = before;
    plan.stages.clear();
    for (int i = 0, first = 0; i < count; ++i) {
      const Stage& like = before.stages[std::size_t(std::int64_t{i} * before.num_stages() / count)];
      Stage& stage = plan.stages.emplace_back(like);
      stage.first_layer = first;
      stage.layers = model_.num_layers / count + (i < model_.num_layers % count ? 1 : 0);
      stage.ckpt_layers = in_proportion(like.ckpt_layers, like.layers, stage.layers);
      stage.stored_layers = in_proportion(like.stored_layers, like.layers, stage.layers);
      first += stage.layers;
    }
    return plan;
  }

  /// Sets microbatches so that they add up to the batch. @return whether they do
  bool divide_batch(Plan& plan, int microbatches) const {
    plan.global_batch = global_batch_;
    plan.microbatches = microbatches;
    return std::ranges::all_of(plan.stages, [&](Stage& stage) {
      const std::int64_t ranks = std::int64_t{microbatches} * stage.dp;
      stage.microbatch = int(global_batch_ / ranks);
      return ranks <= global_batch_ && global_batch_ % ranks == 0;
    });
  }

  /// Lays each stage over nodes, as shapes of the search do. @return whether it can
  bool lay_out(Plan& plan) const {
    return std::ranges::all_of(plan.stages, [&](Stage& stage) {
      for (const StageShape& shape : space_.shapes(stage))
        if (shape.dp == stage.dp && shape.cp == stage.cp && shape.tp == stage.tp) {
          stage.nodes = shape.nodes;
          stage.devices_per_node = shape.devices_per_node;
          return true;
        }
      return false;
    });
  }

  void add_divided(Plan plan) {
    if (!lay_out(plan)) return;
    const Stage& first = plan.stages[0];
    const double kept = double(global_batch_) / first.microbatch / first.dp;
    std::vector<int> numbers = divisors(global_batch_);
    std::ranges::stable_sort(numbers, {}, [&](int n) { return std::abs(std::log(n / kept)); });
    std::size_t divisions = 0;
    for (const int microbatches : numbers) {
      if (divisions == most_divisions && microbatches != plan_.microbatches) continue;
      Plan divided = plan;
      if (!divide_batch(divided, microbatches) || !space_.settle(divided)) continue;
      divisions += divisions < most_divisions ? 1 : 0;
      add_levels(divided);
    }
  }

  /// The plan, and with none, all or some of each layer's activations stored.
  void add_levels(const Plan& plan) {
    add(plan);
    const auto add_all = [&](bool recomputes, bool stores) {
      Plan other = plan;
      for (Stage& stage : other.stages) {
        stage.ckpt_layers = recomputes ? stage.layers : 0;
        stage.stored_layers = stores ? stage.layers : 0;
      }
      add(other);
    };
    add_all(false, true);
    add_all(false, false);
    add_all(true, false);
  }

  Plan plan_;
  const model::Config& model_;
  int global_batch_;
  const hardware::Cluster& cluster_;
  SearchSpace space_;
  std::vector<Plan> found_;
};

}  // namespace

std::vector<Plan> adapted(const Plan& plan, const model::Config& model, int global_batch,
                          const hardware::Cluster& cluster, const deck::SearchKeys& search) {
  return Adaptation(plan, model, global_batch, cluster, search).take();
}

}  // namespace brume::plan
