/// @file Peaks of a stage's backward passes.
#include "stage_memory_builder.hpp"

namespace brume::analyzer {

/// The inputs with which the backward of layer j begins, brought together before they are needed.
Expr StageMemoryBuilder::ahead(const Expr& j) const {
  return select(less(j, v_.l), ahead_, ahead_of_last_) *
         select(is_recomputed(j), segments_.front().brought(0.0),
                segments_.back().brought(is_stored(j)));
}

/// What is brought together beside the backward of a stage's first block, where the next
/// microbatch's backward follows: then no input arrives.
Expr StageMemoryBuilder::ahead_of_next(const Expr& left, const Expr& arriving) const {
  return at_most(left, v_.p) * less(0.0, v_.p) * less(0.0, left) * max(ahead(v_.l) - arriving, 0.0);
}

/// Layer j in backward, the largest of its segments: inputs and saved tensors of it and those
/// before it, scratch, and gradients of the stream; with tensor parallelism its own and the next
/// one's normed inputs.
///
/// @param next  what is brought together for the next block
Expr StageMemoryBuilder::backward_peak(const Expr& j, const Expr& next) const {
  const Expr stored = is_stored(j);
  Expr kept = 0.0, backward = 0.0, again = 0.0, beside = next;
  for (const SegmentBytes& segment : segments_) {
    kept += shard_ + segment.saved + stored * segment.cheap;
    backward = max(
        backward, segment.gradients() + kept + segment.brought(stored) + segment.backward + beside);
    // The last segment's output is not made again.
    again = max(again, segments_.back().gradients() + kept + segment.forward +
                           (&segment == &segments_.back() ? segment.brought(0.0)
                                                          : segment.forward_streams(0.0)));
    if (segment.tiled)
      backward = max(backward, segment.gradients() + kept + segment.forward + beside);
    beside = segment.brought(stored);
  }
  return select(is_recomputed(j), max(backward, again), backward);
}

/// Whether a lone microbatch's tensors are waited for before they are fetched again.
Expr StageMemoryBuilder::drains_at_once() const { return at_most(v_.G, 1.0) * less(0.0, v_.a); }

/// Layer j in backward; what offload took of the layer below comes back meanwhile. Beside the last
/// layer the stage's output may still be on its way out, beside the first the next input on its way
/// in.
Expr StageMemoryBuilder::backward(const Expr& j, const Expr& others, const Expr& left,
                                  bool after_forward) const {
  Expr beside_last = 0.0, beside_first = 0.0, next = 0.0;
  if (!role_.last && after_forward)
    beside_last = (max(at_most(v_.l, j), runs_ahead()) * shard_ + at_most(v_.l, j) * moved(j)) *
                  (1.0 - drains_at_once());
  if (!role_.first) {
    const Expr ahead = after_forward ? less(v_.p + 1.0, v_.G) : Expr(1.0);
    beside_first = select(runs_ahead(), ahead, at_most(j, 1.0) * less(1.0, v_.G)) * shard_;
    next = ahead_of_next(left, less(1.0, v_.G) * shard_);
  }
  Expr beside = beside_last + beside_first;
  if (!role_.first && !role_.last && after_forward) {
    const Expr one_layer = at_most(v_.l, 1.0);
    beside = select(one_layer, beside_one_layer(j), beside);
    next = select(one_layer, ahead_in_one_layer(j, left), next);
  }
  next = select(less(1.0 + frozen(), j), ahead(j - 1.0), next);
  return at_most(1.0, j) * (waiting_backward(j, others, next) + beside);
}

/// Of a microbatch after the first, by a forward.
Expr StageMemoryBuilder::later_backward(const Expr& j) const {
  const Expr others = min(v_.p, v_.G - 2.0);
  return select(state_.waits_for_grads(),
                waiting_backward(j, others, 0.0) + less(v_.p + 2.0, v_.G) * shard_,
                backward(j, others, others, true));
}

/// By the earlier microbatch's backward.
Expr StageMemoryBuilder::backward_again(const Expr& j, const Expr& others) const {
  return select(state_.waits_for_grads(), waiting_backward(j, others, 0.0),
                backward(j, others, others, false));
}

/// Beside which nothing of the slot before is left.
Expr StageMemoryBuilder::waiting_backward(const Expr& j, const Expr& others,
                                          const Expr& next) const {
  return others * kept_before(v_.l + 1.0) + kept_before(j) + moved(j - 1.0) +
         backward_peak(j, next);
}

/// The same for the only layer of a middle stage: slots of different microbatches touch there.
Expr StageMemoryBuilder::beside_one_layer(const Expr& j) const {
  const Expr sends = shard_ + moved(j), many = sends + arriving_in_one_layer(j);
  // With one microbatch beside it, offload waits for the first copy and nothing else overlaps it.
  const Expr next_input = less(v_.p + 1.0, v_.G) * shard_;
  const Expr offloaded =
      select(state_.waits_for_grads(), next_input, moved(j) + min(v_.G - 2.0, 2.0) * shard_);
  const Expr one = select(less(0.0, v_.a), offloaded, sends + next_input);
  const Expr none = sends * (1.0 - drains_at_once());
  return select(less(1.0, v_.p), many, select(less(0.0, v_.p), one, none));
}

/// The next input, or what offload took comes back.
Expr StageMemoryBuilder::arriving_in_one_layer(const Expr& j) const {
  return max(less(v_.p + 1.0, v_.G) * shard_, (1.0 - state_.waits_for_grads()) * moved(j));
}

/// What is brought together beside its backward when another one follows; with one microbatch
/// beside it, offload has not let go of that one's input, unless all waited for it before.
Expr StageMemoryBuilder::ahead_in_one_layer(const Expr& j, const Expr& left) const {
  const Expr waits = at_most(v_.p, 1.0) * less(0.0, v_.a) * less(2.0, v_.G);
  return (1.0 - waits) * (1.0 - state_.waits_for_grads()) *
         ahead_of_next(left, arriving_in_one_layer(j) - moved(j));
}

Expr StageMemoryBuilder::head_backward() const {
  const Expr head = v_.l + 1.0;
  const Expr arriving = role_.first ? Expr(0.0) : runs_ahead() * shard_;
  const Expr next = less(frozen(), v_.l) * ahead(v_.l);  // unless only the head is trained
  return kept_before(head) + 2.0 * stream_ + head_.saved + head_.backward + next + arriving +
         max(less(1.0, v_.G) * state_.beside_first_backward(head),
             max(less(2.0, v_.G) * state_.beside_middle_backward(head),
                 state_.beside_last_backward(head)));
}

/// A tied head's part of the table's gradient, which comes beside the first stage's last backward.
Expr StageMemoryBuilder::table_gradient() const {
  const bool comes = role_.first && !role_.last && model_.tied_head && model_.trains_table();
  return comes ? model::grad_bytes * table_elements_ : Expr(0.0);
}

/// Nothing of its microbatch is left but the gradient of the stream.
Expr StageMemoryBuilder::embedding_backward() const {
  const Expr one = kept_before(v_.l + 1.0), gradient = stream_ + shared_ * shard_;
  const Expr sent = role_.last ? Expr(0.0) : runs_ahead() * shard_;
  const Expr first =
      v_.p * one + sent +
      max(gradient + ahead_of_next(v_.G - 1.0, 0.0) + state_.beside_first_backward(0.0),
          state_.stored_by_embedding());
  const Expr middle = min(v_.p, v_.G - 2.0) * one + sent + gradient +
                      ahead_of_next(min(v_.p, v_.G - 2.0), 0.0) +
                      state_.beside_middle_backward(0.0);
  const Expr last =
      max(gradient + state_.beside_last_backward(0.0), state_.stored_last_by_embedding());
  return max(last + table_gradient(), max(less(1.0, v_.G) * first, less(2.0, v_.G) * middle));
}

/// In the first, a middle and the last microbatch, which differ in what has to be added up and in
/// how many others are on their way.
Expr StageMemoryBuilder::highest_backward() const {
  const auto all = [&](const Expr& j) {
    const Expr middle = state_.beside_middle_backward(j),
               last = state_.beside_last_backward(j) + table_gradient();
    Expr peak = max(
        less(1.0, v_.G) * (backward(j, v_.p, v_.G - 1.0, true) + state_.beside_first_backward(j)),
        less(2.0, v_.G) * (later_backward(j) + middle));
    if (role_.last) {
      peak = max(peak, backward(j, 0.0, 0.0, true) + last);
    } else {
      // Where no forward is left, a backward follows the earlier microbatch's.
      const Expr left = state_.left_by_backward(j);
      peak = max(peak, less(1.0, v_.p) * (backward_again(j, v_.p - 1.0) + middle + left));
      peak = max(peak, select(less(0.0, v_.p), backward_again(j, 0.0) + last + left,
                              backward(j, 0.0, 0.0, true) + last));
    }
    // Of few microbatches none has a staging buffer from the start.
    const Expr gradient = shard_ + less(1.0, j) * ahead(j - 1.0);
    peak = max(peak, less(v_.G, 3.0) * (v_.p * kept_before(v_.l + 1.0) + kept_before(j) +
                                        moved(j - 1.0) + gradient + state_.when_stored(j)));
    return at_most(1.0 + frozen(), j) * at_most(j, v_.l) * peak;
  };
  Expr peak = all(v_.l);
  for (const Expr& j : {v_.l - 1.0, v_.l - 2.0}) peak = max(peak, all(j));
  for (const Expr& j : turning_points()) peak = max(peak, all(j));
  if (role_.last) peak = max(peak, head_backward());
  if (role_.trains_embedding()) peak = max(peak, embedding_backward());
  return peak;
}

}  // namespace brume::analyzer
