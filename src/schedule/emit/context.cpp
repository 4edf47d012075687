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
      blocks(model::blocks(model)),
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
    bytes.weights_workspace = value(segment.weights_workspace_bytes());
    // Where tensor-parallel ranks alone divide experts, they are the group that sums all segments.
    const bool over_data = stage.expert_data_ranks() > 1;
    bytes.sum_axes = over_data ? model::sum_axes(kind) : model::AxisSet(model::Axis::tp);
    bytes.sum_ranks = place.mesh.size(bytes.sum_axes);
    bytes.stream_bytes = value(model::stream_bytes(model, kind));
    add_exchanges(bytes, segment);
  }
}

void Context::add_exchanges(SegmentBytes& bytes, const model::Segment& segment) const {
  bytes.forward_runs = model::forward_runs(segment, stage.split());
  bytes.backward_runs = model::backward_runs(segment, stage.split());
  bytes.cuts = !segment.tensor(model::TensorId::output).cut.empty();
  bytes.sums = segment.terms != model::TensorId::output;
  const auto saved_index = [&](model::TensorId id) {
    const auto found = std::ranges::find(segment.saved, id, &model::Saved::tensor);
    return found == segment.saved.end() ? -1 : int(found - segment.saved.begin());
  };
  const std::vector<model::TensorId> brought = segment.brought();
  for (const model::TensorId id : brought) {
    BroughtTensor& tensor = bytes.brought.emplace_back(BroughtTensor{.saved = saved_index(id)});
    for (const model::Operator& op : segment.operators)
      if (model::is_norm(op.kind) && segment.tensor(op.written).rows_of == id)
        for (const model::TensorId one : op.statistics)
          tensor.statistics.push_back(saved_index(one));
  }
  const model::BackwardCall& begin = segment.backward.front();
  const model::TensorId begun = segment.operators[std::size_t(begin.op)].written;
  bytes.brings_again = begin.again && segment.tensor(segment.tensor(begun).rows_of).brought;
  const auto axes = [&](const model::Operator& op) {
    return op.axes == model::sum_axes(segment.kind) ? bytes.sum_axes : op.axes;
  };
  const auto place = [&](model::TensorId id, const model::Expr& offset) {
    const model::Tensor& tensor = segment.tensor(id);
    return TensorPlace{.first_byte = value(offset) * segment.activation_bytes,
                       .bytes = value(tensor.elements()) * tensor.element_bytes};
  };
  const auto of_tensor = [&](model::TensorId id, bool again = false) {
    id = segment.tensor(id).rows_of;
    const model::Tensor& tensor = segment.tensor(id);
    TensorPlace made = place(id, again ? tensor.again_offset : tensor.forward_offset);
    if (again) made.first_byte += bytes.product_grads;
    made.saved = saved_index(id);
    const auto found = std::ranges::find(brought, id);
    if (found != brought.end()) made.brought = int(found - brought.begin());
    return made;
  };
  const auto of_gradient = [&](model::TensorId id) {
    id = segment.tensor(id).gradient_of;
    TensorPlace made = place(id, segment.tensor(id).backward_offset);
    made.among_products = segment.tensor(id).gradient == model::Tensor::Gradient::products;
    if (!made.among_products) made.first_byte += bytes.product_grads;
    return made;
  };
  // Rows of a gathered tensor, and of a gradient that is summed, lie in their place there.
  using enum Operation;
  const auto of_tokens = [&](const model::Operator& op, Operation operation,
                             const TensorPlace& sent, const TensorPlace& received,
                             bool again) -> SegmentExchange {
    return {.operation = operation,
            .axes = axes(op),
            .whole = sent,
            .part = received,
            .again = again,
            .output_only = op.output_only,
            .routes = saved_index(*op.routes),
            .row_bytes = value(segment.tensor(op.read).columns) * segment.activation_bytes};
  };
  const auto in_fp32 = [&](const model::Operator& op) {
    return segment.tensor(op.read).element_bytes > segment.activation_bytes;
  };
  const auto of_operator = [&](const model::Operator& op, bool again = false) -> SegmentExchange {
    if (model::is_of_tokens(op.kind))
      return of_tokens(op, op.kind == model::OperatorKind::send_rows ? send_rows : return_rows,
                       of_tensor(op.read, again), of_tensor(op.written, again), again);
    if (op.kind == model::OperatorKind::all_gather)
      return {all_gather, axes(op), of_tensor(op.written, again), {}, again, in_fp32(op)};
    const bool sums = op.kind == model::OperatorKind::reduce_scatter;
    return {sums ? reduce_scatter : all_to_all, axes(op), of_tensor(op.read),
            of_tensor(op.written)};
  };
  const auto of_backward = [&](const model::Operator& op) -> SegmentExchange {
    if (model::is_of_tokens(op.kind))
      return of_tokens(op, op.kind == model::OperatorKind::send_rows ? return_rows : send_rows,
                       of_gradient(op.written), of_gradient(op.read), false);
    if (op.kind == model::OperatorKind::all_gather)
      return {reduce_scatter, axes(op), of_gradient(op.written), {}, false, in_fp32(op)};
    if (op.kind == model::OperatorKind::reduce_scatter)
      return {all_gather, axes(op), of_gradient(op.read), {}};
    return {all_to_all, op.axes, of_gradient(op.written), of_gradient(op.read)};
  };
  for (std::size_t i = 0; i + 1 < bytes.forward_runs.size(); ++i)
    bytes.forward_exchanges.push_back(
        of_operator(segment.operators[std::size_t(bytes.forward_runs[i].end)]));
  for (std::size_t i = 0; i + 1 < bytes.backward_runs.size(); ++i) {
    const model::BackwardCall& call = segment.backward[std::size_t(bytes.backward_runs[i].end)];
    const model::Operator& op = segment.operators[std::size_t(call.op)];
    bytes.backward_exchanges.push_back(call.again ? of_operator(op, true) : of_backward(op));
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
