#include "state_memory.hpp"

#include "kept_state.hpp"

namespace brume::analyzer {

StateMemory::StateMemory(const model::Config& model, StageRole role)
    : role_(role),
      tied_(model.tied_head && role.first && role.last),
      v_(model),
      first_(role.first ? 0.0 : 1.0),
      frozen_(role.frozen_layers()),
      trained_(role.trains_embedding() ? 0.0 : 1.0 + role.frozen_layers()),
      late_(v_.sharded().grads),
      dense_(std::max(role.dense - frozen_, 0)) {
  const StageBlocks blocks(model, role);
  const double weight_bytes = model::weight_bytes(model.precision), grad_bytes = model::grad_bytes;
  const auto of_block = [&](const model::Block& block) {
    const KeptState s = kept_state(model, block, role.host_update);
    const MatrixStepBytes matrices = matrix_step_bytes(model, block, s);
    const Expr weights = s.weights.trained + s.weights.frozen,
               host_weights = s.host_weights.trained + s.host_weights.frozen;
    const Expr on_disk =
        s.optimizer_bytes_before(model, role.disk ? s.disk_optimizer : Expr(0.0), s.host_updated);
    const Expr offloaded = s.optimizer_bytes_before(model, s.offloaded_optimizer, 0.0);
    const bool fp32 = model.precision == model::Precision::fp32;
    const Expr down = grad_bytes * s.grads_down;
    return Bytes{
        .device = weight_bytes * (weights - host_weights) + grad_bytes * (s.grads - s.host_grads) +
                  s.optimizer_bytes(model, s.optimizer - s.offloaded_optimizer),
        .host = weight_bytes * host_weights + grad_bytes * s.host_grads + offloaded - on_disk,
        .disk = on_disk,
        .whole_weights = s.weights_staged * weight_bytes * (s.whole.trained + s.whole.frozen),
        .whole_grads = s.grads_staged * grad_bytes * s.whole.trained,
        .host_grads = grad_bytes * s.host_grads,
        // The host holds the end of the block: the last shard has most of it.
        .stepped_grads = grad_bytes * min(s.host_grads, s.optimizer),
        .fetched_grads = grad_bytes * s.fetched_grads,
        .staged_moments =
            s.optimizer_bytes_before(model, s.offloaded_optimizer - s.host_updated, s.host_updated),
        .directions = matrices.directions,
        .matrix_step = matrices.work,
        .sent_down = down + (fp32 ? weight_bytes : 0.0) * s.host_updated,
        .for_host = down + weight_bytes * s.host_updated};
  };
  if (role_.first) embedding_ = of_block(blocks.embedding);
  layer_ = of_block(blocks.layer);
  if (dense_ > 0) dense_layer_ = of_block(blocks.dense_layer);
  if (frozen_ > 0) frozen_layer_ = of_block(blocks.frozen_layer);
  if (role_.last) head_ = of_block(blocks.head);
}

Expr StateMemory::of(Expr Bytes::*what, const Expr& block) const {
  Expr layer = layer_.*what;
  if (dense_ > 0) layer = select(at_most(block, double(role_.dense)), dense_layer_.*what, layer);
  if (frozen_ > 0) layer = select(at_most(block, double(frozen_)), frozen_layer_.*what, layer);
  Expr bytes = layer * at_most(1.0, block) * at_most(block, v_.l);
  if (role_.first) bytes += embedding_.*what * at_most(0.0, block) * less(block, 1.0);
  if (role_.last) bytes += head_.*what * less(v_.l, block) * at_most(block, v_.l + 1.0);
  return bytes;
}

Expr StateMemory::sum(Expr Bytes::*what) const {
  Expr bytes = (v_.l - double(frozen_)) * layer_.*what;
  if (dense_ > 0)
    bytes += min(double(dense_), v_.l - double(frozen_)) * (dense_layer_.*what - layer_.*what);
  if (frozen_ > 0) bytes += double(frozen_) * frozen_layer_.*what;
  if (role_.first) bytes += embedding_.*what;
  if (role_.last) bytes += head_.*what;
  return bytes;
}

Expr StateMemory::device_bytes() const { return sum(&Bytes::device); }
Expr StateMemory::host_bytes() const { return sum(&Bytes::host); }
Expr StateMemory::disk_bytes() const { return sum(&Bytes::disk); }

/// The first two are written when the third has been read. While the processor steps the first one
/// what the second one's step needs comes down.
Expr StateMemory::through_host_first() const {
  return of(&Bytes::disk, first_) + of(&Bytes::disk, first_ + 1.0) +
         of(&Bytes::disk, first_ + 2.0) +
         max(of(&Bytes::for_host, first_) + of(&Bytes::sent_down, first_ + 1.0),
             of(&Bytes::for_host, first_ + 1.0));
}

Expr StateMemory::through_host_last() const {
  const Expr last = v_.l + (role_.last ? 1.0 : 0.0);
  return of(&Bytes::disk, last - 1.0) + of(&Bytes::disk, last) + of(&Bytes::for_host, last);
}

// --- weights ------------------------------------------------------------------------------------

/// The table that a head on the same stage reads too.
Expr StateMemory::tied_weights(const Expr& block) const {
  return tied_ ? embedding_.whole_weights * less(v_.l, block) * at_most(block, v_.l + 1.0)
               : Expr(0.0);
}

Expr StateMemory::weights_of_pass(const Expr& block) const {
  return of(&Bytes::whole_weights, block) + tied_weights(block);
}

/// Of the pass and of the one after it. An embedding's backward reads no weights. After a stage's
/// first block comes the first one's forward while there are microbatches, then the last one's
/// backward; after the last microbatch's, nothing.
Expr StateMemory::weights_beside_backward(const Expr& block, const Expr& microbatches_left) const {
  const Expr own = less(0.0, block) * of(&Bytes::whole_weights, block);
  const Expr next = less(1.0 + frozen_, block) * of(&Bytes::whole_weights, block - 1.0);
  Expr again = role_.first ? embedding_.whole_weights : Expr(0.0);
  if (!role_.first && frozen_ > 0) again = frozen_layer_.whole_weights;
  // Beside a head that is tied to it the table is there already.
  if (tied_ && role_.frozen > 0) again = at_most(block, v_.l) * again;
  const Expr last =
      less(trained_, v_.l) * less(0.0, v_.p) * less(0.0, microbatches_left) * layer_.whole_weights;
  const Expr around = at_most(block, trained_) * select(less(v_.p, microbatches_left), again, last);
  return own + tied_weights(block) + next + around;
}

// --- forward ------------------------------------------------------------------------------------

Expr StateMemory::before_next_microbatch(const Expr& block) const {
  if (role_.last) return 0.0;
  return at_most(v_.l, block) * less(first_, v_.l) * of(&Bytes::whole_weights, first_);
}

Expr StateMemory::beside_first_forward(const Expr& block) const {
  const Expr next = block + 1.0, after = block + 2.0;
  const Expr of_first = at_most(block, first_) * of(&Bytes::staged_moments, block);
  Expr ahead = of(&Bytes::whole_weights, next) + of(&Bytes::whole_weights, after);
  // What is frozen is not updated, and so comes right before its forward, but where the update of
  // the block behind it comes before.
  if (role_.frozen > 0)
    ahead = select(less(after, trained_), of(&Bytes::whole_weights, next),
                   select(less(next, trained_), of(&Bytes::whole_weights, after), ahead));
  return weights_of_pass(block) + ahead + of_first + of(&Bytes::staged_moments, next) +
         of(&Bytes::staged_moments, after) + of(&Bytes::fetched_grads, after) +
         at_most(v_.l, block) * tied_weights(next) +
         less(0.0, v_.p) * before_next_microbatch(block);
}

/// The gradients are let go of when the directions are made, before these are worked on.
Expr StateMemory::while_stepped(const Expr& block) const {
  return of(&Bytes::directions, block) +
         max(of(&Bytes::fetched_grads, block), of(&Bytes::matrix_step, block));
}

Expr StateMemory::at_first_update() const {
  const Expr second = first_ + 1.0;
  Expr bytes = 0.0;
  for (const Expr& block : {first_, second})
    bytes += of(&Bytes::whole_weights, block) + of(&Bytes::staged_moments, block);
  return bytes +
         max(while_stepped(first_) + of(&Bytes::fetched_grads, second), while_stepped(second));
}

Expr StateMemory::at_update(const Expr& block) const {
  return of(&Bytes::whole_weights, block - 1.0) + of(&Bytes::whole_weights, block) +
         of(&Bytes::staged_moments, block) + while_stepped(block);
}

/// The gradients are let go of after the step.
Expr StateMemory::after_lone_update() const {
  return layer_.whole_weights + layer_.staged_moments + layer_.directions + layer_.matrix_step;
}

Expr StateMemory::beside_forward(const Expr& block) const {
  return weights_of_pass(block) + weights_of_pass(block + 1.0);
}

/// What the backward before it left.
Expr StateMemory::beside_forward_after_backward(const Expr& block) const {
  const Expr next = weights_of_pass(block + 1.0);
  const Expr first = at_most(block, first_), second = at_most(block, first_ + 1.0) * (1.0 - first);
  // The next backward's share of the sum comes in beside the block before it.
  const Expr last = v_.l + (role_.last ? 1.0 : 0.0);
  const Expr arriving = at_most(last, block) * (1.0 - lone_layer()) * of(&Bytes::host_grads, last);
  return weights_of_pass(block) + next + arriving +
         first * left_by_first_block(less(v_.p + 2.0, v_.G)) +
         second * late_ * of(&Bytes::host_grads, trained_);
}

/// Gradients of the first block that is trained, whose backward came just before; when that is
/// `later` than the first microbatch's, a share of the sum too.
Expr StateMemory::left_by_first_block(const Expr& later) const {
  return late_ * of(&Bytes::whole_grads, trained_) +
         select(late_,
                later * of(&Bytes::host_grads, trained_) + of(&Bytes::host_grads, trained_ + 1.0),
                of(&Bytes::host_grads, trained_));
}

Expr StateMemory::left_by_backward(const Expr& block) const {
  // Where the next prefetch waits, all is drained before: for gradients of so few blocks before,
  // or, in a stage of one block, for activations that just left.
  const Expr blocks = v_.l + (role_.first ? 1.0 : 0.0);
  const Expr for_grads = less(0.0, layer_.host_grads) * at_most(blocks, 2.0 + late_);
  const Expr for_activations = less(0.0, v_.a) * at_most(v_.p, 1.0) * less(2.0, v_.G);
  return at_most(v_.l, block) * (1.0 - for_grads) *
         select(lone_layer(), late_ * (1.0 - for_activations) * layer_.whole_grads,
                left_by_first_block(less(2.0, v_.G)));
}

/// When a layer's gradients are stored in a staging buffer that did not come before: its backward's
/// scratch is free again, and so are its weights.
Expr StateMemory::when_stored(const Expr& block) const {
  const auto leaving = [&](const Expr& of_block) {
    return select(less(1.0, v_.G), of(&Bytes::host_grads, of_block),
                  of(&Bytes::stepped_grads, of_block));
  };
  const Expr before = block + 1.0;
  return weights_beside_backward(block, v_.G - 1.0) -
         less(0.0, block) * of(&Bytes::whole_weights, block) + fresh_grads(block) +
         select(late_, of(&Bytes::whole_grads, before) + leaving(before), leaving(block));
}

/// 1 for a stage of one layer between others, or of none: its slots follow each other.
Expr StateMemory::lone_layer() const {
  if (!role_.layers) return 1.0;
  return role_.first || role_.last ? Expr(0.0) : at_most(v_.l, 1.0);
}

Expr StateMemory::waits_for_grads() const {
  const Bytes& block = role_.layers ? layer_ : role_.first ? embedding_ : head_;
  return lone_layer() * less(0.0, block.host_grads);
}

Expr StateMemory::left_by_lone_backward(const Expr& block) const {
  return late_ * (1.0 - waits_for_grads()) * of(&Bytes::whole_grads, block);
}

Expr StateMemory::when_lone_stored(const Expr& block) const {
  return (1.0 - late_) * (of(&Bytes::whole_grads, block) + of(&Bytes::host_grads, block));
}

// --- backward -----------------------------------------------------------------------------------

/// Parts of the sum that are on their way to the host: of the block before, or of that before it
/// when a reduction comes first.
Expr StateMemory::leaving_grads(const Expr& block) const {
  return select(late_, of(&Bytes::host_grads, block + 2.0), of(&Bytes::host_grads, block + 1.0));
}

/// What a backward writes; the table's part of a tied head stays for the embedding.
Expr StateMemory::fresh_grads(const Expr& block) const {
  const Expr table = tied_ ? less(0.0, block) * embedding_.whole_grads : Expr(0.0);
  return table + of(&Bytes::whole_grads, block);
}

/// Of any microbatch but the last, beside whole weights.
Expr StateMemory::beside_early_backward(const Expr& block) const {
  return fresh_grads(block) + late_ * of(&Bytes::whole_grads, block + 1.0) + leaving_grads(block);
}

Expr StateMemory::beside_first_backward(const Expr& block) const {
  return weights_beside_backward(block, v_.G - 1.0) + beside_early_backward(block);
}

/// Of the second microbatch or, when no forward is left, of the last but one.
Expr StateMemory::beside_middle_backward(const Expr& block) const {
  return max(weights_beside_backward(block, v_.G - 2.0), weights_beside_backward(block, 1.0)) +
         beside_early_backward(block) + of(&Bytes::host_grads, block - 1.0) +
         of(&Bytes::host_grads, block) + late_ * of(&Bytes::host_grads, block + 1.0);
}

Expr StateMemory::beside_last_backward(const Expr& block) const {
  // The gradients of norms, which all but the embedding have, are summed over tp too.
  const Expr over_dp = less(1.0, v_.dp * v_.cp);
  const auto late = [&](const Expr& of_block) {
    return max(over_dp, at_most(1.0, of_block) * less(1.0, v_.tp));
  };
  const Expr before = block + 1.0, before_that = block + 2.0;
  const Expr leaving = late(before_that) * of(&Bytes::stepped_grads, before_that) +
                       (1.0 - late(before)) * of(&Bytes::stepped_grads, before);
  return weights_beside_backward(block, 0.0) + fresh_grads(block) +
         late(before) * of(&Bytes::whole_grads, before) + leaving +
         less(1.0, v_.G) * (of(&Bytes::host_grads, block - 1.0) + of(&Bytes::host_grads, block));
}

Expr StateMemory::stored_by_embedding() const {
  const Expr other =
      weights_beside_backward(0.0, v_.G - 1.0) + at_most(v_.G, v_.p + 1.0) * layer_.host_grads;
  return (1.0 - late_) * less(1.0, v_.G) *
         (embedding_.whole_grads + embedding_.host_grads + layer_.host_grads + other);
}

Expr StateMemory::stored_last_by_embedding() const {
  const Expr layers_late = max(less(1.0, v_.dp * v_.cp), less(1.0, v_.tp));
  return embedding_.whole_grads + embedding_.stepped_grads + layers_late * layer_.stepped_grads;
}

}  // namespace brume::analyzer
