#include "plan/neighbours.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "base/numbers.hpp"
#include "plan/knobs.hpp"
#include "plan/shapes.hpp"
#include "search_space.hpp"

namespace brume::plan {
namespace {

using deck::SearchKeys;

/// Stages up to which each one changes alone; of more the first and the last one.
constexpr int most_alone = 32;

/// Stages whose knobs change together.
using StageSet = std::vector<std::size_t>;

/// Part of a count of layers that lies in one of several even parts of them.
int part_of(int count, int layers, int first, int end) {
  if (layers == 0) return 0;
  return int(std::int64_t{count} * end / layers - std::int64_t{count} * first / layers);
}

class Neighbours {
 public:
  Neighbours(const Plan& plan, const model::Config& model, const hardware::Cluster& cluster,
             const SearchKeys& search)
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
    for (const Knob& knob : knobs) add_values(knob);
  }

  std::vector<Plan> take() { return std::move(found_); }

 private:
  void add(Plan plan) {
    if (!(plan == plan_) && space_.is_valid(plan)) found_.push_back(std::move(plan));
  }

  /// Each stage, all on its devices, and all stages, where these differ; of many stages the ends.
  std::vector<StageSet> stage_sets() const {
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

  /// Adds the plans in which some stages are changed, each once.
  void add_changed(const StageSet& set, const auto& changes, const auto& apply) {
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

  void add_orders() {
    for (const Order& order : space_.orders(plan_.shape())) {
      const Order& now = plan_.order;
      const int differing = (order.run_ahead != now.run_ahead) + (order.chunks != now.chunks) +
                            (order.zero_bubble != now.zero_bubble);
      if (differing == 1) add_in_order(order);
    }
  }

  /// The layers of each stage's devices are cut into other virtual stages, the first ones larger.
  void add_in_order(const Order& order) {
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

  Stage chunk_of(int first_stage, int chunk, int chunks) const {
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

  static void set_first_layers(Plan& plan) {
    int first = 0;
    for (Stage& stage : plan.stages) stage.first_layer = std::exchange(first, first + stage.layers);
  }

  void add_layers() {
    const std::size_t last = plan_.stages.size() - 1;
    for (std::size_t from = 0; from <= last; ++from)
      for (std::size_t to = 0; to <= last; ++to) {
        if (!search_.lone_ends && plan_.stages[from].layers == 1) continue;
        const bool at_end = from == 0 || to == 0 || from == last || to == last;
        if (from != to && (at_end || from + 1 == to || to + 1 == from)) add_moved_layer(from, to);
      }
  }

  /// A stage with all of its layers recomputed, or stored, has all of them so afterwards.
  void add_moved_layer(std::size_t from, std::size_t to) {
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

  /// Adds a plan whose stages have other shapes, if the search allows them.
  void add_reshaped(Plan plan) {
    if (space_.settle(plan)) add(std::move(plan));
  }

  /// Calls `visit` with each prime factor of a number.
  static void each_factor(int number, const auto& visit) {
    for (const int factor : divisors(number))
      if (factor > 1 && divisors(factor).size() == 2) visit(factor);
  }

  void add_microbatches() {
    each_factor(plan_.microbatches, [&](int factor) {
      Plan larger = plan_;
      larger.microbatches /= factor;
      for (Stage& stage : larger.stages) stage.microbatch *= factor;
      add_reshaped(std::move(larger));
    });
    int common = 0;
    for (const Stage& stage : plan_.stages) common = std::gcd(common, stage.microbatch);
    each_factor(common, [&](int factor) {
      Plan smaller = plan_;
      smaller.microbatches *= factor;
      for (Stage& stage : smaller.stages) stage.microbatch /= factor;
      add_reshaped(std::move(smaller));
    });
  }

  /// Data-parallel ranks become tensor-parallel ones, or the reverse; the microbatch follows, or,
  /// of all stages, the number of microbatches.
  void add_meshes() {
    for (const StageSet& set : sets_) {
      const bool all = set.size() == plan_.stages.size();
      if (!all && !search_.unequal_stages && cluster_.num_groups() == 1) continue;
      int dp = 0, tp = 0;
      for (const std::size_t i : set) {
        dp = std::gcd(dp, plan_.stages[i].dp);
        tp = std::gcd(tp, plan_.stages[i].tp);
      }
      for (const bool counts : {false, true}) {
        if (counts && !all) continue;
        each_factor(dp, [&](int factor) { add_mesh(set, factor, 1, counts); });
        each_factor(tp, [&](int factor) { add_mesh(set, 1, factor, counts); });
      }
    }
  }

  /// Adds a plan whose ranks that share sequences exchange the other way.
  void add_exchanged(Plan plan) {
    for (Stage& stage : plan.stages) stage.gather_keys = stage.cp > 1 ? 1 - stage.gather_keys : 0;
    const bool shares =
        std::ranges::any_of(plan.stages, [](const Stage& stage) { return stage.cp > 1; });
    if (shares) add_reshaped(std::move(plan));
  }

  /// Ranks of tp share a sequence instead, or the reverse; so do ranks of dp, of all stages, with
  /// as many times the microbatches. Ranks that share sequences exchange the other way.
  void add_contexts() {
    const auto add_turned = [&](const StageSet& set, int Stage::*from, int Stage::*to,
                                int of_microbatches) {
      int common = 0;
      for (const std::size_t i : set) common = std::gcd(common, plan_.stages[i].*from);
      each_factor(common, [&](int factor) {
        Plan plan = plan_;
        if (of_microbatches > 0) plan.microbatches *= factor;
        if (of_microbatches < 0 && plan.microbatches % factor != 0) return;
        if (of_microbatches < 0) plan.microbatches /= factor;
        for (const std::size_t i : set) {
          Stage& stage = plan.stages[i];
          stage.*from /= factor;
          stage.*to *= factor;
          if (stage.cp == 1) stage.gather_keys = 0;
          follow_mesh(stage, plan_.stages[i]);
        }
        add_exchanged(plan);
        add_reshaped(std::move(plan));
      });
    };
    add_exchanged(plan_);
    for (const StageSet& set : sets_) {
      const bool all = set.size() == plan_.stages.size();
      if (all) {
        add_turned(set, &Stage::dp, &Stage::cp, 1);
        add_turned(set, &Stage::cp, &Stage::dp, -1);
      }
      if (!all && !search_.unequal_stages && cluster_.num_groups() == 1) continue;
      add_turned(set, &Stage::tp, &Stage::cp, 0);
      add_turned(set, &Stage::cp, &Stage::tp, 0);
    }
  }

  /// Whole experts stay whole, divided over as many of the data-parallel ranks as before if the new
  /// mesh has them.
  static void follow_mesh(Stage& stage, const Stage& before) {
    if (before.ep > 1)
      stage.ep = stage.tp * std::gcd(before.expert_data_ranks(), stage.data_ranks());
  }

  /// Experts that are cut become whole, or the reverse; more ranks divide whole ones, or fewer.
  void add_experts() {
    for (const StageSet& set : sets_) {
      const auto add_changed = [&](auto&& changed) {
        Plan plan = plan_;
        for (const std::size_t i : set) plan.stages[i].ep = changed(plan.stages[i]);
        if (plan != plan_) add_reshaped(std::move(plan));
      };
      add_changed([](const Stage& s) { return s.ep > 1 ? 1 : s.tp; });
      Plan other_way = plan_;
      for (const std::size_t i : set) other_way.stages[i].dispatch_tokens ^= 1;
      add_reshaped(std::move(other_way));
      int more = 0, fewer = 0;
      for (const std::size_t i : set) {
        more = std::gcd(more, plan_.stages[i].state_ranks());
        fewer = std::gcd(fewer, plan_.stages[i].expert_data_ranks());
      }
      each_factor(more, [&](int factor) {
        add_changed([=](const Stage& s) { return std::max(s.ep, s.tp) * factor; });
      });
      each_factor(fewer,
                  [&](int factor) { add_changed([=](const Stage& s) { return s.ep / factor; }); });
    }
  }

  /// Divides dp by a factor, or tp by another one.
  void add_mesh(const StageSet& set, int of_dp, int of_tp, bool counts) {
    Plan plan = plan_;
    if (counts) {
      if (plan.microbatches * of_dp % of_tp != 0) return;
      plan.microbatches = plan.microbatches * of_dp / of_tp;
    }
    for (const std::size_t i : set) {
      Stage& stage = plan.stages[i];
      stage.dp = stage.dp / of_dp * of_tp;
      stage.tp = stage.tp / of_tp * of_dp;
      follow_mesh(stage, plan_.stages[i]);
      if (counts) continue;
      if (stage.microbatch * of_dp % of_tp != 0) return;
      stage.microbatch = stage.microbatch * of_dp / of_tp;
    }
    add_reshaped(std::move(plan));
  }

  /// Adds the values of a number of a stage that the search chooses by itself.
  void add_values(const Knob& knob) {
    if (const auto* ratio = std::get_if<double Stage::*>(&knob.member))
      add_ratios(knob, *ratio);
    else if (const auto* number = std::get_if<int Stage::*>(&knob.member))
      add_numbers(knob, *number);
  }

  /// Parts of a share stay as large in relation to it.
  void add_ratios(const Knob& knob, double Stage::*ratio) {
    const auto* list = std::get_if<std::vector<double> SearchKeys::*>(&knob.search);
    if (!list || (knob.on_disk && !has_disk())) return;
    for (const StageSet& set : sets_)
      add_changed(set, search_.**list, [&](Stage& stage, double value) {
        const double was = stage.*ratio;
        stage.*ratio = knob.part_of ? value * stage.*knob.part_of : value;
        for (const Share& share : shares)
          if (share.knob->part_of == ratio && was > 0.0) stage.*share.ratio *= stage.*ratio / was;
      });
  }

  bool has_disk() const {
    return std::ranges::any_of(cluster_.groups, [](const auto& g) { return g.disk_bytes > 0; });
  }

  void add_numbers(const Knob& knob, int Stage::*number) {
    SearchKeys keys = search_;
    if (const auto* list = std::get_if<std::vector<int> SearchKeys::*>(&knob.search)) {
      if ((keys.**list).empty()) allow(knob, keys);
      for (const StageSet& set : sets_)
        add_changed(set, keys.**list, [&](Stage& stage, int value) { stage.*number = value; });
    }
    const auto* key = std::get_if<bool SearchKeys::*>(&knob.search);
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

  const Plan& plan_;
  const model::Config& model_;
  const hardware::Cluster& cluster_;
  const SearchKeys& search_;
  SearchSpace space_;
  std::vector<StageSet> sets_;
  std::vector<Plan> found_;
};

}  // namespace

std::vector<Plan> neighbours(const Plan& plan, const model::Config& model,
                             const hardware::Cluster& cluster, const deck::SearchKeys& search) {
  return Neighbours(plan, model, cluster, search).take();
}

}  // namespace brume::plan
