#include "stage_time.hpp"

#include <map>

#include "costs.hpp"

namespace brume::analyzer {
namespace {

using model::grad_bytes;
using model::SegmentKind;

/// What one block's update and gradient reduction cost.
struct Update {
  Expr step_s, gather_s, in_s, out_s, reduce_s;
};

/// A layer's passes: compute, exposed tensor-parallel all-reduces, activation copies.
struct Layer {
  Expr forward_s, backward_s;        ///< compute
  Expr forward_tp_s, backward_tp_s;  ///< all-reduces
  Expr hidden_tp_s;                  ///< the part of them that hides behind a recompute
  Expr out_s, in_s;                  ///< copies of what is offloaded
};

/// Builds the terms of one stage role. Windows follow the order of schedule's slots: while one
/// block computes, the transfers of its neighbours are on their way.
class StageTimeBuilder {
 public:
  StageTimeBuilder(const model::Config& model, const hardware::Profile& profile, StageRole role);
  TimeTerms build();

 private:
  Update update(const model::Block& block) const;
  Layer layer(bool recomputed) const;

  Expr forward_window(const Layer& layer, bool offloads, const Update* own,
                      const Update* next) const;
  Expr backward_window(const Layer& layer, bool offloads, const Expr& reduce_s) const;
  Expr interior_backward(const Layer& layer, const Expr& reduce_s) const;
  Expr first_forward() const;
  Expr forward_layers() const;
  Expr backward_layers() const;
  Expr last_backward_layers() const;
  Expr over_interior(const Expr& full, const Expr& recomputed) const;
  Expr last_layer(const Expr& full, const Expr& recomputed) const;

  void stable(TimeTerms& terms) const;
  void delta(TimeTerms& terms) const;
  void tied(TimeTerms& terms) const;

