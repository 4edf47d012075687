#include "stage_memory.hpp"

#include "costs.hpp"
#include "kept_state.hpp"
#include "layer_costs.hpp"
#include "state_memory.hpp"

namespace brume::analyzer {
namespace {

using model::SegmentKind;

/// Bytes of a segment's transient buffers on one rank.
struct SegmentBytes {
  SegmentBytes(const model::Config& model, SegmentKind kind, const model::Segment& segment) {
    for (const model::Saved& tensor : segment.saved)
      (tensor.cheap ? cheap : saved) += tensor.bytes();
    forward = segment.forward_workspace_bytes();
    backward = segment.backward_workspace_bytes();
    stream = model::stream_bytes(model, kind);
    shard = model::stream_shard_bytes(model);
    shared = less(1.0, model::sum_ranks(kind));
    inputs = double(segment.brought().size());
    adds = segment.terms != model::TensorId::output;
  }
  /// For all plans.
  ///
  /// @param role  of those that divide segments
  SegmentBytes(const model::Config& model, SegmentKind kind, const StageRole& role)
      : SegmentBytes(model, kind, model::segment(model, kind)) {
    if (kind == SegmentKind::head) return;
    const auto join_lists = [](SegmentBytes& one, const Expr& condition,
                               const SegmentBytes& other) {
      one.join(other, [&](const Expr& no, const Expr& yes) { return select(condition, yes, no); });
    };
    const auto of = [&](model::AxisSet axes) {
      return SegmentBytes(model, kind, model::segment(model, kind, role.division(axes)));
    };
    const model::AxisSet sums = model::sum_axes(kind);
    const Expr cuts_sequences = Variables(model).cuts_sequences();
    SegmentBytes of_rows = of(sums);
    join_lists(of_rows, cuts_sequences, of(sums.with(model::Axis::cp)));
    join_lists(*this, cuts_sequences, of(model::Axis::cp));
    join_lists(*this, shared, of_rows);
    inputs = of_rows.inputs;
    adds = of_rows.adds;
  }
  /// Replaces each size by of(own, the other one's).
  template <typename Of>
  void join(const SegmentBytes& other, Of&& of) {
    for (Expr SegmentBytes::*part : {&SegmentBytes::saved, &SegmentBytes::cheap,
                                     &SegmentBytes::forward, &SegmentBytes::backward})
      this->*part = of(this->*part, other.*part);
  }
  Expr saved;              ///< kept tensors, but for
  Expr cheap = 0.0;        ///< those that a stored layer keeps, too
  Expr forward, backward;  ///< workspace of each pass
  Expr stream;             ///< of all tokens that it works on
  Expr shard;              ///< of those that a rank keeps between segments
  Expr shared;             ///< 1 where several ranks sum its output, else 0
  // Where they do:
  double inputs = 0.0;  ///< normed inputs
  bool adds = false;    ///< the sum of the ranks' terms and the stream is the output

