/// @file Peaks of a stage's memory, as they are built.
#pragma once

#include <vector>

#include "segment_bytes.hpp"
#include "stage_memory.hpp"

namespace brume::analyzer {

/// Builds the peaks of one stage role. Layers are numbered 1..l; of the first k all is stored, the
/// last c are recomputed. `j` below is a layer's number as an expression, so that the same formula
/// serves every candidate for the peak.
class StageMemoryBuilder {
 public:
  StageMemoryBuilder(const model::Config& model, StageRole role);
  MemoryExpressions build() const;

 private:
  Expr is_recomputed(const Expr& j) const { return less(v_.l - v_.c, j); }
  /// Layers that keep nothing for a backward, as they have none: 1 to that number.
  double frozen() const { return role_.frozen_layers(); }
  /// 1 unless the stage has no backward at all, so that no gradient comes.
  Expr has_backward() const {
    return role_.last || role_.trains_all_layers() ? Expr(1.0) : less(frozen(), v_.l);
  }
  /// Of the first `count` layers those that have a backward.
  Expr trained(const Expr& count) const {
    return role_.trains_all_layers() ? count : max(count - frozen(), 0.0);
  }
  Expr is_stored(const Expr& j) const { return at_most(j, v_.k); }
  Expr of_layer(const Expr& j, const LayerBytes& bytes) const;
  Expr of_last_layer(const LayerBytes& bytes) const;
  Expr of_layers_before(const Expr& j, const LayerBytes& bytes) const;
  Expr of_all_layers(const LayerBytes& bytes) const;
  std::vector<Expr> turning_points() const;
  Expr moved(const Expr& j) const { return moved(j, moved_); }
  Expr moved(const Expr& j, const LayerBytes& bytes) const;
  Expr moved_in_flight(const LayerBytes& bytes) const;
  Expr host_bytes() const;
  Expr kept_before(const Expr& j) const;
  /// Whether messages have a whole pass to travel (schedule's README).
  Expr runs_ahead() const { return less(1.0, v_.r) * less(2.0, v_.G); }
  Expr forward_streams(const Expr& j) const;
  Expr forward_streams_ahead(const Expr& j) const;
  Expr forward_peak(const Expr& j) const;
  Expr backward_peak(const Expr& j, const Expr& next) const;
  Expr ahead_of_next(const Expr& left, const Expr& arriving) const;
  Expr ahead(const Expr& j) const;

  Expr others_bytes() const;
  Expr ahead_of_turn() const;
  Expr steady_forward(const Expr& j) const;
  Expr first_forward() const;
  Expr head_forward() const;
  Expr table_gradient() const;
  Expr embedding_backward() const;
  Expr highest_backward() const;
  Expr backward(const Expr& j, const Expr& others, const Expr& left, bool after_forward) const;
  Expr later_backward(const Expr& j) const;
  Expr backward_again(const Expr& j, const Expr& others) const;
  Expr waiting_backward(const Expr& j, const Expr& others, const Expr& next) const;
  Expr beside_one_layer(const Expr& j) const;
  Expr arriving_in_one_layer(const Expr& j) const;
  Expr ahead_in_one_layer(const Expr& j, const Expr& left) const;
  Expr drains_at_once() const;
  Expr head_backward() const;

  const model::Config& model_;
  StageRole role_;
  Variables v_;
  StateMemory state_;
  std::vector<SegmentBytes> segments_;  ///< of a layer, in forward order
  SegmentBytes head_;
  Expr ahead_, ahead_of_last_;  ///< brings_ahead(), of the last layer
  Expr stream_, shard_;         ///< of all tokens, and of those that a tensor-parallel rank keeps
  Expr shared_;                 ///< 1 with tensor parallelism, else 0
  LayerBytes kept_;
  LayerBytes moved_, to_disk_;  ///< what offload moves of these, and of that what goes to the disk
  Expr table_elements_;         ///< of this rank's part of the token table
};

}  // namespace brume::analyzer