  const model::Config& model_;
  StageRole role_;
  Costs costs_;
  Variables v_;
  std::vector<model::Block> blocks_;
  std::vector<SegmentKind> kinds_;  ///< of a layer
  double weight_bytes_;             ///< of an element
  Expr stream_bytes_;
  Update embedding_, block_, head_;
  Layer full_, recomputed_;
  Expr embedding_forward_s_, embedding_backward_s_, head_forward_s_, head_backward_s_;
};

StageTimeBuilder::StageTimeBuilder(const model::Config& model, const hardware::Profile& profile,
                                   StageRole role)
    : model_(model),
      role_(role),
      costs_(model, profile),
      blocks_(model::blocks(model)),
      kinds_(model::segment_kinds(model, model::BlockKind::layer)),
      weight_bytes_(model::weight_bytes(model.precision)) {
  stream_bytes_ = model::stream_bytes(model);
  embedding_ = update(blocks_.front());
  block_ = update(blocks_[1]);
  head_ = update(blocks_.back());
  full_ = layer(false);
  recomputed_ = layer(true);
  embedding_forward_s_ = costs_.segment(SegmentKind::embedding, Pass::forward);
  embedding_backward_s_ = costs_.segment(SegmentKind::embedding, Pass::backward);
  head_forward_s_ = costs_.segment(SegmentKind::head, Pass::forward);
  head_backward_s_ = costs_.segment(SegmentKind::head, Pass::backward);
}

Update StageTimeBuilder::update(const model::Block& block) const {
  const Expr elements = model::layout_elements(block);
  const Expr shard = elements / select(v_.z, v_.dp, 1.0);
  const Expr staged_bytes = double(model::optimizer_bytes(model_.precision)) * shard * v_.o;
  return {costs_.optimizer(shard), costs_.weight_gather(weight_bytes_ * elements),
          costs_.copy_in(staged_bytes), costs_.copy_out(staged_bytes),
          costs_.gradient_reduction(grad_bytes * elements)};
}

Layer StageTimeBuilder::layer(bool recomputed) const {
  const double count = double(kinds_.size());
  const auto all = [&](Pass pass) {
    Expr sum = 0.0;
    for (SegmentKind kind : kinds_) sum += costs_.segment(kind, pass);
    return sum;
  };
  const Expr all_reduce_s = costs_.tp_all_reduce(stream_bytes_);
  const Expr moved = moved_bytes(model_, recomputed);
  Layer layer{.forward_s = all(Pass::forward),
              .backward_s = all(Pass::backward),
              .forward_tp_s = count * all_reduce_s,
              .backward_tp_s = count * all_reduce_s,
              .hidden_tp_s = 0.0,
              .out_s = costs_.copy_out(moved),
              .in_s = costs_.copy_in(moved)};
  if (recomputed) {
    layer.backward_s += all(Pass::recompute);
    layer.backward_tp_s += (count - 1.0) * all_reduce_s;  // the last one's output is not made
    // The first segment is recomputed without waiting for the gradient, which is still being
    // summed.
    layer.hidden_tp_s = min(all_reduce_s, costs_.segment(kinds_.front(), Pass::recompute));
  }
  return layer;
}

// --- windows ------------------------------------------------------------------------------------

/// One layer's forward beside the previous layer's drain; in the first microbatch also beside its
/// own drained update and the next block's update. Nothing hides a tensor-parallel all-reduce, but
/// copies and reductions over dp hide behind it as behind compute.
Expr StageTimeBuilder::forward_window(const Layer& layer, bool offloads, const Update* own,
                                      const Update* next) const {
  const Expr out_s = (offloads ? layer.out_s : Expr(0.0)) + (own ? own->out_s : Expr(0.0));
  const Update none;
  const Update& later = next ? *next : none;
  return costs_.overlapped(layer.forward_s + layer.forward_tp_s + later.step_s, later.gather_s,
                           later.in_s, out_s);
}

Expr StageTimeBuilder::backward_window(const Layer& layer, bool offloads,
                                       const Expr& reduce_s) const {
  return costs_.overlapped(layer.backward_s + layer.backward_tp_s, reduce_s,
                           offloads ? layer.in_s : Expr(0.0), 0.0);
}

/// A layer's backward that follows another layer's.
Expr StageTimeBuilder::interior_backward(const Layer& layer, const Expr& reduce_s) const {
  return backward_window(layer, true, reduce_s) - layer.hidden_tp_s;
}

/// Sum over all layers of the stage but its last; the last c of l layers are recomputed.
Expr StageTimeBuilder::over_interior(const Expr& full, const Expr& recomputed) const {
  const Expr any = less(0.0, v_.c);
  return (v_.l - v_.c - (1.0 - any)) * full + (v_.c - any) * recomputed;
}

Expr StageTimeBuilder::last_layer(const Expr& full, const Expr& recomputed) const {
  return select(less(0.0, v_.c), recomputed, full);
}

Expr StageTimeBuilder::forward_layers() const {
  const auto window = [&](const Layer& layer, bool offloads) {
    return forward_window(layer, offloads, nullptr, nullptr);
  };
  // The last layer of the last stage is needed again at once and never offloaded.
  const bool offloads = !role_.last;
  return over_interior(window(full_, true), window(recomputed_, true)) +
         last_layer(window(full_, offloads), window(recomputed_, offloads));
}

Expr StageTimeBuilder::backward_layers() const {
  const bool offloads = !role_.last;
  return over_interior(interior_backward(full_, 0.0), interior_backward(recomputed_, 0.0)) +
         last_layer(backward_window(full_, offloads, 0.0),
                    backward_window(recomputed_, offloads, 0.0));
}

/// First microbatch: the first block's update is exposed, each later one runs one block ahead.
Expr StageTimeBuilder::first_forward() const {
  const Update& first = role_.first ? embedding_ : block_;
  Expr sum = first.in_s;
  if (role_.first) {
    sum += costs_.overlapped(embedding_.step_s, 0.0, block_.in_s, 0.0) +
           costs_.overlapped(block_.step_s, embedding_.gather_s, 0.0, embedding_.out_s) +
           costs_.overlapped(embedding_forward_s_, block_.gather_s, 0.0, 0.0);
  } else {
    sum += block_.step_s + block_.gather_s;
  }
  sum += over_interior(forward_window(full_, true, &block_, &block_),
                       forward_window(recomputed_, true, &block_, &block_));
  const Update* after = role_.last ? &head_ : nullptr;
  sum += last_layer(forward_window(full_, !role_.last, &block_, after),
                    forward_window(recomputed_, !role_.last, &block_, after));
  if (role_.last) sum += costs_.overlapped(head_forward_s_, 0.0, 0.0, head_.out_s);
  return sum;
}

/// Last microbatch: each block's gradients are summed over dp while the next block computes.
Expr StageTimeBuilder::last_backward_layers() const {
  const Expr before = role_.last ? head_.reduce_s : Expr(0.0);
  const bool offloads = !role_.last;
  Expr sum = over_interior(interior_backward(full_, block_.reduce_s),
                           interior_backward(recomputed_, block_.reduce_s)) +
             last_layer(backward_window(full_, offloads, before),
                        backward_window(recomputed_, offloads, before));
  if (role_.first) sum += costs_.overlapped(embedding_backward_s_, block_.reduce_s, 0.0, 0.0);
  return sum;
}

// --- terms --------------------------------------------------------------------------------------

void StageTimeBuilder::stable(TimeTerms& terms) const {
  terms.stable.push_back({"layers forward", forward_layers()});
  terms.stable.push_back({"layers backward", backward_layers()});
  if (role_.first)
    terms.stable.push_back({"embedding", embedding_forward_s_ + embedding_backward_s_});
  if (role_.last) terms.stable.push_back({"head and loss", head_forward_s_ + head_backward_s_});
  // A microbatch crosses S - 1 boundaries twice while S microbatches are on their way.
  if (!(role_.first && role_.last))
    terms.stable.push_back(
        {"pipeline messages", 2.0 * costs_.send(stream_bytes_) * (v_.S - 1.0) / v_.S});
}

void StageTimeBuilder::delta(TimeTerms& terms) const {
  Expr forward = forward_layers(), backward = backward_layers();
  if (role_.first) forward += embedding_forward_s_, backward += embedding_backward_s_;
  if (role_.last) forward += head_forward_s_;
  terms.delta.push_back({"update beside the first forward", first_forward() - forward});
  terms.delta.push_back(
      {"gradient reduction beside the last backward", last_backward_layers() - backward});
  terms.delta.push_back(
      {"last gradient reduction", role_.first ? embedding_.reduce_s : block_.reduce_s});
  // It stands before the next block's all-reduces, which wait for that block's last segment anyway.
  const Expr partial_s =
      costs_.tp_all_reduce(grad_bytes * model::layout_partial_elements(blocks_[1]));
  const Expr last_backward_s = costs_.segment(kinds_.back(), Pass::backward);
  terms.delta.push_back({"gradients partial over tp", v_.l * max(partial_s - last_backward_s, 0.0) +
                                                          min(partial_s, last_backward_s)});

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
         costs_.clear_or_add(grad_bytes * model::layout_elements(blocks_.front()))});
}

