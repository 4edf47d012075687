/// @file Terms of a stage's time, as they are built.
#pragma once

#include <vector>

#include "block_costs.hpp"
#include "kept_state.hpp"
#include "layer_costs.hpp"
#include "stage_time.hpp"

namespace brume::analyzer {

enum class Direction { forward, backward };

/// Which microbatch's pass: the first one updates, the last one reduces all gradients.
enum class Microbatch { first, middle, last };

/// Builds the terms of one stage role. Windows follow the order of schedule's slots: while one
/// block computes, the transfers of its neighbours are on their way.
class StageTimeBuilder {
 public:
  StageTimeBuilder(const model::Config& model, const hardware::Machine& machine, StageRole role);
  TimeTerms build();

 private:
  Load forward_load(Microbatch which, const LayerCosts& layer, const Expr& first,
                    const Expr& last) const;
  Load backward_load(Microbatch which, const LayerCosts& layer, const Expr& first,
                     const Expr& last) const;
  Expr layer_s(Direction direction, Microbatch which, const LayerCosts& layer, const Expr& first,
               const Expr& last) const;
  Load layer_load(Direction direction, Microbatch which, const LayerCosts& layer, const Expr& first,
                  const Expr& last) const;
  LayerCosts first_layer(const Expr& layers, const Expr& stored, const Expr& recomputed) const;
  LayerCosts last_layer(const Expr& layers, const Expr& stored, const Expr& recomputed) const;
  Expr layers_s(Direction direction, Microbatch which) const;
  Expr layers_s(Direction direction, Microbatch which, const Expr& layers) const;
  template <typename Of>
  Expr over_layers(const Expr& layers, Of&& of) const;
  bool has_embedding(Direction direction) const {
    return direction == Direction::forward ? role_.first : role_.trains_embedding();
  }
  /// The block whose gradients are the last ones.
  const BlockCosts& first_trained() const {
    return role_.trains_embedding() ? embedding_ : role_.layers || !role_.last ? block_ : head_;
  }
  double frozen() const { return role_.frozen_layers(); }
  Expr trained_layers() const { return v_.l - frozen(); }
  Expr tail_s(const Load& load) const;
  Expr layer_tail_s(Direction direction, Microbatch which) const;
  Expr left_out_s() const;
  Load weights_of_head() const;
  Load embedding_load(Direction direction, Microbatch which) const;
  Expr embedding_s(Direction direction, Microbatch which) const {
    return window(embedding_load(direction, which));
  }
  Expr head_s(Direction direction, Microbatch which) const;
  Expr first_updates_s() const;
  Expr updates_ahead_s() const;
  Expr recompute_ahead_s() const;
  Expr pass_s(Direction direction, Microbatch which) const;

  void middle(TimeTerms& terms) const;
  void ends(TimeTerms& terms) const;
  void tails(TimeTerms& terms) const;
  void communication(TimeTerms& terms) const;
  void copies(TimeTerms& terms) const;

  Expr window(const Load& load) const { return analyzer::window(costs_, load); }
  /// What follows a block's backward.
  static const Load& grads(const BlockCosts& block, Microbatch which) {
    return which == Microbatch::last ? block.last_grads : block.grads;
  }

  const model::Config& model_;
  StageRole role_;
  Costs costs_;
  Variables v_;
  StageBlocks blocks_;
  std::vector<model::SegmentKind> kinds_;  ///< of a layer
  double weight_bytes_;                    ///< of an element
  Expr dense_ = 0.0;  ///< share of layers without experts where others have them
  BlockCosts embedding_, block_, head_;
  struct Layers {
    LayerCosts stored, selective, recomputed;
  };
  Layers layers_, last_;  ///< the last layer of the last stage is never offloaded
  Expr embedding_forward_s_, embedding_backward_s_, head_forward_s_, head_backward_s_;
};

/// Sum over so many layers, the stage's last ones. Of the stage's the first k are stored and the
/// last c recomputed.
template <typename Of>
Expr StageTimeBuilder::over_layers(const Expr& layers, Of&& of) const {
  if (!role_.layers) return 0.0;
  const bool all = role_.trains_all_layers();
  const Expr c = all ? v_.c : min(v_.c, layers), k = all ? v_.k : max(v_.k - (v_.l - layers), 0.0);
  const Expr several = less(1.0, layers);
  // Between the first and the last one, which are of a kind where there is any, or only that one:
  const Expr recomputed = c - less(0.0, c) - several * at_most(layers, c),
             stored = k - several * less(0.0, k) - at_most(layers, k),
             selective = layers - 1.0 - several - recomputed - stored;
  return stored * of(layers_.stored, 0.0, 0.0) + selective * of(layers_.selective, 0.0, 0.0) +
         recomputed * of(layers_.recomputed, 0.0, 0.0) +
         several * of(first_layer(layers, k, c), 1.0, 0.0) +
         of(last_layer(layers, k, c), 1.0 - several, 1.0);
}

}  // namespace brume::analyzer
