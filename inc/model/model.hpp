/// @file The transformer as data: sizes, parameters, and the segments of its blocks.
#pragma once

#include <vector>

#include "model/config.hpp"
#include "model/layer.hpp"
#include "model/layout.hpp"
#include "model/parameters.hpp"
#include "symbolic/expr.hpp"

namespace brume::model {

// --- segments -----------------------------------------------------------------------------------
// A segment maps the residual stream [N, C] to the next one; with tp > 1 each tp rank computes a
// part of the sum, of which a reduce-scatter leaves each a shard of the tokens, and an all-gather
// of shards comes before the next segment. Its backward maps d output to d input alike. The
// embedding makes the first stream so, the head the first d output; of the vocabulary each tp rank
// has its rows, and the head's logits meet in a few numbers a token. A layer is two segments,
// attention or window and mlp or experts, or the one segment `parallel`, whose branches read the
// same input.

/// Recomputation of a layer in its backward.
enum class Recompute {
  none,       ///< nothing
  selective,  ///< cheap outputs of norms and of the MLP's activation function, which no product and
              ///< no attention makes
  full        ///< all but the layer's input
};
inline constexpr Recompute all_recomputes[] = {Recompute::none, Recompute::selective,
                                               Recompute::full};

/// A head and a tiled MLP have the sizes of one piece, see pieces().
///
/// @param division  Split::division(). Ranks along cp exchange heads of tokens before attention and
///                  behind it, or gather keys. Ranks that sum a layer's segment norm their own
///                  tokens before a gather of all.
Segment segment(const Config& config, SegmentKind kind, Division division = {});

/// Whether a backward makes all of a segment's tensors again, tile by tile, so that only its input
/// is kept.
inline bool is_tiled(SegmentKind kind, const Division& division) {
  return kind == SegmentKind::mlp && division.mlp_tiles > 1;
}

/// Pieces of a microbatch's tokens in which a segment works, as equal as they can be: ceil(N /
/// count) tokens but for the last. In "b" and "cp".
///
/// The head's have at most Config::head_tokens each, a tiled MLP has at most Division::mlp_tiles.
/// Other segments work on all tokens at once.
struct Pieces {
  Expr tokens, count;
};
Pieces pieces(const Config& config, SegmentKind kind, const Division& division = {});

/// Segments of a block in forward order: one, or two for a layer whose branches are not parallel.
std::vector<SegmentKind> segment_kinds(const Config& config, BlockKind kind, LayerKind layer = {});
/// All kinds of segments that a model has, in forward order.
std::vector<SegmentKind> segment_kinds(const Config& config);

/// A tensor of a layer that is kept from forward to backward: a segment's input, or one it saved.
struct Kept {
  SegmentKind segment;
  int saved;  ///< index into Segment::saved; -1: the segment's input
  Expr bytes;
};

/// Saved tensors of a layer, in the order of activation offload, large ones first: with ratio a,
/// the longest prefix with at most a of all bytes moves to CPU memory. A layer with full
/// recomputation keeps its input.
std::vector<Kept> kept_tensors(const Config& config, Recompute recompute, LayerKind layer = {},
                               Division division = {});

/// Bytes of a layer's key cache on a rank, in "tp": keys and values of all its blocks' tokens.
Expr cache_bytes(const Config& config);

/// Elements of the residual stream on a rank, b T C / cp.
Expr stream_elements(const Config& config);
Expr stream_bytes(const Config& config);
/// Bytes of the stream that a segment works on: experts have the tokens of all ranks that divide
/// them.
Expr stream_bytes(const Config& config, SegmentKind kind);
/// Split::expert_data_ranks() in "tp" and "ep"; 1 for a model without experts.
Expr expert_data_ranks(const Config& config);

/// Ranks that hold a token's experts, in the mean if loads are even: of R ranks
///
///   R (1 - C(E - E / R, k) / C(E, k))
Expr ranks_of_token(const Config& config);
/// Bytes of the stream that a tensor-parallel rank holds between segments: those of b T / (cp tp)
/// tokens.
Expr stream_shard_bytes(const Config& config);

/// Model FLOPs of one sequence: three times those of the forward's matrix products and of the half
/// of attention's scores that causality leaves; of blocks without a backward only the forward's, of
/// frozen weights not those of their gradients. Recomputation and passes over memory do not count.
double flops_per_sequence(const Config& config);

}  // namespace brume::model
