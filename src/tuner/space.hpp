/// @file The outer loops of the search: pipeline configurations, and layouts of stages.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::analyzer {
struct StageRole;
}

namespace brume::tuner {

/// Mesh of a stage and its split.
struct Layout {
  int group = 0;
  int nodes = 1;  ///< mesh: within a node, or whole nodes
  int devices_per_node = 1;
  int microbatch = 1;
  int dp = 1;
  int cp = 1;
  int gather_keys = 0;
  int tp = 1;
  int ep = 1;
  int dispatch_tokens = 0;
  int mlp_tiles = 1;
  bool disk = false;         ///< its nodes have one that a search may use
  bool host_update = false;  ///< the search may let their processors step
  double times = 1.0;        ///< slowdown as in analyzer::StageRole, in any order of the nodes

  int devices() const { return nodes * devices_per_node; }
  auto operator<=>(const Layout&) const = default;
};

/// Parts of a pipeline configuration that determine a stage's memory.
struct MemoryKey {
  /// Earlier microbatches in flight; of several chunks what their passes in flight add up to.
  double in_flight;
  int lag;       ///< microbatches that wait for the second part of their backward
  double error;  ///< the share by which memory may exceed the formula

  auto operator<=>(const MemoryKey&) const = default;
};

/// Stages and microbatches of a plan, the order of its passes, and the layouts its stages choose
/// from; b dp G = B in each.
struct PipelineConfig {
  int num_stages = 1;  ///< stages with devices of their own: Plan::pipeline_size()
  int microbatches = 1;
  plan::Order order = {};
  /// MemoryKey::error; formulas know neither chunks nor parts of backwards.
  double memory_error = 0.0;
  std::vector<Layout> layouts;

  plan::PipelineShape shape() const { return {num_stages, microbatches}; }
  /// Microbatches in flight on a stage with `after` stages after it.
  double in_flight(int after) const;
  MemoryKey memory_key(int after) const;
  /// Embedding and head are alone on a chunk, so the first and the last stage have a layer less.
  bool lone_ends = false;
  /// Least and most layers of a stage: each of the others has a layer for each chunk.
  int least_layers(int after) const {
    const bool end = after == 0 || after + 1 == num_stages;
    return order.chunks - (lone_ends && end ? 1 : 0);
  }
  int most_layers(int of_model) const {
    return of_model - (num_stages - 1) * order.chunks + (lone_ends ? 2 : 0);
  }
};

/// A stage of this layout, without savings.
plan::Stage stage_of(const Layout& mesh, const std::string& group);

/// Position of a stage in a pipeline.
struct StagePosition {
  const PipelineConfig& config;
  int layout;
  int after;  ///< stages after it

  const Layout& mesh() const { return config.layouts[layout]; }
  /// Its neighbours are taken to be of its own group; MessageTable knows what others cost.
  analyzer::StageRole role() const;
};

/// All configurations of 1F1B that the search lists allow and the model and cluster can take.
/// Stages of one layout each, or, with `search.unequal_stages` or several groups, all layouts of a
/// number of microbatches together.
std::vector<PipelineConfig> configs(const model::Config& model, int global_batch,
                                    const hardware::Cluster& cluster,
                                    const deck::SearchKeys& search);

/// The same of other orders, all stages of one layout: several chunks a stage, and backwards in two
/// parts. They fill a pipeline from as many microbatches on as there are stages.
std::vector<PipelineConfig> configs_in_other_orders(const model::Config& model, int global_batch,
                                                    const hardware::Cluster& cluster,
                                                    const deck::SearchKeys& search);

/// Whether a mesh may begin at this device: within a node, or at a node's first device.
bool may_begin(int first_device, int devices, int devices_per_node);

}  // namespace brume::tuner
