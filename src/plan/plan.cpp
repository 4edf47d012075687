#include "plan/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "plan/knobs.hpp"

namespace brume::plan {

bool is_1f1b(const Plan& plan) { return plan.chunks == 1 && plan.zero_bubble == 0; }

std::string order_text(const Plan& plan) {
  std::string found;
  for (const Knob& knob : knobs)
    if (knob.order && used(knob, plan))
      found +=
          fmt::format("{}{} = {}", found.empty() ? "" : ", ", knob.name, number(knob, plan, 0));
  return found;
}

bool uses_disk(const Stage& stage) {
  return std::ranges::any_of(
      shares, [&](const Share& share) { return share.on_disk() && stage.*share.ratio > 0.0; });
}

int Plan::devices() const {
  int sum = 0;
  for (int i = 0; i < pipeline_size(); ++i) sum += stages[std::size_t(i)].devices();
  return sum;
}

std::string table(const Plan& plan, std::size_t columns) {
  const bool grouped =
      std::ranges::any_of(plan.stages, [](const Stage& s) { return !s.group.empty(); });
  const bool on_disk = std::ranges::any_of(plan.stages, uses_disk);
  std::vector<std::string> header{"stage", "layers"};
  if (grouped) header.emplace_back("group");
  header.emplace_back("nodes x devices");
  std::vector<const Knob*> shown;
  for (const Knob& knob : knobs)
    if (*knob.column && (!knob.rare || used(knob, plan))) shown.push_back(&knob);
  for (const Knob* knob : shown) header.emplace_back(knob->column);
  header.push_back("offload " + symbols(false));
  if (on_disk) header.push_back("on disk " + symbols(true));
  Table table(header);
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& s = plan.stages[std::size_t(i)];
    std::vector<std::string> row{fmt::format("{}", i),
                                 fmt::format("{}-{}", s.first_layer, s.first_layer + s.layers - 1)};
    if (grouped) row.push_back(s.group);
    row.push_back(fmt::format("{} x {}", s.nodes, s.devices_per_node));
    for (const Knob* knob : shown) row.push_back(fmt::format("{}", number(*knob, plan, i)));
    row.push_back(ratios(s, false));
    if (on_disk) row.push_back(ratios(s, true));
    table.add(row);
  }
  return fmt::format(
      "{}global batch {} = b x dp x {} microbatches{}{}{}{}\n", table.text(columns),
      plan.global_batch, plan.microbatches,
      plan.run_ahead > 1 ? fmt::format("; each stage runs {} ahead of the next", plan.run_ahead)
                         : "",
      plan.chunks > 1
          ? fmt::format("; stages i and i + {} lie on the same devices", plan.pipeline_size())
          : "",
      plan.zero_bubble ? fmt::format("; gradients of weights fill waits (ZB-H{})", plan.run_ahead)
                       : "",
      plan.node_order.empty() ? ""
                              : fmt::format("; on nodes {}", fmt::join(plan.node_order, ", ")));
}

Place place(const Plan& plan, int rank) {
  int first = 0;
  for (int i = 0; i < plan.pipeline_size(); ++i) {
    const Stage& stage = plan.stages[std::size_t(i)];
    const int within = rank - first;
    if (within >= 0 && within < stage.devices())
      return {.stage = i, .dp_rank = within / stage.tp, .tp_rank = within % stage.tp};
    first += stage.devices();
  }
  throw Error(Failure::bug, "rank {} is not one of the plan's {}", rank, plan.devices());
}

int rank_of(const Plan& plan, int stage, int dp_rank, int tp_rank) {
  int first = 0;
  for (int i = 0; i < stage % plan.pipeline_size(); ++i)
    first += plan.stages[std::size_t(i)].devices();
  return first + dp_rank * plan.stages[std::size_t(stage)].tp + tp_rank;
}

std::vector<int> stages_beside(const Plan& plan, int first) {
  std::vector<int> stages;
  for (int i = first; i < plan.num_stages(); i += plan.pipeline_size()) stages.push_back(i);
  return stages;
}

ShardPlace shard_place(const Stage& stage, int dp_rank) {
  return {.replica = dp_rank / stage.shard_ranks(), .shard = dp_rank % stage.shard_ranks()};
}

int first_device(const Plan& plan, int stage) {
  int first = 0;
  for (int i = 0; i < stage % plan.pipeline_size(); ++i) {
    const Stage& earlier = plan.stages[std::size_t(i)];
    if (earlier.group == plan.stages[std::size_t(stage)].group) first += earlier.devices();
  }
  return first;
}

int node_at(const Plan& plan, int place) {
  return place < std::ssize(plan.node_order) ? plan.node_order[std::size_t(place)] : place;
}

std::map<Node, std::vector<int>> ranks_of_nodes(const Plan& plan,
                                                const hardware::Cluster& cluster) {
  std::map<Node, std::vector<int>> nodes;
  int rank = 0;
  for (int i = 0; i < plan.pipeline_size(); ++i) {
    const Stage& stage = plan.stages[std::size_t(i)];
    const int group = cluster.index(stage.group), first = first_device(plan, i);
    const int per_node = cluster.groups[std::size_t(group)].devices_per_node;
    for (int d = 0; d < stage.devices(); ++d)
      nodes[{group, node_at(plan, (first + d) / per_node)}].push_back(rank++);
  }
  return nodes;
}

int job_rank(const Plan& plan, const hardware::Cluster& cluster, int rank) {
  const int stage = place(plan, rank).stage;
  const int group = cluster.index(plan.stages[std::size_t(stage)].group);
  const int device = first_device(plan, stage) + rank - rank_of(plan, stage, 0, 0);
  const int per_node = cluster.groups[std::size_t(group)].devices_per_node;
  int job_rank = node_at(plan, device / per_node) * per_node + device % per_node;
  for (int i = 0; i < group; ++i) job_rank += cluster.groups[std::size_t(i)].devices();
  return job_rank;
}

Plan equal_stages(const model::Config& model, int global_batch, int num_stages, const Stage& like) {
  Plan plan;
  plan.global_batch = global_batch;
  plan.microbatches = global_batch / (like.microbatch * like.dp);
  for (int s = 0; s < num_stages; ++s) {
    Stage& stage = plan.stages.emplace_back(like);
    stage.layers = model.num_layers / num_stages;
    stage.first_layer = s * stage.layers;
    stage.devices_per_node = like.dp * like.tp;
  }
  return plan;
}

int in_flight(int run_ahead, int stages_after, int microbatches) {
  return std::min(run_ahead * stages_after, microbatches - 1);
}

BlockRange block_range(const Plan& plan, int stage) {
  const Stage& s = plan.stages[std::size_t(stage)];
  const bool last = stage + 1 == plan.num_stages();
  // Layer k is block k + 1; the embedding goes with the first stage, the head with the last.
  return {.first = stage == 0 ? 0 : s.first_layer + 1,
          .last = s.first_layer + s.layers + (last ? 1 : 0)};
}

}  // namespace brume::plan
