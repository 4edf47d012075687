/// @file Weights, gradients and optimizer state of a stage in bytes: what stays, and what stands
/// beside each pass because it is sharded or on the host. The rules are src/schedule/README.md's.
#pragma once

#include "costs.hpp"

namespace brume::analyzer {

/// Blocks are numbered as expressions: 0 the embedding, 1..l layers, l + 1 the head; those that the
/// stage does not hold take nothing.
class StateMemory {
 public:
  StateMemory(const model::Config& model, StageRole role);

  Expr device_bytes() const;  ///< lives from step to step
  Expr host_bytes() const;    ///< what passes through it to the disk included
  Expr disk_bytes() const;
  /// Host memory through which optimizer state passes to the disk and back, and what the processor
  /// steps to the device, in the updates of the first and of the last blocks.
  Expr through_host_first() const;
  Expr through_host_last() const;

  /// Beside a forward of the first microbatch, where blocks are updated.
  Expr beside_first_forward(const Expr& block) const;
  /// Before anything computes: the updates of the first two blocks.
  Expr at_first_update() const;
  /// While a block behind them is updated, before the forward of the block before it.
  Expr at_update(const Expr& block) const;
  /// After the update of a stage of one layer.
  Expr after_lone_update() const;

  /// Beside a forward of a later microbatch, in warm-up, and where it follows a backward.
  Expr beside_forward(const Expr& block) const;
  Expr beside_forward_after_backward(const Expr& block) const;
  /// Weights of the stage's first block, beside the last one's forward when another one follows.
  Expr before_next_microbatch(const Expr& block) const;

  /// Beside a backward of the first, of a middle, of the last microbatch.
  Expr beside_first_backward(const Expr& block) const;
  Expr beside_middle_backward(const Expr& block) const;
  Expr beside_last_backward(const Expr& block) const;
  /// When the embedding's gradient leaves, in the first and in the last microbatch; its backward
  /// needs no scratch, so that may be more than while it computes.
  Expr stored_by_embedding() const;
  Expr stored_last_by_embedding() const;
  /// Beside the backward of the stage's last block, by an earlier microbatch's backward.
  Expr left_by_backward(const Expr& block) const;
  Expr when_stored(const Expr& block) const;
  /// The same two of a stage without layers; the second one in the first microbatch.
  Expr left_by_lone_backward(const Expr& block) const;
  Expr when_lone_stored(const Expr& block) const;
  /// 1 where a backward's prefetch waits until the earlier microbatch's gradients have left for the
  /// host, and everything else with them.
  Expr waits_for_grads() const;

 private:
  /// Sizes of one kind of block.
  struct Bytes {
    Expr device, host, disk;  ///< kept from step to step
    Expr whole_weights;       ///< a staged block's weights, brought together
    Expr whole_grads;         ///< what a backward writes, when staged
    Expr host_grads;          ///< part of what is kept that lies on the host
    Expr stepped_grads;       ///< of this, what this rank's update needs
    Expr fetched_grads;       ///< ... on the device
    Expr staged_moments;      ///< offloaded optimizer state that comes to the device
    Expr directions;          ///< of whole matrices, where they are not in the gradients' place
    Expr matrix_step;         ///< work on them
    Expr sent_down;           ///< what comes to the host for the processor's step
    Expr for_host;            ///< all that it takes beside what stays
  };
  Expr of(Expr Bytes::*what, const Expr& block) const;
  Expr sum(Expr Bytes::*what) const;
  Expr while_stepped(const Expr& block) const;  ///< beside its weights and moments
  Expr lone_layer() const;
  Expr leaving_grads(const Expr& block) const;
  Expr left_by_first_block(const Expr& later) const;
  Expr tied_weights(const Expr& block) const;
  Expr weights_of_pass(const Expr& block) const;
  Expr weights_beside_backward(const Expr& block, const Expr& microbatches_left) const;
  Expr fresh_grads(const Expr& block) const;
  Expr beside_early_backward(const Expr& block) const;

  StageRole role_;
  bool tied_;  ///< the head reads the embedding's table, on this stage
  Variables v_;
  Expr first_;    ///< number of the stage's first block
  int frozen_;    ///< layers that are not trained: 1 to that number
  Expr trained_;  ///< number of the first block that is
  Expr late_;     ///< gradients are reduced in every microbatch, and so kept for one pass more
  int dense_;     ///< trained layers without experts, behind the frozen ones
  Bytes embedding_, layer_, dense_layer_, frozen_layer_, head_;
};

}  // namespace brume::analyzer
