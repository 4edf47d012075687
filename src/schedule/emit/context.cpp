#include "context.hpp"

#include <algorithm>

namespace brume::schedule {

Context::Context(const plan::Plan& plan_, const model::Config& model_, int rank_,
                 const Options& options_)
    : plan(plan_),
      model(model_),
      options(options_),
      rank(rank_),
      place(plan::place(plan, rank)),
      stage(plan.stages[place.stage]),
      stages(plan::stages_beside(plan, place.stage)),
      sharded(plan::sharded(stage)),
      blocks(model::blocks(model, stage.split().division())),
      sequences_bytes(std::int64_t(stage.microbatch) * model.computed_tokens() *
                      model::token_bytes),
      batch_bytes(sequences_bytes / stage.cp),
      stream_shard_bytes(value(model::stream_shard_bytes(model))) {
  for (int index : stages)
    for (auto [block, last] = plan::block_range(plan, index); block <= last; ++block)
      stage_of_block[block] = index;
  for (SegmentKind kind : model::segment_kinds(model)) {
    const model::Segment segment = model::segment(model, kind, stage.split().division());
    SegmentBytes& bytes = segments[kind];
    for (const model::Saved& saved : segment.saved)
      if (const std::int64_t size = value(saved.bytes()); size > 0)
        bytes.saved.push_back({saved.name, size, saved.cheap, saved.for_weights});
    bytes.forward_workspace = value(segment.forward_workspace_bytes());
    bytes.backward_workspace = value(segment.backward_workspace_bytes());
    bytes.product_grads = value(segment.product_grads_bytes());
    bytes.dequantized = value(segment.dequantized_elements) * segment.activation_bytes;
    bytes.weights_workspace = value(segment.weights_workspace_bytes());
    // Where tensor-parallel ranks alone divide experts, they are the group that sums all segments.
    const bool over_data = stage.expert_data_ranks() > 1;
    bytes.sum_axes = over_data ? model::sum_axes(kind) : model::AxisSet(model::Axis::tp);
    bytes.sum_ranks = place.mesh.size(bytes.sum_axes);
    const model::Pieces pieces = model::pieces(model, kind, stage.split().division());
    bytes.piece_tokens = value(pieces.tokens);
    bytes.pieces = int(value(pieces.count));
    bytes.tiled = model::is_tiled(kind, stage.split().division());
    bytes.stream_bytes = value(model::stream_bytes(model, kind));
    add_exchanges(bytes, segment);
  }
}

std::int64_t Context::value(const model::Expr& expression) const {
  return std::int64_t(expression.evaluate(stage.split().values()));
}

model::Recompute Context::recompute(int index) const {
  using enum model::Recompute;
  if (!is_layer(index)) return selective;  // of other blocks nothing is cheap
  const plan::Stage& of = stage_of(index);
  const int layer = block(index).layer - of.first_layer;
  if (layer >= of.layers - of.ckpt_layers) return full;
  return layer < of.stored_layers && trains() && model.has_backward(index) ? none : selective;
}

bool Context::offloads(int index) const {
  if (!is_layer(index) || stage_of(index).act_offload_ratio == 0.0 || !trains()) return false;
  if (!model.has_backward(index)) return false;
  // The last layer of the last stage is needed again at once: moving it out and back saves nothing.
  const bool before_head = is_head(index + 1) && range(index).last > index;
  return !before_head;
}

int Context::last_backward(int block) const {
  return std::max(plan::last_backward_block(plan, stage_index(block)), model.frozen_blocks);
}

bool Context::begins_pass(const Slot& slot) const {
  return (slot.kind == Slot::Kind::forward && slot.block == range(slot.block).first) ||
         (slot.kind == Slot::Kind::backward && slot.block == range(slot.block).last);
}

bool Context::ends_pass(const Slot& slot) const {
  return (slot.kind == Slot::Kind::forward && slot.block == range(slot.block).last) ||
         (slot.kind == Slot::Kind::backward && slot.block == last_backward(slot.block));
}

bool Context::receives(const Slot& slot) const {
  const bool forward = slot.kind == Slot::Kind::forward;
  return begins_pass(slot) && !(forward ? slot.block == 0 : is_head(slot.block));
}

bool Context::sends(const Slot& slot) const {
  const bool forward = slot.kind == Slot::Kind::forward;
  return ends_pass(slot) &&
         (forward ? !is_head(slot.block)
                  : range(slot.block).first > 0 && passes_gradient_on(slot.block));
}

}  // namespace brume::schedule
