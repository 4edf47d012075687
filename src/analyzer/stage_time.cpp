/// @file Terms of a stage's time.
#include "stage_time.hpp"

#include "stage_time_builder.hpp"

namespace brume::analyzer {

using model::grad_bytes;
using model::SegmentKind;

StageTimeBuilder::StageTimeBuilder(const model::Config& model, const hardware::Machine& machine,
                                   StageRole role)
    : model_(model),
      role_(role),
      costs_(model, machine, role),
      v_(model),
      blocks_(model, role),
      kinds_(model::segment_kinds(model, model::BlockKind::layer)),
      weight_bytes_(model::weight_bytes(model.precision)) {
  embedding_ = block_costs(model, costs_, blocks_.embedding);
  block_ = block_costs(model, costs_, blocks_.layer);
  if (role.dense > 0) {
    dense_ = min(double(role.dense), v_.l) / v_.l;
    block_ = mean(dense_, block_costs(model, costs_, blocks_.dense_layer), block_);
  }
  if (!role.layers) block_ = {};
  head_ = block_costs(model, costs_, blocks_.head);
  const auto layers = [&](bool moves) {
    const Expr ahead = brings_ahead(model, blocks_.layer, role.host_update, moves);
    const auto layer = [&](model::Recompute recompute) {
      return layer_costs(model, costs_, recompute, dense_, ahead);
    };
    return Layers{layer(model::Recompute::none), layer(model::Recompute::selective),
                  layer(model::Recompute::full)};
  };
  layers_ = layers(true);
  last_ = role.last ? layers(false) : layers_;
  const auto segment_s = [&](SegmentKind kind, Pass pass) { return costs_.segment(kind, pass); };
  using enum price::Collective;
  embedding_forward_s_ = segment_s(SegmentKind::embedding, Pass::forward) +
                         costs_.of_stream(reduce_scatter, SegmentKind::embedding);
  embedding_backward_s_ = costs_.of_stream(all_gather, SegmentKind::embedding) +
                          segment_s(SegmentKind::embedding, Pass::backward);
  const Expr statistics_bytes = model::segment(model, SegmentKind::head).saved.back().bytes();
  const Expr piece_s = segment_s(SegmentKind::head, Pass::forward) +
                       costs_.collective(all_gather, model::Axis::tp, statistics_bytes);
  head_forward_s_ = costs_.of_stream(all_gather, SegmentKind::head) + piece_s;
  // Beside a microbatch's backward stand the forwards of all pieces but the first. Its input is
  // still here; that of the last layer is brought together beside the first piece.
  const Expr pieces = model::pieces(model, SegmentKind::head).count;
  const Expr backward_s = segment_s(SegmentKind::head, Pass::backward);
  const Expr ahead_s = role.layers ? last_layer(v_.l, v_.k, v_.c).ahead_tp_s : Expr(0.0);
  head_backward_s_ = costs_.overlapped(backward_s, ahead_s, 0.0, 0.0) +
                     (pieces - 1.0) * (piece_s + backward_s) +
                     costs_.of_stream(reduce_scatter, SegmentKind::head);
}

namespace {

/// An update beside which nothing stands, until its weights are gathered.
Expr update_s(const Load& update) {
  return update.read_s + (update.down_s + update.host_s) + update.in_s + update.moves_s +
         update.gather_s;
}

}  // namespace

/// Updates that no forward hides: the first block's, and beside an embedding's the first layer's.
Expr StageTimeBuilder::first_updates_s() const {
  if (role_.frozen > 0) return 0.0;
  const Load &embedding = embedding_.update, &block = block_.update;
  if (!role_.first) return update_s(role_.layers ? block : head_.update);
  // What the processor steps comes down before it; of two blocks it steps one after the other.
  const Expr host_s = embedding.host_s + embedding.down_s + block.host_s;
  // The layer's state comes in beside the embedding's step, and then beside what leaves of that.
  const Expr in_s = max(block.in_s - embedding.moves_s, 0.0);
  Expr both_s = embedding.in_s + embedding.moves_s +
                max(costs_.overlapped(block.moves_s, embedding.gather_s, in_s, embedding.out_s),
                    in_s + block.moves_s);
  if (role_.disk)
    both_s = embedding.read_s + max(both_s, block.read_s + block.in_s + block.moves_s);
  return host_s + both_s;
}

/// What a stage that waits for its first input does of the updates beside its first forward: the
/// second block's. Where copies take most of their time, those of the third and the fourth layer
/// come in too; there is no place for more until the third one's state has left again, after the
/// first forward over a layer. The head, whose state is larger, has no place before that either.
Expr StageTimeBuilder::updates_ahead_s() const {
  if (!role_.layers) return 0.0;
  const Expr window_s =
      max(layer_s(Direction::forward, Microbatch::first, layers_.selective, 0.0, 0.0) -
              layer_s(Direction::forward, Microbatch::middle, layers_.selective, 0.0, 0.0),
          0.0);
  const Expr added_s = pass_s(Direction::forward, Microbatch::first) -
                       pass_s(Direction::forward, Microbatch::middle);
  Expr left_s = less(3.0, v_.l) * (block_.update.out_s + (v_.l - 4.0) * window_s);
  if (role_.last) left_s += less(2.0, v_.l) * max(added_s - (v_.l - 1.0) * window_s, 0.0);
  return select(less(block_.update.moves_s, block_.update.in_s), max(added_s - left_s, 0.0),
                window_s * min(v_.l - 1.0, 1.0));
}

/// What a stage recomputes of the layer that takes a gradient, before it needs that.
Expr StageTimeBuilder::recompute_ahead_s() const {
  if (!role_.layers) return 0.0;
  return less(0.0, min(v_.c, trained_layers())) * last_.recomputed.recompute_ahead_s;
}

Expr StageTimeBuilder::pass_s(Direction direction, Microbatch which) const {
  Expr sum = layers_s(direction, which);
  if (has_embedding(direction)) sum += embedding_s(direction, which);
  if (role_.last) sum += head_s(direction, which);
  return sum;
}

// --- terms --------------------------------------------------------------------------------------

void StageTimeBuilder::middle(TimeTerms& terms) const {
  const auto add = [&](std::vector<Term>& pass, Direction direction) {
    pass.push_back({"layers", layers_s(direction, Microbatch::middle)});
    if (has_embedding(direction))
      pass.push_back({"embedding", embedding_s(direction, Microbatch::middle)});
    if (role_.last) pass.push_back({"head and loss", head_s(direction, Microbatch::middle)});
  };
  add(terms.forward_s, Direction::forward);
  add(terms.backward_s, Direction::backward);
}

void StageTimeBuilder::ends(TimeTerms& terms) const {
  const auto added_s = [&](Direction direction, Microbatch which) {
    return pass_s(direction, which) - pass_s(direction, Microbatch::middle);
  };
  terms.start_s.push_back({"first updates", first_updates_s()});
  if (model_.tied_head && role_.trains_embedding() && !role_.last)
    terms.table_s.push_back({"update of the tied table", update_s(embedding_.update)});
  terms.first_s.push_back(
      {"updates beside the first forward", added_s(Direction::forward, Microbatch::first)});
  terms.last_s.push_back({"gradient reduction beside the last backward",
                          added_s(Direction::backward, Microbatch::last)});
  terms.ahead_s.push_back({"updates before the first input", updates_ahead_s()});
  const Load& reduction = first_trained().last_grads;
  terms.end_s.push_back(
      {"last gradient reduction", reduction.reduce_s + reduction.sums_s + reduction.out_s});
  // It comes before the gather of the next block's gradient. A block that is recomputed in full
  // computes meanwhile.
  const auto partial_sum_s = [&](const model::Block& block) {
    return costs_.collective(price::Collective::all_reduce, model::Axis::tp,
                             grad_bytes * model::layout_partial_elements(block));
  };
  const auto of_layer = [&](const auto& of) {
    const Expr most = of(blocks_.layer);
    return role_.dense > 0 ? most + dense_ * (of(blocks_.dense_layer) - most) : most;
  };
  const Expr partial_s = of_layer(partial_sum_s);
  const Expr ahead_s = recompute_ahead_s();
  Expr exposed_s = 0.0;
  if (role_.layers) {
    const Expr before_recomputed = max(min(v_.c, trained_layers()) - 1.0, 0.0);
    exposed_s = trained_layers() * partial_s - before_recomputed * min(partial_s, ahead_s);
  }
  if (role_.last) exposed_s += max(partial_sum_s(blocks_.head) - ahead_s, 0.0);
  terms.last_s.push_back({"gradients partial over tp", exposed_s});

  const auto norm = [&](const model::Block& block) {
    return costs_.norm(grad_bytes * model::layout_elements(model_, block).trained /
                       v_.state_ranks());
  };
  // Those of all blocks but the first ones are computed beside sums of partial gradients.
  const Expr norm_s = of_layer(norm), beside_sums = trained_layers() - (role_.last ? 0.0 : 1.0);
  Expr norms = trained_layers() * norm_s - max(beside_sums, 0.0) * min(norm_s, partial_s);
  if (role_.trains_embedding()) norms += norm(blocks_.embedding);
  if (role_.last) norms += norm(blocks_.head);
  terms.last_s.push_back({"gradient norm", norms});
  terms.end_s.push_back(
      {"loss and norm of all ranks", costs_.world_all_reduce(2.0 * sizeof(double))});
  if (role_.trains_embedding())
    terms.last_s.push_back(
        {"clearing table gradients",
         (1.0 - embedding_.grads_staged) *
             costs_.clear_or_add(grad_bytes *
                                 model::layout_elements(model_, blocks_.embedding).trained)});
  if (model_.tied_head && model_.trains_table() && role_.last && !role_.first)
    terms.last_s.push_back({"clearing tied gradients",
                            costs_.clear_or_add(grad_bytes * model::token_table_elements(model_))});
}

void StageTimeBuilder::tails(TimeTerms& terms) const {
  const auto backward_s = [&](Microbatch which) {
    if (role_.trains_embedding()) return tail_s(embedding_load(Direction::backward, which));
    return role_.layers ? layer_tail_s(Direction::backward, which) : Expr(0.0);
  };
  // The last stage turns to its backward at once.
  const auto forward_s = [&](Microbatch which) {
    return role_.layers ? layer_tail_s(Direction::forward, which)
                        : tail_s(embedding_load(Direction::forward, which));
  };
  if (!role_.last) {
    terms.first_tail_s.push_back(
        {"transfers after the first forward", forward_s(Microbatch::first)});
    terms.forward_tail_s.push_back({"transfers after a forward", forward_s(Microbatch::middle)});
  }
  terms.backward_tail_s.push_back({"transfers after a backward", backward_s(Microbatch::middle)});
  terms.last_tail_s.push_back({"transfers after the last backward", backward_s(Microbatch::last)});
}

/// Over tp and cp most of it stands in the passes, over dp it runs beside them.
void StageTimeBuilder::communication(TimeTerms& terms) const {
  const auto tp_s = [](const LayerCosts& layer) {
    return layer.forward_tp_s + layer.backward_tp_s + layer.inputs_tp_s;
  };
  const Expr c = min(v_.c, trained_layers());
  terms.communication_s.push_back(
      {"over tp and cp", (trained_layers() - c) * tp_s(layers_.selective) +
                             c * tp_s(layers_.recomputed) +
                             frozen() * layers_.selective.forward_tp_s});
  Load over_dp = (v_.l + trained_layers()) * block_.weights + trained_layers() * block_.grads;
  if (role_.first) over_dp += embedding_.weights + embedding_.grads;
  if (role_.last) over_dp += head_.weights + head_.grads;
  terms.communication_s.push_back({"over dp", over_dp.gather_s + over_dp.reduce_s});
}

void StageTimeBuilder::copies(TimeTerms& terms) const {
  const auto sum = [&](Direction direction, Microbatch which, auto&& part) {
    return over_layers(v_.l, [&](const LayerCosts& layer, const Expr& first, const Expr& last) {
      return part(layer_load(direction, which, layer, first, last));
    });
  };
  const auto of = [&](Direction direction, Microbatch which = Microbatch::middle) {
    return max(
        sum(direction, which, [](const Load& load) { return load.weights_in_s + load.in_s; }),
        sum(direction, which, [](const Load& load) { return load.out_s; }));
  };
  terms.forward_copies_s.push_back({"copies beside a forward", of(Direction::forward)});
  terms.backward_copies_s.push_back({"copies beside a backward", of(Direction::backward)});
  terms.first_copies_s.push_back(
      {"copies beside the first forward", of(Direction::forward, Microbatch::first)});
  const auto kernels_s = [](const Load& load) {
    return load.compute_s + load.tp_s + load.copies_s + load.moves_s;
  };
  Expr kernels = sum(Direction::forward, Microbatch::first, kernels_s);
  if (role_.first) kernels += embedding_forward_s_;
  if (role_.last) kernels += head_forward_s_;
  terms.first_kernels_s.push_back({"kernels of the first forward", kernels});
}

TimeTerms StageTimeBuilder::build() {
  TimeTerms terms;
  middle(terms);
  ends(terms);
  tails(terms);
  communication(terms);
  copies(terms);
  if (role_.last)
    terms.head_s.push_back({"head and loss", head_s(Direction::backward, Microbatch::last)});
  terms.recompute_ahead_s.push_back(
      {"recomputed before a gradient is needed", recompute_ahead_s()});
  return terms;
}

TimeTerms stage_time(const model::Config& model, const hardware::Machine& machine, StageRole role) {
  return StageTimeBuilder(model, machine, role).build();
}

}  // namespace brume::analyzer
