/// @file Bytes of a segment's transient buffers, and of a layer.
#pragma once

#include "costs.hpp"

namespace brume::analyzer {

/// Bytes of a segment's transient buffers on one rank.
struct SegmentBytes {
  SegmentBytes(const model::Config& model, model::SegmentKind kind, const model::Segment& segment) {
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
  SegmentBytes(const model::Config& model, model::SegmentKind kind, const StageRole& role)
      : SegmentBytes(model, kind, model::segment(model, kind, role.division({}))) {
    tiled = model::is_tiled(kind, role.division({}));
    if (tiled) cheap = 0.0;
    if (kind == model::SegmentKind::head) return;
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
  bool tiled = false;      ///< all of it is of a tile, which the backward makes again
  // The rest is of ranks that do.
  double inputs = 0.0;  ///< normed inputs
  bool adds = false;    ///< the sum of the ranks' terms and the stream is the output

  /// Bytes of tensors that stay from a layer's forward to its backward.
  /// @param stored  1 where the layer keeps the cheap ones, else 0
  Expr kept(const Expr& stored) const { return tiled ? Expr(0.0) : saved + stored * cheap; }
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

inline LayerBytes operator-(const LayerBytes& a, const LayerBytes& b) {
  return {a.stored - b.stored, a.selective - b.selective, a.recomputed - b.recomputed};
}

}  // namespace brume::analyzer
