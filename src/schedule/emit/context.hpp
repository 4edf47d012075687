/// @file What the emission knows of a rank and its plan. Nothing here changes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/rules.hpp"
#include "schedule/compile.hpp"
#include "schedule/order/order.hpp"

namespace brume::schedule {

using model::BlockKind;
using model::SegmentKind;

/// Place of a tensor that a segment exchanges.
struct TensorPlace {
  int saved = -1;                          ///< index of a saved tensor, if it is kept
  int brought = -1;                        ///< index of a tensor with a buffer of its own
  bool among_products = false;             ///< among the gradients of products, else in scratch
  std::int64_t first_byte = 0, bytes = 0;  ///< within scratch, in which products come first
};

/// An exchange between two runs of a segment.
struct SegmentExchange {
  Operation operation;
  model::AxisSet axes;
  TensorPlace whole;                ///< of all ranks' parts; of an all-to-all what is sent
  std::optional<TensorPlace> part;  ///< that becomes this rank's; none: in place
  bool again = false;               ///< of a backward, if the tensor is not kept
  bool in_fp32 = false;
  bool output_only = false;    ///< not needed if nobody reads the output
  int routes = -1;             ///< index of the saved tensor that has numbers of rows
  std::int64_t row_bytes = 0;  ///< of such a row
};

/// A tensor, or the gradient of one, of a run beside an exchange.
struct RunPlace {
  TensorPlace at;
  bool writes;
};

/// Places that a run of a segment touches, and the exchange behind it.
struct RunPlaces {
  std::vector<RunPlace> places = {};  ///< of a run beside an exchange
  bool writes_output = false;         ///< such a run of a forward
  std::optional<SegmentExchange> behind = {};
};

/// A tensor that is gathered before the rest of its segment computes.
struct BroughtTensor {
  int saved = -1;  ///< index of the saved tensor that it is in a layer without recomputation
  std::vector<int> statistics = {};  ///< indices of those of its norm
};

/// Sizes of the buffers that a segment takes on a rank, in bytes.
struct SegmentBytes {
  struct Saved {
    std::string name;
    std::int64_t bytes;
    bool cheap;
    bool for_weights;
  };
  std::vector<Saved> saved;  ///< those that are not empty
  std::int64_t forward_workspace;
  std::int64_t backward_workspace;
  // Split backwards:
  std::int64_t product_grads;
  std::int64_t weights_workspace;
  std::int64_t dequantized;  ///< at the end of each pass's workspace

  std::vector<model::Run> forward_runs, backward_runs;
  std::vector<RunPlaces> forward_places, backward_places;  ///< by run
  std::vector<BroughtTensor> brought;  ///< run i makes this rank's rows of the i-th one
  bool brings_again = false;           ///< a backward does so too
  bool cuts = false;                   ///< input and output are this rank's rows
  bool sums = false;  ///< of the output, terms are made, and the last forward run adds the stream
  int sum_ranks;      ///< that sum its output
  model::AxisSet sum_axes;    ///< along which they differ
  std::int64_t piece_tokens;  ///< of a piece in which it works, but for the last one
  int pieces;
  bool tiled;                 ///< its backward makes each piece's tensors again
  std::int64_t stream_bytes;  ///< of the residual stream of a microbatch, as it works on it
};

struct Context {
  /// Refers to all but the rank for as long as it lives.
  Context(const plan::Plan& plan, const model::Config& model, int rank, const Options& options);

  const plan::Plan& plan;
  const model::Config& model;
  const Options& options;
  int rank;
  plan::Place place;
  const plan::Stage& stage;           ///< the first one here, as all of which the mesh is cut
  std::vector<int> stages;            ///< that lie here: one, or several chunks of layers
  std::map<int, int> stage_of_block;  ///< of the blocks here
  plan::Sharded<bool> sharded;
  std::vector<model::Block> blocks;
  std::map<SegmentKind, SegmentBytes> segments;
  std::int64_t sequences_bytes;     ///< tokens of a microbatch's sequences
  std::int64_t batch_bytes;         ///< ... of this rank alone
  std::int64_t stream_shard_bytes;  ///< of a microbatch, on one tensor-parallel rank

  int sum_ranks(SegmentKind kind) const { return segments.at(kind).sum_ranks; }
  /// An expression's value for this stage's split.
  std::int64_t value(const model::Expr& expression) const;

  const model::Block& block(int index) const { return blocks[index]; }
  model::Layout layout(int index) const { return plan::layout(block(index), place); }
  bool is_layer(int index) const { return block(index).kind == BlockKind::layer; }
  bool is_head(int index) const { return block(index).kind == BlockKind::head; }
  model::LayerKind layer_kind(int index) const {
    return is_layer(index) ? model.layer_kind(block(index).layer) : model::LayerKind{};
  }
  std::vector<SegmentKind> segment_kinds(int index) const {
    return model::segment_kinds(model, block(index).kind, layer_kind(index));
  }
  int stage_index(int block) const { return stage_of_block.at(block); }
  const plan::Stage& stage_of(int block) const { return plan.stages[stage_index(block)]; }
  plan::BlockRange range(int block) const { return plan::block_range(plan, stage_index(block)); }
  model::Recompute recompute(int index) const;
  bool recomputes(int index) const { return recompute(index) == model::Recompute::full; }
  bool offloads(int index) const;

  /// Whether a block's backward is in two parts.
  bool splits(int index) const { return plan.order.splits_backward() && is_layer(index); }
  bool trains() const { return options.mode == Mode::train; }
  bool generates() const { return options.mode == Mode::generate; }
  /// Whether something of a block is trained.
  bool updates(int index) const { return block(index).trains(); }
  /// Whether a gradient goes on from a block, to the one before it or to the stage before.
  bool passes_gradient_on(int index) const { return index > 0 && model.has_backward(index - 1); }
  bool holds_first_stage() const { return place.stage == 0; }
  bool holds_last_stage() const { return stages.back() == plan.num_stages() - 1; }
  bool runs_ahead() const {
    return options.overlap && plan.order.messages_run_ahead(plan.microbatches);
  }
  bool tied_across_stages() const { return model.tied_head && plan.num_stages() > 1; }
  bool tied_within_stage() const { return model.tied_head && plan.num_stages() == 1; }

  bool last_microbatch(const Slot& slot) const { return slot.microbatch == plan.microbatches - 1; }
  /// The block with which a backward ends on the stage of a block.
  int last_backward(int block) const;
  /// Whether a slot is the first, or the last, of its microbatch's pass through the stage.
  bool begins_pass(const Slot& slot) const;
  bool ends_pass(const Slot& slot) const;
  /// Whether a slot's stream comes from another stage, goes to one.
  bool receives(const Slot& slot) const;
  bool sends(const Slot& slot) const;

 private:
  void add_exchanges(SegmentBytes& bytes, const model::Segment& segment) const;
};

}  // namespace brume::schedule
