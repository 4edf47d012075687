#include "context.hpp"

namespace brume::schedule {

Context::Context(const plan::Plan& plan_, const model::Config& model_, int rank_,
                 const Options& options_)
    : plan(plan_),
      model(model_),
      options(options_),
      rank(rank_),
      place(plan::place(plan, rank)),
      stage(plan.stages[std::size_t(place.stage)]),
      range(plan::block_range(plan, place.stage)),
      sharded(plan::sharded(stage)),
      blocks(model::blocks(model)),
      batch_bytes(std::int64_t(stage.microbatch) * model.seq_len * model::token_bytes),
      stream_bytes(value(model::stream_bytes(model))),
      stream_shard_bytes(value(model::stream_shard_bytes(model))) {
  for (SegmentKind kind : model::segment_kinds(model)) {
    const model::Segment segment = model::segment(model, kind);
    SegmentBytes& bytes = segments[kind];
    for (const model::Saved& saved : segment.saved)
      if (const std::int64_t size = value(saved.bytes()); size > 0)
        bytes.saved.emplace_back(saved.name, size);
    bytes.forward_workspace = value(segment.forward_workspace_bytes());
    bytes.backward_workspace = value(segment.backward_workspace_bytes());
  }
}

std::int64_t Context::value(const model::Expr& expression) const {
  return std::int64_t(expression.evaluate({{"b", stage.microbatch}, {"tp", stage.tp}}));
}

bool Context::recomputes(int index) const {
  return is_layer(index) &&
         block(index).layer >= stage.first_layer + stage.layers - stage.ckpt_layers;
}

bool Context::offloads(int index) const {
  if (!is_layer(index) || stage.act_offload_ratio == 0.0 || !trains()) return false;
  // The last layer of the last stage is needed again at once: moving it out and back saves nothing.
  return !(last_stage() && index == range.last - 1);
}

bool Context::begins_pass(const Slot& slot) const {
  return (slot.kind == Slot::Kind::forward && slot.block == range.first) ||
         (slot.kind == Slot::Kind::backward && slot.block == range.last);
}

bool Context::ends_pass(const Slot& slot) const {
  return (slot.kind == Slot::Kind::forward && slot.block == range.last) ||
         (slot.kind == Slot::Kind::backward && slot.block == range.first);
}

}  // namespace brume::schedule