  /// Normed inputs that are brought together.
  /// @param stored  1 where the layer keeps them, else 0
  Expr brought(const Expr& stored) const { return shared * (1.0 - stored) * (inputs * stream); }
  /// The same in a forward, and the output; terms of it take the first one's place.
  Expr forward_streams(const Expr& stored) const {
    const Expr of_rows = adds ? stream * select(stored, 1.0, inputs) : brought(stored) + shard;
    return select(shared, of_rows, stream);
  }
  /// The gradients of the stream and of what products make.
  Expr gradients() const { return select(shared, adds ? shard + stream : shard, stream); }
};

/// Bytes of a layer, by what its backward makes again.
struct LayerBytes {
  Expr stored, selective, recomputed;
};

LayerBytes operator-(const LayerBytes& a, const LayerBytes& b) {
  return {a.stored - b.stored, a.selective - b.selective, a.recomputed - b.recomputed};
}

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

StageMemoryBuilder::StageMemoryBuilder(const model::Config& model, StageRole role)
    : model_(model),
      role_(role),
      v_(model),
      state_(model, role),
      head_(model, SegmentKind::head, role),
      ahead_(brings_ahead(model, StageBlocks(model, role).layer, role.host_update, true)),
      ahead_of_last_(
          brings_ahead(model, StageBlocks(model, role).layer, role.host_update, !role.last)),
      stream_(model::stream_bytes(model)),
      shard_(model::stream_shard_bytes(model)),
      shared_(less(1.0, v_.tp)),
      table_elements_(model::token_table_elements(model)) {
  Expr cheap = 0.0;
  for (SegmentKind kind : model::segment_kinds(model, model::BlockKind::layer)) {
    segments_.emplace_back(model, kind, role);
    if (role.dense > 0 && kind == SegmentKind::experts)
      segments_.back().join(SegmentBytes(model, SegmentKind::mlp, role),
                            [](const Expr& a, const Expr& b) { return max(a, b); });
    kept_.selective += shard_ + segments_.back().saved;
    cheap += segments_.back().cheap;
  }
  kept_.stored = kept_.selective + cheap;
  kept_.recomputed = shard_;
  const auto bytes = [&](const Expr& ratio) {
    using enum model::Recompute;
    const auto of = [&](model::Recompute recompute) {
      return moved_bytes(model, recompute, role, ratio);
    };
    return LayerBytes{of(none), of(selective), of(full)};
  };
  moved_ = bytes(v_.a);
  if (role.disk) to_disk_ = bytes(v_.ad);
}

// --- layers of three kinds ----------------------------------------------------------------------

Expr StageMemoryBuilder::of_layer(const Expr& j, const LayerBytes& bytes) const {
  return select(is_recomputed(j), bytes.recomputed,
                select(is_stored(j), bytes.stored, bytes.selective));
}

Expr StageMemoryBuilder::of_last_layer(const LayerBytes& bytes) const {
  const Expr all = of_layer(v_.l, bytes);
  return role_.trains_all_layers() ? all : less(frozen(), v_.l) * all;
}

/// Of layers 1..j-1 that have a backward.
Expr StageMemoryBuilder::of_layers_before(const Expr& j, const LayerBytes& bytes) const {
  const Expr full = v_.l - v_.c;  // the first layers, which are not recomputed
  const Expr first = role_.trains_all_layers() ? full : max(full, frozen());
  return trained(min(j - 1.0, v_.k)) * (bytes.stored - bytes.selective) +
         trained(min(j - 1.0, full)) * bytes.selective +
         max(j - 1.0 - first, 0.0) * bytes.recomputed;
}

Expr StageMemoryBuilder::of_all_layers(const LayerBytes& bytes) const {
  const Expr recomputed = role_.trains_all_layers() ? v_.c : min(v_.c, v_.l - frozen());
  return trained(v_.k) * (bytes.stored - bytes.selective) + trained(v_.l - v_.c) * bytes.selective +
         recomputed * bytes.recomputed;
}

/// Beside the last layers, those at which what is kept begins to grow more slowly: there a peak can
/// lie.
std::vector<Expr> StageMemoryBuilder::turning_points() const {
  return {v_.l - v_.c, v_.l - v_.c + 1.0, v_.k, v_.k + 1.0, Expr(1.0 + frozen())};
}

// --- what lives from step to step ---------------------------------------------------------------

}  // namespace

Expr persistent_bytes(const model::Config& model, StageRole role, const StateMemory& state) {
  const Variables v(model);
  const Expr whole = double(model::token_bytes) * v.b * double(model.seq_len) * v.G;
  const Expr batch = whole / v.cp;
  Expr sum = state.device_bytes() + 2.0 * sizeof(double);
  if (role.first) sum += batch;
  if (role.last) sum += batch + 2.0 * sizeof(double);
  if (model.isolated) sum += whole;
  if (role.last && !role.first && model.tied_head)
    sum += (model::weight_bytes(model.precision) + (model.trains_table() ? model::grad_bytes : 0)) *
           model::token_table_elements(model);
  return sum;
}

namespace {

// --- a microbatch on its way ---------------------------------------------------------------------

/// What offload moves of layer j. The last layer of the last stage stays.
Expr StageMemoryBuilder::moved(const Expr& j, const LayerBytes& bytes) const {
  const Expr exists = at_most(1.0 + frozen(), j), all = of_layer(j, bytes);
  return exists * (role_.last ? less(j, v_.l) * all : all);
}

/// What layers 1..j-1 keep on the device for one microbatch, once their copies are done.
Expr StageMemoryBuilder::kept_before(const Expr& j) const {
  const Expr kept = of_layers_before(j, kept_ - moved_);
  return role_.last ? kept + less(v_.l, j) * of_last_layer(moved_) : kept;
}

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
    kept += segment.saved + stored * segment.cheap + shard_;
  }
  const Expr trained = select(is_recomputed(j), recomputed, full);
  return role_.trains_all_layers() ? trained : select(at_most(j, frozen()), passed, trained);
}

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
    beside = segment.brought(stored);
  }
  return select(is_recomputed(j), max(backward, again), backward);
}

