#include "plan/order.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <tuple>

#include "base/error.hpp"
#include "base/numbers.hpp"
#include "plan/plan.hpp"
#include "plan/rules.hpp"
#include "plan/shapes.hpp"
#include "stage_needs.hpp"

namespace brume::plan {

int Order::steady_microbatches(const PipelineShape& shape) const {
  if (chunks == 1) return 2 * run_ahead * shape.ranks + 4;
  // Rounds as long as the plan's.
  return int(std::int64_t{3} * (run_ahead + 1) * shape.microbatches / rounds(shape).count());
}

std::string Order::text(const PipelineShape& shape) const {
  return fmt::format(
      "{}{}{}",
      run_ahead > 1 ? fmt::format("; each stage runs {} ahead of the next", run_ahead) : "",
      chunks > 1 ? fmt::format("; stages i and i + {} lie on the same devices", shape.ranks) : "",
      zero_bubble ? fmt::format("; gradients of weights fill waits (ZB-H{})", run_ahead) : "");
}

int RankPasses::in_flight_of_chunk(int chunk) const {
  if (order.chunks == 1) return in_flight;
  int most = 0, own = 0;
  each([&](const Pass& pass) {
    if (pass.chunk != chunk) return;
    most = std::max(most, own);
    own += pass.forward ? 1 : -1;
  });
  return most;
}

namespace {

/// Whether each stage has a backward. A frozen embedding has none, which matters if it is alone.
bool has_all_backwards(const Plan& plan, const model::Config& model) {
  return model.has_all_backwards() && (model.frozen_blocks == 0 || plan.stages.front().layers > 0);
}

/// Stages that lie on the same devices differ in their layers and in where they keep what, but not
/// in how they are cut over these devices.
void check_chunks(const Plan& plan, const model::Config& model) {
  const int chunks = plan.order.chunks;
  if (chunks == 1) return;
  require(
      has_all_backwards(plan, model), Failure::input,
      "plan: virtual_stages = {} is not for models whose first layers, or whose embedding alone "
      "on a stage, are frozen: these stages have no backward to wait for",
      chunks);
  require(plan.num_stages() % chunks == 0 && plan.pipeline_size() > 1, Failure::input,
          "plan: virtual_stages = {} must divide its {} stages into at least 2 that have devices "
          "of their "
          "own",
          chunks, plan.num_stages());
  const auto cut = [](const Stage& s) {
    return std::tie(s.nodes, s.devices_per_node, s.microbatch, s.dp, s.cp, s.tp, s.ep, s.mlp_tiles,
                    s.zero_level, s.replicas, s.group);
  };
  for (int i = plan.pipeline_size(); i < plan.num_stages(); ++i) {
    const int first = i % plan.pipeline_size();
    stage_needs(cut(plan.stages[i]) == cut(plan.stages[first]), i,
                "it lies on the devices of stage {}, so nodes, devices_per_node, microbatch, dp, "
                "cp, tp, ep, mlp_tiles, zero_level, replicas and group must be those of stage {}",
                first, first);
  }
}

/// A split backward keeps tensors for its second part.
void check_zero_bubble(const Plan& plan, const model::Config& model) {
  if (!plan.order.splits_backward()) return;
  const auto needs = [](bool holds, const char* rule) {
    require(holds, Failure::input, "plan: zero_bubble = 1 {}", rule);
  };
  needs(plan.num_stages() > 1, "is for pipelines: a plan of one stage never waits for another");
  needs(plan.order.chunks == 1, "has an order of its own: virtual_stages must be 1");
  needs(has_all_backwards(plan, model),
        "is not for models whose first layers, or whose embedding alone on a stage, are frozen: "
        "these stages have no backward to split");
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& s = plan.stages[i];
    // A microbatch's gradients in a buffer of their own would be in use until its second part.
    stage_needs(!sharded(s).grads && s.grad_offload_ratio == 0.0, i,
                "zero_bubble = 1 adds up gradients where they are kept, so zero_level must be 0 or "
                "1 and grad_offload_ratio 0, found {} and {}",
                s.zero_level, s.grad_offload_ratio);
    stage_needs(s.dispatch_tokens == 0, i,
                "zero_bubble = 1 exchanges nothing in second parts, so dispatch_tokens must be 0");
    stage_needs(s.mlp_tiles == 1, i,
                "zero_bubble = 1 keeps a layer's gradients of products for second parts, so "
                "mlp_tiles must be 1");
  }
}

/// Adds an order for each run-ahead that makes a difference.
void add_run_aheads(Order order, const PipelineShape& shape, const deck::SearchKeys& search,
                    std::vector<Order>& found) {
  const bool matters = shape.ranks > 1 && shape.microbatches > 2;
  for (int run_ahead : {1, 2}) {
    if (matters ? !allows(search.run_ahead, run_ahead) : run_ahead > 1) continue;
    order.run_ahead = run_ahead;
    found.push_back(order);
  }
}

/// Numbers of chunks, of several, that the layers of each stage may be cut into. Even ones fill a
/// pipeline best, so these numbers divide the layers of a stage, of which some have one more than
/// others. Embedding and head may count as a layer each: then a chunk for each layer is even too,
/// with the first one and the last one empty.
std::vector<int> numbers_of_chunks(int num_layers, int num_stages, const deck::SearchKeys& search) {
  const int fewest = num_layers / num_stages, most = ceil_div(num_layers, num_stages);
  std::vector<int> found;
  for (int count = 2; count <= fewest; ++count)
    if (allows(search.chunks, count) && (fewest % count == 0 || most % count == 0))
      found.push_back(count);
  const int counted = num_layers + 2, of_each = counted / num_stages;
  if (search.lone_ends && counted % num_stages == 0 && of_each > std::max(fewest, 1) &&
      allows(search.chunks, of_each))
    found.push_back(of_each);
  return found;
}

/// Backwards in two parts need gradients on the device, whole.
bool may_split_backwards(const deck::SearchKeys& search) {
  return search.zero_bubble && allows(search.grad_offload, 0.0) &&
         (allows(search.zero_levels, 0) || allows(search.zero_levels, 1));
}

}  // namespace

void check_order(const Plan& plan, const model::Config& model) {
  check_chunks(plan, model);
  check_zero_bubble(plan, model);
}

std::vector<Order> orders_of_1f1b(const PipelineShape& shape, const deck::SearchKeys& search) {
  std::vector<Order> found;
  add_run_aheads({}, shape, search, found);
  return found;
}

std::vector<Order> other_orders(const PipelineShape& shape, int num_layers,
                                const deck::SearchKeys& search) {
  std::vector<Order> found;
  for (const int chunks : numbers_of_chunks(num_layers, shape.ranks, search)) {
    if (!search.whole_rounds)
      add_run_aheads({.chunks = chunks}, shape, search, found);
    else if (shape.microbatches % shape.ranks == 0)
      found.push_back({.run_ahead = 2, .chunks = chunks});
  }
  if (may_split_backwards(search)) add_run_aheads({.zero_bubble = 1}, shape, search, found);
  return found;
}

}  // namespace brume::plan
