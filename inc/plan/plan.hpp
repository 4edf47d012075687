/// @file The plan: how each stage splits the model and saves memory. The waist between planner and
/// runtime.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/axes.hpp"
#include "plan/order.hpp"

namespace brume::plan {

/// One pipeline stage and its strategy. Each member has its row in plan/knobs.hpp.
struct Stage {
  int first_layer = 0;
  int layers = 0;
  int nodes = 1;  ///< mesh: nodes x devices_per_node = dp * cp * tp
  int devices_per_node = 1;
  int microbatch = 1;  ///< sequences per microbatch and data-parallel rank; 1 where cp > 1
  int dp = 1;
  int cp = 1;           ///< ranks that share the sequences of a data-parallel rank
  int gather_keys = 0;  ///< 1: these gather keys and values instead of exchanging heads
  int tp = 1;
  int ep = 1;  ///< ranks over which whole experts are divided: 1 (tp cuts each), tp or a multiple
  int dispatch_tokens = 0;  ///< 1: these send a token to the ranks of its experts, else to all
  int mlp_tiles = 1;        ///< tiles of tokens in which a rank works on a dense MLP
  int zero_level = 0;   ///< 1 shards optimizer state over state_ranks(), 2 also gradients, 3 also
                        ///< weights
  int replicas = 1;     ///< copies of the sharded state, each over shard_ranks() neighbours
  int ckpt_layers = 0;  ///< last layers of the stage whose activations are recomputed
  /// First layers of the stage that keep all they can. The ones between are recomputed selectively:
  /// outputs of norms and activations are made again.
  int stored_layers = 0;
  double weight_offload_ratio = 0.0;  ///< shares that do not stay on the device
  double grad_offload_ratio = 0.0;
  double optim_offload_ratio = 0.0;
  double act_offload_ratio = 0.0;
  double optim_disk_ratio = 0.0;  ///< share on disk, a part of optim_offload_ratio
  double act_disk_ratio = 0.0;
  double host_update_ratio = 0.0;  ///< stepped by the node's processor, a part of what is offloaded
  std::string group = {};          ///< group of the cluster; empty if it has one only

  /// Ranks with tokens of their own.
  int data_ranks() const { return dp * cp; }
  int devices() const { return data_ranks() * tp; }
  /// Data-parallel ranks that divide whole experts, each with the ranks of its tp group.
  int expert_data_ranks() const { return split().expert_data_ranks(); }
  /// Data-parallel ranks with the same weights.
  int state_ranks() const { return data_ranks() / expert_data_ranks(); }
  int shard_ranks() const { return state_ranks() / replicas; }
  model::Split split() const {
    return {.tp = tp,
            .microbatch = microbatch,
            .ep = ep,
            .cp = cp,
            .gather_keys = gather_keys,
            .dispatch_tokens = dispatch_tokens,
            .mlp_tiles = mlp_tiles};
  }
  bool operator==(const Stage&) const = default;
};

struct Plan {
  int version = 1;
  int global_batch = 0;  ///< sequences an iteration
  int microbatches = 1;  ///< G, an iteration; microbatch * dp * G = global_batch in every stage
  Order order = {};
  /// [nodes] the node on which the devices lie that stages count as those of the i-th one; none:
  /// nodes in the cluster's order.
  std::vector<int> node_order = {};
  /// Stages in the order of the model's layers. Stages i, i + pipeline_size(), ... share devices.
  std::vector<Stage> stages;

