#include "plan/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "base/text.hpp"
#include "plan/knobs.hpp"

namespace brume::plan {

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

bool orders_tokens_alike(const Plan& plan) {
  const Stage& first = plan.stages.front();
  return std::ranges::all_of(plan.stages, [&](const Stage& s) {
    return s.gather_keys == first.gather_keys && (s.gather_keys == 0 || s.cp == first.cp);
  });
}

int Plan::devices() const {
  int sum = 0;
  for (int i = 0; i < pipeline_size(); ++i) sum += stages[i].devices();
  return sum;
}

std::string blocks_text(const Plan& plan, int stage) {
  const Stage& s = plan.stages[stage];
  if (s.layers == 0) return stage == 0 ? "embedding" : "head";
  return fmt::format("{}-{}", s.first_layer, s.first_layer + s.layers - 1);
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
    const Stage& s = plan.stages[i];
    std::vector<std::string> row{fmt::format("{}", i), blocks_text(plan, i)};
    if (grouped) row.push_back(s.group);
    row.push_back(fmt::format("{} x {}", s.nodes, s.devices_per_node));
    for (const Knob* knob : shown) row.push_back(fmt::format("{}", number(*knob, plan, i)));
    row.push_back(ratios(s, false));
    if (on_disk) row.push_back(ratios(s, true));
    table.add(row);
  }
  return fmt::format("{}global batch {} = b x dp x {} microbatches{}{}\n", table.text(columns),
                     plan.global_batch, plan.microbatches, plan.order.text(plan.shape()),
                     plan.node_order.empty()
                         ? ""
                         : fmt::format("; on nodes {}", fmt::join(plan.node_order, ", ")));
}

Mesh<int> mesh(const Stage& stage, AxisSet axes) {
  if (axes.contains(Axis::cp)) return sequences_mesh(stage.dp, stage.cp, stage.tp);
  return weights_mesh(stage.tp, stage.expert_data_ranks(), stage.state_ranks(), stage.replicas);
}

int stage_index(const Plan& plan, int rank) {
  int end = 0;
  for (int i = 0; i < plan.pipeline_size(); ++i) {
    end += plan.stages[i].devices();
    if (0 <= rank && rank < end) return i;
  }
  throw Error(Failure::bug, "rank {} is not one of the plan's {}", rank, plan.devices());
}

int first_rank(const Plan& plan, int stage) {
  int first = 0;
  for (int i = 0; i < stage % plan.pipeline_size(); ++i) first += plan.stages[i].devices();
  return first;
}

Place place(const Plan& plan, int rank) {
  const int index = stage_index(plan, rank), on_stage = rank - first_rank(plan, index);
  const Stage& stage = plan.stages[index];
  const Mesh<int> mesh = plan::mesh(stage);
  const Mesh<int> sequences = plan::mesh(stage, Axis::cp);
  return {index, mesh, coordinates(mesh, on_stage), stage.ep,
          coordinates(sequences, on_stage)[Axis::cp]};
}

std::vector<int> members(const Plan& plan, int rank, AxisSet axes) {
  std::vector<int> ranks;
  if (axes.contains(Axis::stage)) {
    ranks.resize(std::size_t(plan.devices()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  const int stage = stage_index(plan, rank), first = first_rank(plan, stage);
  const Mesh<int> mesh = plan::mesh(plan.stages[stage], axes);
  ranks = members(mesh, coordinates(mesh, rank - first), axes);
  for (int& member : ranks) member += first;
  return ranks;
}

model::Layout layout(const model::Block& block, const Place& place) {
  return model::layout(block, place.mesh.size(Axis::tp), place.at[Axis::tp],
                       place.mesh.size(block.reduction_axes()),
                       {place.ep, place.index(model::expert_axes)});
}

std::vector<int> stages_beside(const Plan& plan, int first) {
  std::vector<int> stages;
  for (int i = first; i < plan.num_stages(); i += plan.pipeline_size()) stages.push_back(i);
  return stages;
}

int first_device(const Plan& plan, int stage) {
  int first = 0;
  for (int i = 0; i < stage % plan.pipeline_size(); ++i) {
    const Stage& earlier = plan.stages[i];
    if (earlier.group == plan.stages[stage].group) first += earlier.devices();
  }
  return first;
}

int node_at(const Plan& plan, int place) {
  return place < std::ssize(plan.node_order) ? plan.node_order[place] : place;
}

std::map<Node, std::vector<int>> ranks_of_nodes(const Plan& plan,
                                                const hardware::Cluster& cluster) {
  std::map<Node, std::vector<int>> nodes;
  int rank = 0;
  for (int i = 0; i < plan.pipeline_size(); ++i) {
    const Stage& stage = plan.stages[i];
    const int group = cluster.index(stage.group), first = first_device(plan, i);
    const int per_node = cluster.groups[group].devices_per_node;
    for (int d = 0; d < stage.devices(); ++d)
      nodes[{group, node_at(plan, (first + d) / per_node)}].push_back(rank++);
  }
  return nodes;
}

int job_rank(const Plan& plan, const hardware::Cluster& cluster, int rank) {
  const int stage = stage_index(plan, rank);
  const int group = cluster.index(plan.stages[stage].group);
  const int device = first_device(plan, stage) + rank - first_rank(plan, stage);
  const int per_node = cluster.groups[group].devices_per_node;
  int job_rank = node_at(plan, device / per_node) * per_node + device % per_node;
  for (int i = 0; i < group; ++i) job_rank += cluster.groups[i].devices();
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
    stage.devices_per_node = like.devices() / like.nodes;
  }
  return plan;
}

BlockRange block_range(const Plan& plan, int stage) {
  const Stage& s = plan.stages[stage];
  const bool last = stage + 1 == plan.num_stages();
  // Layer k is block k + 1; the embedding goes with the first stage, the head with the last.
  return {.first = stage == 0 ? 0 : s.first_layer + 1,
          .last = s.first_layer + s.layers + (last ? 1 : 0)};
}

int last_backward_block(const Plan& plan, int stage) {
  const bool splits = plan.order.splits_backward() && plan.stages[stage].layers > 0;
  return std::max(block_range(plan, stage).first, splits ? 1 : 0);
}

}  // namespace brume::plan