/// Microbatches whose forward is done and whose backward has not begun.
Expr StageMemoryBuilder::others_bytes() const { return v_.p * kept_before(v_.l + 1.0); }

// --- forward -------------------------------------------------------------------------------------

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

// --- backward ------------------------------------------------------------------------------------

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

MemoryExpressions StageMemoryBuilder::build() const {
  const Expr persistent = persistent_bytes(model_, role_, state_);
  const Expr later = less(1.0, v_.G);  // there is a microbatch after the first
  Expr forward = first_forward();
  for (const Expr& j : {v_.l, v_.l - 1.0}) forward = max(forward, later * steady_forward(j));
  for (const Expr& j : turning_points())
    forward = max(forward, later * at_most(j, v_.l) * steady_forward(j));
  if (role_.first) {
    // In the warm-up what the microbatch before sent is still on its way.
    const Expr output = stream_ + shared_ * shard_;
    const Expr warm_up = shard_ + output + state_.beside_forward(0.0);
    const Expr turns = output + runs_ahead() * shard_ + state_.beside_forward_after_backward(0.0);
    forward = max(forward, later * (others_bytes() + max(warm_up, less(v_.p + 1.0, v_.G) * turns)));
  }
  if (role_.last) forward = max(forward, head_forward());
  Expr backward = highest_backward();
  // A lone microbatch's gradient has its place already while the only layer is still updated.
  if (!role_.first && !role_.last) {
    const Expr lone = state_.after_lone_update();
    backward = max(
        backward, has_backward() * at_most(v_.l, 1.0) * at_most(v_.G, 1.0) * (2.0 * shard_ + lone));
  }

  return {persistent + forward, persistent + backward,
          host_bytes(),         state_.disk_bytes() + moved_in_flight(to_disk_),
          persistent,           kept_before(v_.l + 1.0)};
}

// --- below the device ---------------------------------------------------------------------------

/// Of all microbatches, where most of it is away from the device.
Expr StageMemoryBuilder::moved_in_flight(const LayerBytes& bytes) const {
  const Expr of_microbatch = of_all_layers(bytes);
  if (role_.last) return of_microbatch - of_last_layer(bytes);
  // The oldest microbatch's last layers are back on the device when the newest one's arrive.
  const Expr last = moved(v_.l, bytes), back = last + min(last, moved(v_.l - 1.0, bytes));
  Expr times_back = less(0.0, v_.p);
  if (!role_.first) {
    // In a stage of one layer the first exchange comes later, and the cool-down may come before it.
    const Expr all_ahead = at_most(v_.G, v_.p + 1.0);
    const Expr one_layer =
        less(1.0, v_.p) * (select(state_.waits_for_grads(), 0.0, 1.0) + all_ahead);
    times_back = select(at_most(v_.l, 1.0), one_layer, times_back);
  }
  return (v_.p + 1.0) * of_microbatch - times_back * back;
}

/// What stays there, and what is on its way to the disk or from it: in passes of two layers, of
/// three where a backward follows another microbatch's forward; of two or three blocks in updates,
/// where there is also what the processor steps.
Expr StageMemoryBuilder::host_bytes() const {
  const Expr stays = state_.host_bytes();
  if (!role_.disk && !role_.host_update) return stays + moved_in_flight(moved_);
  const LayerBytes here = moved_ - to_disk_;
  const Expr layer = max(less(0.0, v_.k) * at_most(v_.l - v_.c, v_.k) * to_disk_.stored,
                         max(less(v_.k + v_.c, v_.l) * to_disk_.selective, to_disk_.recomputed));
  const Expr layers = max(v_.l - frozen() - (role_.last ? 1.0 : 0.0), 0.0);  // that move
  const Expr in_passes = moved_in_flight(here) + (min(layers, 2.0) + less(0.0, v_.p)) * layer;
  const Expr first_pass = of_all_layers(here) - of_last_layer(here);
  const Expr in_updates = max(state_.through_host_first(), state_.through_host_last() + first_pass +
                                                               min(v_.l - 1.0, 2.0) * layer);
  return stays + max(in_passes, in_updates);
}

}  // namespace

MemoryExpressions stage_memory(const model::Config& model, StageRole role) {
  return role.layers ? StageMemoryBuilder(model, role).build() : lone_block_memory(model, role);
}

}  // namespace brume::analyzer
