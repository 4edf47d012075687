#include "plan/neighbours.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "base/numbers.hpp"
#include "neighbour_plans.hpp"

namespace brume::plan {
namespace {

/// Stages up to which each one changes alone; of more the first and the last one.
constexpr int most_alone = 32;

/// Part of a count of layers that lies in one of several even parts of them.
int part_of(int count, int layers, int first, int end) {
  if (layers == 0) return 0;
  return int(std::int64_t{count} * end / layers - std::int64_t{count} * first / layers);
}

}  // namespace

Neighbours::Neighbours(const Plan& plan, const model::Config& model,
                       const hardware::Cluster& cluster, const deck::SearchKeys& search)
    : plan_(plan),
      model_(model),
      cluster_(cluster),
      search_(search),
      space_(model, plan.global_batch, cluster, search),
      sets_(stage_sets()) {
  add_orders();
  add_layers();
  add_microbatches();
  add_meshes();
  add_contexts();
  if (model.num_experts > 0) add_experts();
  add_tiles();
  for (const Knob& knob : knobs) add_values(knob);
}

std::vector<StageSet> Neighbours::stage_sets() const {
  std::vector<StageSet> sets;
  const auto add_set = [&](const StageSet& set) {
    if (std::ranges::find(sets, set) == sets.end()) sets.push_back(set);
  };
  const auto each = [](int count, const auto& visit) {
    for (int i = 0; i < count; i += count <= most_alone ? 1 : count - 1) visit(i);
  };
  each(plan_.num_stages(), [&](int i) { add_set({std::size_t(i)}); });
  each(plan_.pipeline_size(), [&](int i) {
    const std::vector<int> beside = stages_beside(plan_, i);
    add_set({beside.begin(), beside.end()});
  });
  StageSet all(plan_.stages.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  add_set(all);
  return sets;
}

void Neighbours::add_changed(const StageSet& set, const auto& changes, const auto& apply) {
  const std::size_t before = found_.size();
  for (const auto& change : changes) {
    Plan plan = plan_;
    for (const std::size_t i : set) {
      Stage& stage = plan.stages[i];
      apply(stage, change);
      stage.stored_layers = std::min(stage.stored_layers, stage.layers - stage.ckpt_layers);
    }
    if (std::find(found_.begin() + std::ptrdiff_t(before), found_.end(), plan) == found_.end())
      add(std::move(plan));
  }
}

void Neighbours::add_orders() {
  for (const Order& order : space_.orders(plan_.shape())) {
    const Order& now = plan_.order;
    const int differing = (order.run_ahead != now.run_ahead) + (order.chunks != now.chunks) +
                          (order.zero_bubble != now.zero_bubble);
    if (differing == 1) add_in_order(order);
  }
}

void Neighbours::add_in_order(const Order& order) {
  Plan plan = plan_;
  plan.order = order;
  if (order.chunks != plan_.order.chunks) {
    const int size = plan_.pipeline_size();
    plan.stages.clear();
    for (int chunk = 0; chunk < order.chunks; ++chunk)
      for (int i = 0; i < size; ++i) plan.stages.push_back(chunk_of(i, chunk, order.chunks));
    set_first_layers(plan);
  }
  add(std::move(plan));
}

Stage Neighbours::chunk_of(int first_stage, int chunk, int chunks) const {
  Stage whole = plan_.stages[first_stage];
  for (const int i : stages_beside(plan_, first_stage)) {
    if (i == first_stage) continue;
    const Stage& stage = plan_.stages[i];
    whole.layers += stage.layers;
    whole.ckpt_layers += stage.ckpt_layers;
    whole.stored_layers += stage.stored_layers;
  }
  const auto before = [&](int count) {
    return count * (whole.layers / chunks) + std::min(count, whole.layers % chunks);
  };
  Stage part = whole;
  // The embedding's chunk is the smallest one if there are not layers for all.
  const bool reversed = first_stage == 0 && whole.layers < chunks;
  const int place = reversed ? chunks - 1 - chunk : chunk;
  const int first = reversed ? whole.layers - before(place + 1) : before(place),
            end = reversed ? whole.layers - before(place) : before(place + 1);
  part.layers = end - first;
  part.ckpt_layers = part_of(whole.ckpt_layers, whole.layers, first, end);
  part.stored_layers = part_of(whole.stored_layers, whole.layers, first, end);
  return part;
}

void Neighbours::set_first_layers(Plan& plan) {
  int first = 0;
  for (Stage& stage : plan.stages) stage.first_layer = std::exchange(first, first + stage.layers);
}

void Neighbours::add_layers() {
  const std::size_t last = plan_.stages.size() - 1;
  for (std::size_t from = 0; from <= last; ++from)
    for (std::size_t to = 0; to <= last; ++to) {
      if (!search_.lone_ends && plan_.stages[from].layers == 1) continue;
      const bool at_end = from == 0 || to == 0 || from == last || to == last;
      if (from != to && (at_end || from + 1 == to || to + 1 == from)) add_moved_layer(from, to);
    }
}

void Neighbours::add_moved_layer(std::size_t from, std::size_t to) {
  Plan plan = plan_;
  for (const std::size_t i : {from, to}) {
    Stage& stage = plan.stages[i];
    int Stage::*const whole = stage.layers == 0                     ? nullptr
                              : stage.ckpt_layers == stage.layers   ? &Stage::ckpt_layers
                              : stage.stored_layers == stage.layers ? &Stage::stored_layers
                                                                    : nullptr;
    stage.layers += i == to ? 1 : -1;
    if (whole) stage.*whole = stage.layers;
    stage.ckpt_layers = std::min(stage.ckpt_layers, stage.layers);
    stage.stored_layers = std::min(stage.stored_layers, stage.layers - stage.ckpt_layers);
  }
  set_first_layers(plan);
  add(std::move(plan));
}

void Neighbours::add_reshaped(Plan plan) {
  if (space_.settle(plan)) add(std::move(plan));
}

void Neighbours::add_values(const Knob& knob) {
  if (const auto* ratio = std::get_if<double Stage::*>(&knob.member))
    add_ratios(knob, *ratio);
  else if (const auto* number = std::get_if<int Stage::*>(&knob.member))
    add_numbers(knob, *number);
}

void Neighbours::add_ratios(const Knob& knob, double Stage::*ratio) {
  const auto* list = std::get_if<std::vector<double> deck::SearchKeys::*>(&knob.search);
  if (!list || (knob.on_disk && !has_disk())) return;
  for (const StageSet& set : sets_)
    add_changed(set, search_.**list, [&](Stage& stage, double value) {
      const double was = stage.*ratio;
      stage.*ratio = knob.part_of ? value * stage.*knob.part_of : value;
      for (const Share& share : shares)
        if (share.knob->part_of == ratio && was > 0.0) stage.*share.ratio *= stage.*ratio / was;
    });
}

bool Neighbours::has_disk() const {
  return std::ranges::any_of(cluster_.groups, [](const auto& g) { return g.disk_bytes > 0; });
}

void Neighbours::add_numbers(const Knob& knob, int Stage::*number) {
  deck::SearchKeys keys = search_;
  if (const auto* list = std::get_if<std::vector<int> deck::SearchKeys::*>(&knob.search)) {
    if ((keys.**list).empty()) allow(knob, keys);
    for (const StageSet& set : sets_)
      add_changed(set, keys.**list, [&](Stage& stage, int value) { stage.*number = value; });
  }
  const auto* key = std::get_if<bool deck::SearchKeys::*>(&knob.search);
  if (!key || !(keys.**key)) return;
  using Step = int (*)(int now, int least, int layers);
  const std::vector<Step> steps{
      [](int, int least, int) { return least; }, [](int now, int, int) { return now / 2; },
      [](int now, int, int) { return now - 1; }, [](int now, int, int) { return now + 1; },
      [](int now, int, int) { return 2 * now; }, [](int, int, int layers) { return layers; }};
  for (const StageSet& set : sets_)
    add_changed(set, steps, [&](Stage& stage, Step step) {
      stage.*number = step(stage.*number, int(knob.min), stage.layers);
    });
}

std::vector<Plan> neighbours(const Plan& plan, const model::Config& model,
                             const hardware::Cluster& cluster, const deck::SearchKeys& search) {
  return Neighbours(plan, model, cluster, search).take();
}

}  // namespace brume::plan
