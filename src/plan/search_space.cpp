#include "search_space.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "plan/knobs.hpp"

namespace brume::plan {
namespace {

StageShape shape_of(const Stage& s) {
  return {s.nodes,       s.devices_per_node, s.dp,       s.cp, s.tp, s.ep, s.microbatch,
          s.gather_keys, s.dispatch_tokens,  s.mlp_tiles};
}

/// Whether a share, relative to its whole, is one that the search tries.
bool allows_share(const Share& share, const Stage& stage, const SearchKeys& search) {
  constexpr double rounding = 1e-9;
  const double ratio = stage.*share.ratio;
  const double whole = share.whole ? stage.*shares[*share.whole].ratio : 1.0;
  if (ratio == 0.0 && whole == 0.0) return true;
  return std::ranges::any_of(search.*share.list(), [&](double value) {
    return std::abs(value * whole - ratio) <= rounding;
  });
}

}  // namespace

SearchSpace::SearchSpace(const model::Config& model, int global_batch,
                         const hardware::Cluster& cluster, const deck::SearchKeys& search)
    : model_(model), cluster_(cluster), search_(search) {
  for (int group = 0; group < cluster.num_groups(); ++group)
    shapes_.push_back(stage_shapes(model, global_batch, cluster, group, search));
}

std::vector<Order> SearchSpace::orders(const PipelineShape& shape) const {
  std::vector<Order> all = orders_of_1f1b(shape, search_);
  if (shape.ranks > 1 && cluster_.num_groups() == 1)
    for (const Order& order : other_orders(shape, model_.num_layers, search_)) all.push_back(order);
  return all;
}

bool SearchSpace::allows_shapes(const Plan& plan) const {
  return orders_tokens_alike(plan) && std::ranges::all_of(plan.stages, [&](const Stage& s) {
           return std::ranges::find(shapes(s), shape_of(s)) != shapes(s).end();
         });
}

bool SearchSpace::allows_values(const Stage& s) const {
  const bool stores = search_.store_rest ? s.stored_layers == s.layers - s.ckpt_layers
                                         : search_.store || s.stored_layers == 0;
  const bool recomputes = search_.recompute || s.ckpt_layers == 0;
  const bool all = !search_.recompute_all || s.ckpt_layers == s.layers;
  return stores && recomputes && all && (search_.lone_ends || s.layers > 0) &&
         (search_.shard_within_node || s.replicas == 1) &&
         (s.state_ranks() == 1 || plan::allows(search_.zero_levels, s.zero_level)) &&
         std::ranges::all_of(shares,
                             [&](const Share& share) { return allows_share(share, s, search_); });
}

bool SearchSpace::allows(const Plan& plan) const {
  const auto differs = [&](int stage) { return differs_from_first(plan, stage) != 0; };
  for (int i = 0; i < plan.num_stages(); ++i)
    if (!allows_values(plan.stages[i]) || (!search_.unequal_stages && differs(i))) return false;
  const std::vector<Order> allowed = orders(plan.shape());
  return plan::allows(search_.stages, plan.pipeline_size()) && allows_shapes(plan) &&
         std::ranges::find(allowed, plan.order) != allowed.end();
}

bool SearchSpace::settle(Plan& plan) const {
  for (Stage& stage : plan.stages) {
    if (stage.state_ranks() % stage.replicas != 0 || stage.state_ranks() <= stage.replicas)
      stage.replicas = 1;
    if (stage.expert_data_ranks() == 1) stage.dispatch_tokens = 0;
  }
  if (!allows_shapes(plan)) return false;
  const std::vector<Order> allowed = orders(plan.shape());
  const auto may_go = [&] { return std::ranges::find(allowed, plan.order) != allowed.end(); };
  if (!may_go()) plan.order.run_ahead = 1;  // of few microbatches none run ahead
  return may_go();
}

bool SearchSpace::is_valid(const Plan& plan) const try {
  check(plan, model_, cluster_);
  return true;
} catch (const Error&) {
  return false;
}

}  // namespace brume::plan