/// A tied head on another stage: its table comes before the first head, its gradient goes home
/// last.
void StageTimeBuilder::tied(TimeTerms& terms) const {
  if (!model_.tied_head || role_.first == role_.last) return;
  const double elements = double(blocks_.front().parameters.front().elements());
  const double bytes = grad_bytes * elements;
  if (role_.last) {
    terms.delta.push_back(
        {"tied table from the first stage", costs_.send(weight_bytes_ * elements)});
    terms.delta.push_back({"clearing tied gradients", costs_.clear_or_add(bytes)});
  } else {
    const Expr send_s = costs_.send(bytes);
    // It travels while this stage still computes its last backward.
    const Expr hidden = backward_layers() + embedding_backward_s_;
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

Expr moved_bytes(const model::Config& model, bool recomputed) {
  const auto bytes = [kept = model::kept_tensors(model, recomputed)](Arguments x) {
    const std::map<std::string, double, std::less<>> values{{"b", x[1]}, {"tp", x[2]}};
    double total = 0.0, prefix = 0.0, moved = 0.0;
    for (const model::Kept& tensor : kept) total += tensor.bytes.evaluate(values);
    for (const model::Kept& tensor : kept) {
      prefix += tensor.bytes.evaluate(values);
      if (prefix > x[0] * total + 0.5) break;
      moved = prefix;
    }
    return moved;
  };
  const Variables v;
  return Expr::call(remembering(recomputed ? "moved_inputs" : "moved_activations", bytes),
                    {v.a, v.b, v.tp});
}

TimeTerms stage_time(const model::Config& model, const hardware::Profile& profile, StageRole role) {
  return StageTimeBuilder(model, profile, role).build();
}

}  // namespace brume::analyzer
