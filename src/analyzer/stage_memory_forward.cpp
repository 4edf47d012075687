/// @file Peaks of a stage's forward passes.
#include "stage_memory_builder.hpp"

namespace brume::analyzer {

/// Layer j in forward, the largest of its segments: the layer's input, what the segments so far
/// kept, scratch, normed inputs that were brought together, and the output.
Expr StageMemoryBuilder::forward_peak(const Expr& j) const {
  const Expr stored = is_stored(j);
  Expr kept = shard_, full = 0.0, recomputed = 0.0, passed = 0.0;
  for (const SegmentBytes& segment : segments_) {
    const Expr own = segment.saved + segment.forward;
    full = max(full, kept + own + segment.forward_streams(stored) + stored * segment.cheap);
    // A recomputed layer has let go of what earlier segments saved, but for its input.
    const Expr all = own + segment.forward_streams(0.0);
    const Expr input = &segment == &segments_.front() ? Expr(0.0) : shard_;
    recomputed = max(recomputed, shard_ + all + input);
    // A frozen one has let go of that, too.
    passed = max(passed, all + shard_);
    kept += segment.kept(stored) + shard_;
  }
  const Expr trained = select(is_recomputed(j), recomputed, full);
  return role_.trains_all_layers() ? trained : select(at_most(j, frozen()), passed, trained);
}

/// What the next backward brings together beside the stage's last forward. In a stage of one layer
/// the first one waits for what offload takes of it; there may be no other.
Expr StageMemoryBuilder::ahead_of_turn() const {
  if (role_.first) return has_backward() * ahead(v_.l);
  const Expr only = at_most(v_.l, 1.0) * at_most(v_.p, 1.0) * at_most(v_.G, 2.0);
  return has_backward() * (1.0 - only * less(0.0, v_.a)) * ahead(v_.l);
}

/// Layer j in a microbatch after the first; the layer before it is still being drained. Beside the
/// last layer the next backward's gradient and prefetched tensors arrive already, beside the first
/// what was sent just before is still on its way out.
Expr StageMemoryBuilder::steady_forward(const Expr& j) const {
  const Expr own = kept_before(j) + moved(j - 1.0) + forward_peak(j);
  Expr sum = others_bytes() + own;
  if (!role_.last) sum += at_most(v_.l, j) * (moved(j) + ahead_of_turn());
  sum += select(runs_ahead(), forward_streams_ahead(j), forward_streams(j));
  Expr warm_up = state_.beside_forward(j);
  // A stage of one layer drains it beside itself, in the next microbatch.
  if (!role_.first && !role_.last) warm_up += at_most(v_.l, 1.0) * at_most(2.0, v_.p) * moved(j);
  const Expr turns = less(v_.p + 1.0, v_.G) * state_.beside_forward_after_backward(j);
  sum += max(warm_up, turns - state_.waits_for_grads() * (moved(j) + ahead_of_turn()));
  if (!role_.last) {
    // The microbatch before the last one of the warm-up.
    const Expr early = others_bytes() - kept_before(v_.l + 1.0) + own + state_.beside_forward(j) +
                       state_.before_next_microbatch(j) + runs_ahead() * shard_;
    sum = max(sum, less(1.0, v_.p) * early);
  }
  return at_most(1.0, j) * sum;
}

/// What arrives and leaves beside a forward of layer j: the next backward's gradient beside the
/// last layer, what was sent just before beside the first.
Expr StageMemoryBuilder::forward_streams(const Expr& j) const {
  Expr sum = 0.0;
  if (!role_.last) sum += has_backward() * at_most(v_.l, j) * shard_;
  if (!role_.first) sum += at_most(j, 1.0) * shard_;
  return sum;
}

/// The same where stages run further ahead, beside all layers: once passes take turns, the next
/// gradient and the one just sent; before that, the stream just sent.
Expr StageMemoryBuilder::forward_streams_ahead(const Expr& j) const {
  if (role_.last) return role_.first ? Expr(0.0) : shard_;
  const Expr warm_up = (1.0 + has_backward() * at_most(v_.l, j)) * shard_;
  return role_.first ? warm_up : select(less(v_.p + 1.0, v_.G), 2.0 * shard_, warm_up);
}

/// The first microbatch has no other beside it, but the blocks that are updated.
Expr StageMemoryBuilder::first_forward() const {
  Expr arriving = 0.0;
  if (!role_.last) {
    // A lone microbatch's backward comes next.
    arriving = has_backward() * at_most(v_.G, 1.0) * shard_;
  }
  const auto layer = [&](const Expr& j) {
    return at_most(1.0, j) * (kept_before(j) + moved(j - 1.0) + forward_peak(j) +
                              at_most(v_.l, j) * arriving + state_.beside_first_forward(j));
  };
  Expr peak = state_.at_first_update();
  // The first input arrives beside the update of the block that needs it.
  if (!role_.first && !role_.last) peak += at_most(v_.l, 1.0) * shard_;
  for (const Expr& j : {v_.l, v_.l - 1.0, v_.l - 2.0}) peak = max(peak, layer(j));
  for (const Expr& j : turning_points()) peak = max(peak, at_most(j, v_.l) * layer(j));
  if (role_.first) peak = max(peak, state_.beside_first_forward(0.0) + stream_ + shared_ * shard_);
  const auto update = [&](const Expr& block) {
    return kept_before(block - 1.0) + moved(block - 2.0) + shard_ + state_.at_update(block);
  };
  if (role_.last) peak = max(peak, max(update(v_.l), update(v_.l + 1.0)));
  return role_.last ? peak : max(peak, update(v_.l));
}

Expr StageMemoryBuilder::head_forward() const {
  const Expr head = v_.l + 1.0;
  const Expr sent = role_.first ? Expr(0.0) : runs_ahead() * shard_;
  return kept_before(head) + stream_ + head_.saved + head_.forward +
         max(state_.beside_first_forward(head),
             less(1.0, v_.G) * (sent + state_.beside_forward_after_backward(head)));
}

}  // namespace brume::analyzer
