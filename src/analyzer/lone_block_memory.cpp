/// @file Peak memory of a stage without layers: the embedding or the head by itself. Each pass is
/// one slot, so what a slot leaves is gone after the next pass.
#include "model/model.hpp"
#include "stage_memory.hpp"

namespace brume::analyzer {
namespace {

/// Passes of such a stage. `block` is the number of its block for StateMemory.
class LoneBlock {
 public:
  LoneBlock(const model::Config& model, StageRole role)
      : model_(model),
        role_(role),
        v_(model),
        state_(model, role),
        stream_(model::stream_bytes(model)),
        shard_(model::stream_shard_bytes(model)),
        cut_(less(1.0, v_.tp)),
        block_(role.first ? 0.0 : 1.0) {}

  MemoryExpressions build() const {
    const Expr persistent = persistent_bytes(model_, role_, state_);
    const Expr update = state_.at_first_update() + (role_.first ? Expr(0.0) : shard_);
    const Expr forward = role_.first ? embedding_forward() : head_forward();
    const Expr backward = role_.last                 ? head_backward()
                          : role_.trains_embedding() ? embedding_backward()
                                                     : Expr(0.0);
    const Expr through_host = max(state_.through_host_first(), state_.through_host_last());
    return {.peak_forward_bytes = persistent + max(update, forward),
            .peak_backward_bytes = persistent + backward,
            .host_bytes = state_.host_bytes() + through_host,
            .disk_bytes = state_.disk_bytes(),
            .persistent_bytes = persistent,
            .kept_bytes = 0.0};
  }

 private:
  Expr later() const { return less(1.0, v_.G); }
  /// 1 if a backward precedes another forward.
  Expr turns() const { return less(v_.p + 1.0, v_.G); }

  /// A gradient arrives during the forward before its backward; a sent stream leaves during the
  /// next pass.
  Expr embedding_forward() const {
    const Expr output = stream_ + cut_ * shard_;
    const Expr arriving = role_.trains_embedding() ? shard_ : Expr(0.0);
    const Expr first = state_.beside_first_forward(block_) + at_most(v_.p, 0.0) * arriving;
    const Expr warm_up = less(0.0, v_.p) * (shard_ + arriving) + state_.beside_forward(block_);
    const Expr steady = turns() * (arriving + state_.beside_forward_after_backward(block_));
    return output + max(first, later() * max(warm_up, steady));
  }

  /// The gradient comes in shards and is gathered. A stream is on its way out or the next gradient
  /// arrives, after the last forward both. Then a backward follows another one, which may have left
  /// its gradients.
  Expr embedding_backward() const {
    const Expr gathered = stream_ + cut_ * shard_;
    const Expr first = gathered + (2.0 - turns()) * shard_ + state_.beside_first_backward(block_);
    const Expr stored =
        (1.0 + later() * (1.0 - turns())) * shard_ + state_.when_lone_stored(block_);
    const Expr beside = select(state_.waits_for_grads(), 0.0, 1.0 + turns()) * shard_;
    const Expr middle = max(gathered + beside + state_.beside_middle_backward(block_),
                            gathered + shard_ + 2.0 * state_.left_by_lone_backward(block_));
    const Expr last = gathered + at_most(v_.G, 1.0) * shard_ + state_.beside_last_backward(block_) +
                      table_gradient() + later() * state_.left_by_lone_backward(block_);
    // A lone microbatch's gradient has its place while the block is still updated.
    const Expr lone = at_most(v_.G, 1.0) * (shard_ + state_.beside_first_forward(block_));
    return max(max(max(last, lone), stored), max(later() * first, less(2.0, v_.G) * middle));
  }

  /// The part of a tied head that comes during the last backward.
  Expr table_gradient() const {
    const bool comes = model_.tied_head && model_.trains_table();
    return comes ? model::grad_bytes * model::token_table_elements(model_) : Expr(0.0);
  }

  Expr head_forward() const {
    const model::Segment head = model::segment(model_, model::SegmentKind::head);
    const Expr pass = stream_ + max(saved(head) + head.forward_workspace_bytes(), cut_ * shard_);
    const Expr sent = role_.frozen > 0 ? Expr(0.0) : shard_;
    return pass + max(state_.beside_first_forward(block_),
                      later() * (sent + state_.beside_forward_after_backward(block_)));
  }

  /// The next stream arrives meanwhile. The gradient of all tokens is cut into shards at the end.
  Expr head_backward() const {
    const model::Segment head = model::segment(model_, model::SegmentKind::head);
    const Expr pass = saved(head) + head.backward_workspace_bytes() + 2.0 * stream_;
    return pass + max(later() * (shard_ + state_.beside_first_backward(block_)),
                      max(less(2.0, v_.G) * (shard_ + state_.beside_middle_backward(block_)),
                          state_.beside_last_backward(block_)));
  }

  static Expr saved(const model::Segment& segment) {
    Expr bytes = 0.0;
    for (const model::Saved& tensor : segment.saved)
      if (!tensor.cheap) bytes += tensor.bytes();
    return bytes;
  }

  const model::Config& model_;
  StageRole role_;
  Variables v_;
  StateMemory state_;
  Expr stream_, shard_;  ///< of all tokens, and of those of a tensor-parallel rank
  Expr cut_;             ///< 1 with tensor parallelism, else 0
  Expr block_;
};

}  // namespace

MemoryExpressions lone_block_memory(const model::Config& model, StageRole role) {
  return LoneBlock(model, role).build();
}

}  // namespace brume::analyzer
