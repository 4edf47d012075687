#include "stage_time.hpp"

#include "block_costs.hpp"
#include "layer_costs.hpp"

namespace brume::analyzer {
namespace {

using model::grad_bytes;
using model::SegmentKind;

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
  Expr layers_s(Direction direction, Microbatch which) const;
  Load weights_of_head() const;
  Expr messages_s(const Expr& first, const Expr& last) const;
  Expr embedding_s(Direction direction, Microbatch which) const;
  Expr head_s(Direction direction, Microbatch which) const;
  Expr first_updates_s() const;
  Expr pass_s(Direction direction, Microbatch which) const;

  void stable(TimeTerms& terms) const;
  void delta(TimeTerms& terms) const;
  void tied(TimeTerms& terms) const;

  Expr window(const Load& load) const { return analyzer::window(costs_, load); }
  /// What follows a block's backward.
  static const Load& grads(const BlockCosts& block, Microbatch which) {
    return which == Microbatch::last ? block.last_grads : block.grads;
  }

  const model::Config& model_;
  StageRole role_;
  Costs costs_;
  Variables v_;
  std::vector<model::Block> blocks_;
  std::vector<SegmentKind> kinds_;  ///< of a layer
  double weight_bytes_;             ///< of an element
  BlockCosts embedding_, block_, head_;
  LayerCosts full_, recomputed_;
  Expr embedding_forward_s_, embedding_backward_s_, head_forward_s_, head_backward_s_;
  Expr arriving_s_, leaving_s_;  ///< over tp, where a gradient comes from or goes to another stage,
                                 ///< beyond its all-reduce
};

StageTimeBuilder::StageTimeBuilder(const model::Config& model, const hardware::Machine& machine,
                                   StageRole role)
    : model_(model),
      role_(role),
      costs_(model, machine, role),
      blocks_(model::blocks(model)),
      kinds_(model::segment_kinds(model, model::BlockKind::layer)),
      weight_bytes_(model::weight_bytes(model.precision)) {
  embedding_ = block_costs(model, costs_, blocks_.front());
  block_ = block_costs(model, costs_, blocks_[1]);
  head_ = block_costs(model, costs_, blocks_.back());
  full_ = layer_costs(model, costs_, false);
  recomputed_ = layer_costs(model, costs_, true);
  const auto segment_s = [&](SegmentKind kind, Pass pass) { return costs_.segment(kind, pass); };
  const Expr stream_bytes = model::stream_bytes(model);
  const Expr gather_s = costs_.tp_all_gather(stream_bytes);
  const Expr scatter_s = costs_.tp_reduce_scatter(stream_bytes);
  const Expr all_reduce_s = costs_.tp_all_reduce(stream_bytes);
  arriving_s_ = gather_s, leaving_s_ = scatter_s - all_reduce_s;
  embedding_forward_s_ = segment_s(SegmentKind::embedding, Pass::forward) + scatter_s;
  embedding_backward_s_ = segment_s(SegmentKind::embedding, Pass::backward);
  const Expr statistics_bytes = model::segment(model, SegmentKind::head).saved.back().bytes();
  const Expr piece_s =
      segment_s(SegmentKind::head, Pass::forward) + costs_.tp_all_gather(statistics_bytes);
  head_forward_s_ = gather_s + piece_s;
  // Beside a microbatch's backward stand the forwards of all pieces but the first. Its input is
  // still here; that of the last layer is brought together beside the first piece.
  const Expr pieces = model::head_pieces(model).count;
  const Expr backward_s = segment_s(SegmentKind::head, Pass::backward);
  head_backward_s_ = costs_.overlapped(backward_s, gather_s, 0.0, 0.0) +
                     (pieces - 1.0) * (piece_s + backward_s) + all_reduce_s;
}

// --- windows ------------------------------------------------------------------------------------

/// The head reads the table too where that is tied to it on the same stage.
Load StageTimeBuilder::weights_of_head() const {
  Load load = head_.weights;
  if (model_.tied_head && role_.first) load += embedding_.weights;
  return load;
}

/// One layer's forward beside the previous layer's drain, and what brings the next block's weights;
/// in the first microbatch also its own drained update and the next block's update. Nothing hides
/// the tensor-parallel collectives, but copies and transfers over dp hide behind them as behind
/// compute.
Load StageTimeBuilder::forward_load(Microbatch which, const LayerCosts& layer, const Expr& first,
                                    const Expr& last) const {
  Load load{.compute_s = layer.forward_s + layer.forward_tp_s,
            // The last layer of the last stage is needed again at once and never offloaded.
            .out_s = role_.last ? (1.0 - last) * layer.out_s : layer.out_s,
            .write_s = role_.last ? (1.0 - last) * layer.write_s : layer.write_s};
  if (which == Microbatch::first) {
    Load next = (1.0 - last) * block_.update;
    if (role_.last) next += last * head_.update;
    next.out_s = block_.update.out_s;
    next.write_s = block_.update.write_s;
    load += next;
    if (role_.last && role_.first && model_.tied_head) load += last * embedding_.weights;
    return load;
  }
  // A stage that is not the last one turns to its last layer's backward, whose weights are there.
  if (!role_.last) load.compute_s += last * layer.beside_forward_s;
  load += (1.0 - last) * block_.weights;
  if (role_.last) load += last * weights_of_head();
  if (!role_.first) load += first * block_.grads;  // it follows that layer's backward
  return load;
}

/// One layer's backward beside what brings the weights of the layer before it, and what becomes of
/// the gradients of the block after it. The first layer is followed by an embedding's backward,
/// which needs no weights, or by its own forward.
Load StageTimeBuilder::backward_load(Microbatch which, const LayerCosts& layer, const Expr& first,
                                     const Expr& last) const {
  Load load{
      .compute_s = layer.backward_s + layer.backward_tp_s + (1.0 - first) * layer.beside_backward_s,
      .in_s = role_.last ? (1.0 - last) * layer.in_s : layer.in_s,
      .read_s = role_.last ? (1.0 - last) * layer.read_s : layer.read_s};
  load += block_.kept_grads;
  load += (1.0 - last) * grads(block_, which);
  if (role_.last) load += last * grads(head_, which);
  return load;
}

/// Beside a pass over the first layer, to or from the stage before; beside the last one, the stage
/// after. Only where stages run far enough ahead for messages to have the time.
Expr StageTimeBuilder::messages_s(const Expr& first, const Expr& last) const {
  const Expr send_s = less(1.0, v_.r) * costs_.send(model::stream_shard_bytes(model_));
  Expr sum = 0.0;
  if (!role_.first && role_.before == role_.group) sum += first * send_s;
  if (!role_.last && role_.after == role_.group) sum += last * send_s;
  return sum;
}

/// @param first, last  1 where it is the stage's first, last layer, else 0
Expr StageTimeBuilder::layer_s(Direction direction, Microbatch which, const LayerCosts& layer,
                               const Expr& first, const Expr& last) const {
  const bool forward = direction == Direction::forward;
  Load load =
      forward ? forward_load(which, layer, first, last) : backward_load(which, layer, first, last);
  load.messages_s = messages_s(first, last);
  if (forward) return window(load);
  load += (1.0 - first) * block_.weights;
  // An embedding's backward is short: what its weights wait for is here while the first layer runs.
  if (role_.first && which != Microbatch::last)
    load.in_s += first * embedding_.weights.weights_in_s;
  return window(load) -
         (role_.last ? layer.hidden_tp_s : select(last, layer.arriving_tp_s, layer.hidden_tp_s));
}

/// Sum over the stage's layers, of which the last c of l are recomputed.
Expr StageTimeBuilder::layers_s(Direction direction, Microbatch which) const {
  const Expr several = less(1.0, v_.l), any = less(0.0, v_.c), all = 1.0 - less(v_.c, v_.l);
  const LayerCosts last = select(any, recomputed_, full_), first = select(all, recomputed_, full_);
  // Between the first and the last one:
  const Expr recomputed = v_.c - any - several * all, full = v_.l - 1.0 - several - recomputed;
  return full * layer_s(direction, which, full_, 0.0, 0.0) +
         recomputed * layer_s(direction, which, recomputed_, 0.0, 0.0) +
         several * layer_s(direction, which, first, 1.0, 0.0) +
         layer_s(direction, which, last, 1.0 - several, 1.0);
}

/// A table that is staged starts each backward from zero.
Expr StageTimeBuilder::embedding_s(Direction direction, Microbatch which) const {
  if (direction == Direction::forward) {
    Load load{.compute_s = embedding_forward_s_};
    if (which == Microbatch::first) {
      load.gather_s = block_.update.gather_s;
      load.write_s = embedding_.update.write_s;
    } else {
      load += embedding_.grads;
      load += block_.weights;
    }
    return window(load);
  }
  const double table_bytes = grad_bytes;
  Load load{.compute_s = embedding_backward_s_,
            .moves_s = costs_.clear_or_add(embedding_.grads_staged * table_bytes *
                                           model::layout_elements(blocks_.front()))};
  load += embedding_.kept_grads;
  load += grads(block_, which);
  if (which != Microbatch::last) {
    load.moves_s += embedding_.weights.moves_s;
    load.gather_s += embedding_.weights.gather_s;
  }
  return window(load);
}

Expr StageTimeBuilder::head_s(Direction direction, Microbatch which) const {
  if (direction == Direction::forward) {
    Load load{.compute_s = head_forward_s_};
    if (which == Microbatch::first) {
      load.out_s = head_.update.out_s;
      load.write_s = head_.update.write_s;
    }
    return window(load);
  }
  Load load{.compute_s = head_backward_s_};
  load += head_.kept_grads;
  load += block_.weights;
  return window(load);
}

/// Updates that no forward hides: the first block's, and beside an embedding's the first layer's.
Expr StageTimeBuilder::first_updates_s() const {
  const auto step_s = [](const BlockCosts& b) { return b.update.compute_s + b.update.moves_s; };
  const Load &embedding = embedding_.update, &block = block_.update;
  if (!role_.first) return block.read_s + block.in_s + step_s(block_) + block.gather_s;
  Expr embedding_s = embedding.in_s + costs_.overlapped(step_s(embedding_), 0.0, block.in_s, 0.0);
  if (role_.disk) embedding_s = embedding.read_s + max(embedding_s, block.read_s + block.in_s);
  return embedding_s + costs_.overlapped(step_s(block_), embedding_.update.gather_s, 0.0,
                                         embedding_.update.out_s);
}

Expr StageTimeBuilder::pass_s(Direction direction, Microbatch which) const {
  Expr sum = layers_s(direction, which);
  if (role_.first) sum += embedding_s(direction, which);
  if (role_.last) sum += head_s(direction, which);
  return sum;
}

// --- terms --------------------------------------------------------------------------------------

void StageTimeBuilder::stable(TimeTerms& terms) const {
  const auto both = [&](auto part_s) {
    return (this->*part_s)(Direction::forward, Microbatch::middle) +
           (this->*part_s)(Direction::backward, Microbatch::middle);
  };
  terms.stable.push_back({"layers forward", layers_s(Direction::forward, Microbatch::middle)});
  terms.stable.push_back({"layers backward", layers_s(Direction::backward, Microbatch::middle)});
  if (role_.first) terms.stable.push_back({"embedding", both(&StageTimeBuilder::embedding_s)});
  if (role_.last) terms.stable.push_back({"head and loss", both(&StageTimeBuilder::head_s)});
  if (!(role_.first && role_.last))
    terms.stable.push_back(
        {"pipeline messages", costs_.stream_messages(model::stream_shard_bytes(model_))});
}

void StageTimeBuilder::delta(TimeTerms& terms) const {
  const auto added_s = [&](Direction direction, Microbatch which) {
    return pass_s(direction, which) - pass_s(direction, Microbatch::middle);
  };
  terms.delta.push_back({"update beside the first forward",
                         first_updates_s() + added_s(Direction::forward, Microbatch::first)});
  terms.delta.push_back({"gradient reduction beside the last backward",
                         added_s(Direction::backward, Microbatch::last)});
  const Load& reduction = (role_.first ? embedding_ : block_).last_grads;
  terms.delta.push_back(
      {"last gradient reduction", reduction.reduce_s + reduction.moves_s + reduction.out_s});
  // It stands before the next block's all-reduces, which wait for that block's last segment anyway.
  const Expr partial_s =
      costs_.tp_all_reduce(grad_bytes * model::layout_partial_elements(blocks_[1]));
  const Expr last_backward_s = costs_.segment(kinds_.back(), Pass::backward);
  Expr exposed_s = v_.l * max(partial_s - last_backward_s, 0.0) + min(partial_s, last_backward_s);
  if (role_.last)
    exposed_s +=
        max(costs_.tp_all_reduce(grad_bytes * model::layout_partial_elements(blocks_.back())) -
                last_backward_s,
            0.0);
  terms.delta.push_back({"gradients partial over tp", exposed_s});

  const auto norm = [&](const model::Block& block) {
    return costs_.norm(grad_bytes * model::layout_elements(block) / v_.dp);
  };
  Expr norms = v_.l * norm(blocks_[1]);
  if (role_.first) norms += norm(blocks_.front());
  if (role_.last) norms += norm(blocks_.back());
  terms.delta.push_back(
      {"loss and gradient norm", norms + costs_.world_all_reduce(2.0 * sizeof(double))});
  if (role_.first)
    terms.delta.push_back(
        {"clearing table gradients",
         (1.0 - embedding_.grads_staged) *
             costs_.clear_or_add(grad_bytes * model::layout_elements(blocks_.front()))});
}

/// A tied head on another stage: its table comes before the first head, its gradient goes home
/// last.
void StageTimeBuilder::tied(TimeTerms& terms) const {
  if (!model_.tied_head || role_.first == role_.last) return;
  const Expr elements = model::token_table_elements(model_);
  const Expr bytes = grad_bytes * elements;
  if (role_.last) {
    terms.delta.push_back({"tied table from the first stage",
                           costs_.send_to(role_.other_end, weight_bytes_ * elements)});
    terms.delta.push_back({"clearing tied gradients", costs_.clear_or_add(bytes)});
  } else {
    const Expr send_s = costs_.send_to(role_.other_end, bytes);
    // It travels while this stage still computes its last backward.
    const Expr hidden = pass_s(Direction::backward, Microbatch::middle);
    terms.delta.push_back({"tied gradient from the last stage",
                           max(send_s - hidden, 0.0) + costs_.clear_or_add(bytes)});
  }
}

TimeTerms StageTimeBuilder::build() {
  TimeTerms terms;
  stable(terms);
  delta(terms);
  tied(terms);
  return terms;
}

}  // namespace

TimeTerms stage_time(const model::Config& model, const hardware::Machine& machine, StageRole role) {
  return StageTimeBuilder(model, machine, role).build();
}

}  // namespace brume::analyzer
