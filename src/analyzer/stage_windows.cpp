/// @file A stage's windows: the pass of one block and the transfers of its neighbours.
#include "stage_time_builder.hpp"

namespace brume::analyzer {

/// The head reads the table too where that is tied to it on the same stage.
Load StageTimeBuilder::weights_of_head() const {
  Load load = head_.weights;
  if (model_.tied_head && role_.first) load += embedding_.weights;
  return load;
}

/// How much of the copies out of the last stage is left when its last forward over a layer is done:
/// they go on beside the head's passes.
Expr StageTimeBuilder::left_out_s() const {
  if (!role_.layers) return 0.0;
  const LayerCosts last = last_layer(v_.l, v_.k, v_.c);
  return less(1.0, v_.l) * max(last.out_s - last.forward_s - last.forward_tp_s, 0.0);
}

/// One layer's forward beside the previous layer's drain, and what brings the next block's weights;
/// in the first microbatch also its own drained update and the next block's update. Nothing hides
/// the tensor-parallel collectives, but copies and transfers over dp hide behind them as behind
/// compute.
Load StageTimeBuilder::forward_load(Microbatch which, const LayerCosts& layer, const Expr& first,
                                    const Expr& last) const {
  Load load{.compute_s = layer.forward_s,
            .tp_s = layer.forward_tp_s,
            .out_s = layer.out_s,
            // The last layer of the last stage is needed again at once and never offloaded.
            .write_s = role_.last ? (1.0 - last) * layer.write_s : layer.write_s};
  if (role_.last) {
    const Expr passes_s = layer.forward_s + layer.forward_tp_s;
    load.out_s = (1.0 - first) * select(last, min(layer.out_s, passes_s), layer.out_s);
  }
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
  Load load{.compute_s = layer.backward_s + (1.0 - first) * layer.beside_backward_s,
            .tp_s = layer.backward_tp_s,
            .wait_s = layer.backward_wait_s,
            .in_s = role_.last ? (1.0 - last) * layer.in_s : layer.in_s,
            .read_s = role_.last ? (1.0 - last) * layer.read_s : layer.read_s};
  load += block_.kept_grads;
  load += (1.0 - last) * grads(block_, which);
  if (role_.last) load += last * grads(head_, which);
  return load;
}

/// @param first, last  1 where it is the stage's first, last layer, else 0
Load StageTimeBuilder::layer_load(Direction direction, Microbatch which, const LayerCosts& layer,
                                  const Expr& first, const Expr& last) const {
  if (direction == Direction::forward) return forward_load(which, layer, first, last);
  Load load = backward_load(which, layer, first, last);
  load += (1.0 - first) * block_.weights;
  // An embedding's backward is short: what its weights wait for is here while the first layer runs.
  if (role_.first && which != Microbatch::last)
    load.in_s += first * embedding_.weights.weights_in_s;
  return load;
}

Expr StageTimeBuilder::layer_s(Direction direction, Microbatch which, const LayerCosts& layer,
                               const Expr& first, const Expr& last) const {
  const Expr all_s = window(layer_load(direction, which, layer, first, last));
  if (direction == Direction::forward) return all_s;
  return all_s - layer.hidden_tp_s;
}

LayerCosts StageTimeBuilder::first_layer(const Expr& layers, const Expr& stored,
                                         const Expr& recomputed) const {
  return select(at_most(layers, recomputed), layers_.recomputed,
                select(less(0.0, stored), layers_.stored, layers_.selective));
}

LayerCosts StageTimeBuilder::last_layer(const Expr& layers, const Expr& stored,
                                        const Expr& recomputed) const {
  return select(less(0.0, recomputed), last_.recomputed,
                select(at_most(layers, stored), last_.stored, last_.selective));
}

/// Sum over the stage's layers that pass in this direction. Frozen ones have no update, so their
/// first forward is as the later ones.
Expr StageTimeBuilder::layers_s(Direction direction, Microbatch which) const {
  if (role_.trains_all_layers() || !role_.layers) return layers_s(direction, which, v_.l);
  if (direction == Direction::backward)
    return less(frozen(), v_.l) * layers_s(direction, which, max(trained_layers(), 1.0));
  const Expr share = trained_layers() / v_.l;
  return share * layers_s(direction, which, v_.l) +
         (1.0 - share) * layers_s(direction, Microbatch::middle, v_.l);
}

Expr StageTimeBuilder::layers_s(Direction direction, Microbatch which, const Expr& layers) const {
  return over_layers(layers, [&](const LayerCosts& layer, const Expr& first, const Expr& last) {
    return layer_s(direction, which, layer, first, last);
  });
}

/// How long a window goes on when its compute is done, and with it what leaves for another stage.
/// Transfers that take longer slow the compute as if they took as long.
Expr StageTimeBuilder::tail_s(const Load& load) const {
  const auto beside = [&](const Expr& seconds) { return min(seconds, load.compute_s + load.tp_s); };
  const Load until_then{.compute_s = load.compute_s,
                        .tp_s = load.tp_s,
                        .gather_s = beside(load.reduce_s + load.gather_s),
                        .in_s = beside(load.weights_in_s + load.in_s),
                        .out_s = beside(load.out_s)};
  return max(window(load) - window(until_then), 0.0);
}

/// That of a pass that ends with a layer.
Expr StageTimeBuilder::layer_tail_s(Direction direction, Microbatch which) const {
  const bool forward = direction == Direction::forward;
  const Expr one = 1.0 - less(1.0, v_.l);
  const LayerCosts layer = forward ? last_layer(v_.l, v_.k, v_.c) : first_layer(v_.l, v_.k, v_.c);
  return tail_s(
      layer_load(direction, which, layer, forward ? one : Expr(1.0), forward ? Expr(1.0) : one));
}

/// A table that is staged starts each backward from zero.
Load StageTimeBuilder::embedding_load(Direction direction, Microbatch which) const {
  if (direction == Direction::forward) {
    Load load{.compute_s = embedding_forward_s_};
    if (which == Microbatch::first) {
      load.gather_s = block_.update.gather_s;
      load.write_s = embedding_.update.write_s;
    } else {
      load += embedding_.grads;
      load += block_.weights;
    }
    return load;
  }
  const double table_bytes = model::grad_bytes;
  Load load{
      .compute_s = embedding_backward_s_,
      .copies_s = costs_.clear_or_add(embedding_.grads_staged * table_bytes *
                                      model::layout_elements(model_, blocks_.embedding).trained)};
  load += embedding_.kept_grads;
  load += grads(block_, which);
  if (which != Microbatch::last) {
    load.copies_s += embedding_.weights.copies_s;
    load.gather_s += embedding_.weights.gather_s;
  }
  return load;
}

Expr StageTimeBuilder::head_s(Direction direction, Microbatch which) const {
  if (direction == Direction::forward) {
    Load load{.compute_s = head_forward_s_, .out_s = min(left_out_s(), head_forward_s_)};
    if (which == Microbatch::first) {
      load.out_s += head_.update.out_s;
      load.write_s = head_.update.write_s;
    }
    return window(load);
  }
  Load load{.compute_s = head_backward_s_, .out_s = max(left_out_s() - head_forward_s_, 0.0)};
  load += head_.kept_grads;
  load += block_.weights;
  return window(load);
}

}  // namespace brume::analyzer
