/// @file Neighbours whose stages divide tokens, weights and experts in other ways.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>

#include "base/numbers.hpp"
#include "neighbour_plans.hpp"

namespace brume::plan {
namespace {

/// Calls `visit` with each prime factor of a number.
void each_factor(int number, const auto& visit) {
  for (const int factor : divisors(number))
    if (factor > 1 && divisors(factor).size() == 2) visit(factor);
}

}  // namespace

void Neighbours::add_microbatches() {
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

void Neighbours::add_meshes() {
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

void Neighbours::add_exchanged(Plan plan) {
  for (Stage& stage : plan.stages) stage.gather_keys = stage.cp > 1 ? 1 - stage.gather_keys : 0;
  const bool shares =
      std::ranges::any_of(plan.stages, [](const Stage& stage) { return stage.cp > 1; });
  if (shares) add_reshaped(std::move(plan));
}

void Neighbours::add_contexts() {
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

void Neighbours::follow_mesh(Stage& stage, const Stage& before) {
  if (before.ep > 1) stage.ep = stage.tp * std::gcd(before.expert_data_ranks(), stage.data_ranks());
}

void Neighbours::add_experts() {
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

void Neighbours::add_tiles() {
  std::set<int> numbers;
  for (const Stage& stage : plan_.stages)
    for (const StageShape& shape : space_.shapes(stage)) numbers.insert(shape.mlp_tiles);
  for (const StageSet& set : sets_)
    for (const int number : numbers) {
      Plan plan = plan_;
      for (const std::size_t i : set) plan.stages[i].mlp_tiles = number;
      if (plan != plan_) add_reshaped(std::move(plan));
    }
}

void Neighbours::add_mesh(const StageSet& set, int of_dp, int of_tp, bool counts) {
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

}  // namespace brume::plan