  int num_stages() const { return int(stages.size()); }
  /// Groups of devices that the stages lie on: the first stages, one each.
  int pipeline_size() const { return num_stages() / order.chunks; }
  PipelineShape shape() const { return {pipeline_size(), microbatches}; }
  /// Whether a stage may have no layer, because it holds the embedding or the head.
  bool may_lack_layers(int stage) const {
    return num_stages() > 1 && (stage == 0 || stage + 1 == num_stages());
  }
  int devices() const;
  bool operator==(const Plan&) const = default;
};

bool uses_disk(const Stage& stage);

/// Whether all stages order tokens alike: if one gathers keys, all do, and have the same cp.
bool orders_tokens_alike(const Plan& plan);

/// Returns the knobs that make a plan's order another one: "virtual_stages = 2"; empty: 1F1B.
std::string order_text(const Plan& plan);

/// The text form: TOML, exact. `parse` names origin, line and key of what is wrong.
std::string text(const Plan& plan);
Plan parse(const std::string& text, const std::string& origin);
Plan load(const std::string& path);

/// Checks a plan against the model and the cluster: layers add up, each mesh lies
/// within a node or on whole nodes of its group, meshes fill the cluster, or of several groups
/// whole nodes, tp divides heads and FFN, every knob is in its range, GPUs have kernels for it.
/// @throws Error(input) naming the stage, the key, what was expected and found
void check(const Plan& plan, const model::Config& model, const hardware::Cluster& cluster);

/// The part of it that all plans for a model have in common: whether GPUs have kernels for it.
void check_model(const model::Config& model, const hardware::Cluster& cluster);

/// The blocks of a stage for people: "0-3", "embedding", "head".
std::string blocks_text(const Plan& plan, int stage);

/// A table for people, one line a stage.
std::string table(const Plan& plan, std::size_t columns = usual_columns);

/// The mesh by which a stage divides its weights, or if `axes` name them, its sequences.
Mesh<int> mesh(const Stage& stage, AxisSet axes = {});

/// Position of a rank: the first stages in order own consecutive ranks.
struct Place {
  int stage;  ///< the first one of those that it holds
  Mesh<int> mesh;
  Coordinates at;
  int ep = 1;       ///< the stage's
  int cp_rank = 0;  ///< among the ranks that share its sequences

  /// Axes, apart from tp, along which ranks hold the same values of a parameter.
  AxisSet holders(const model::Parameter& parameter) const {
    return parameter.expert_dim < 0 ? model::data_axes : model::state_axes;
  }

  int index(AxisSet axes) const { return plan::index(mesh, at, axes); }
};
Place place(const Plan& plan, int rank);
int stage_index(const Plan& plan, int rank);  ///< the stage of its place
int first_rank(const Plan& plan, int stage);

/// Ranks of a rank's group, in order. A group along the stages is the whole job.
std::vector<int> members(const Plan& plan, int rank, AxisSet axes);

/// A block's flat buffer on a rank.
model::Layout layout(const model::Block& block, const Place& place);

/// The stages that lie on the devices of `first`, one of the first pipeline_size() ones.
std::vector<int> stages_beside(const Plan& plan, int first);

/// `num_stages` stages of as many layers each, which divide the model's; all else as in `like`.
Plan equal_stages(const model::Config& model, int global_batch, int num_stages, const Stage& like);

/// The first device of a stage among those of its group, which its stages own in their order in the
/// pipeline.
int first_device(const Plan& plan, int stage);

/// The node of its group on which the devices lie that stages count as those of the `place`-th one.
int node_at(const Plan& plan, int place);

/// A node of a cluster.
struct Node {
  int group;
  int index;  ///< index in its group

  auto operator<=>(const Node&) const = default;
};

/// The node that each rank of a plan is on.
std::map<Node, std::vector<int>> ranks_of_nodes(const Plan& plan, const hardware::Cluster& cluster);

/// The rank of a job, whose ranks are numbered group by group, that takes a rank of the plan.
int job_rank(const Plan& plan, const hardware::Cluster& cluster, int rank);

/// Blocks of the model a stage holds, as indices: 0 embedding, 1..L layers, L + 1 head.
struct BlockRange {
  int first;
  int last;  ///< inclusive
};
BlockRange block_range(const Plan& plan, int stage);

/// The last block over which backwards of a stage pass, if the model trains all. A split backward
/// of an embedding has its second part only, unless the stage has no layer.
int last_backward_block(const Plan& plan, int stage);

}  // namespace brume::plan
