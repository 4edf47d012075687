/// @file Plans that the lists of a search allow.
#pragma once

#include <vector>

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "plan/plan.hpp"
#include "plan/shapes.hpp"

namespace brume::plan {

/// Shapes, orders and knobs that a search may give to plans of one batch.
class SearchSpace {
 public:
  /// The arguments must outlive the object.
  SearchSpace(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
              const deck::SearchKeys& search);

  /// Shapes of stages of a group.
  const std::vector<StageShape>& shapes(const Stage& stage) const {
    return shapes_[cluster_.index(stage.group)];
  }
  /// Orders of plans of so many stages with devices of their own.
  std::vector<Order> orders(const PipelineShape& shape) const;

  /// Whether each stage may be split as it is.
  bool allows_shapes(const Plan& plan) const;
  /// Whether each knob has a value of its list, and stages have allowed shapes.
  bool allows(const Plan& plan) const;
  /// Gives a plan whose stages were reshaped what follows from their shapes: stages with nothing to
  /// shard have one replica, and stages with few microbatches do not run ahead.
  /// @return whether shapes and order are allowed
  bool settle(Plan& plan) const;
  /// Whether a plan can run on the cluster.
  bool is_valid(const Plan& plan) const;

 private:
  bool allows_values(const Stage& stage) const;

  const model::Config& model_;
  const hardware::Cluster& cluster_;
  const deck::SearchKeys& search_;
  std::vector<std::vector<StageShape>> shapes_;  ///< [group]
};

}  // namespace brume::plan
