/// @file Runs of a segment and the exchanges between them, with the places of their tensors.
#include <algorithm>

#include "context.hpp"

namespace brume::schedule {
namespace {

using model::Operator, model::OperatorKind, model::TensorId;

class Finder {
 public:
  Finder(const Context& context, SegmentBytes& bytes, const model::Segment& segment)
      : context_(context), bytes_(bytes), segment_(segment), brought_(segment.brought()) {}

  void find();

 private:
  int saved_index(TensorId id) const {
    const auto found = std::ranges::find(segment_.saved, id, &model::Saved::tensor);
    return found == segment_.saved.end() ? -1 : int(found - segment_.saved.begin());
  }
  model::AxisSet axes(const Operator& op) const {
    return op.axes == model::sum_axes(segment_.kind) ? bytes_.sum_axes : op.axes;
  }
  bool in_fp32(const Operator& op) const {
    return segment_.tensor(op.read).element_bytes > segment_.activation_bytes;
  }
  const Operator& op_of(const model::BackwardCall& call) const {
    return segment_.operators[std::size_t(call.op)];
  }
  void find_brought();
  TensorPlace place(TensorId id, const model::Expr& offset) const;
  TensorPlace of_tensor(TensorId id, bool again = false) const;
  TensorPlace of_gradient(TensorId id) const;
  SegmentExchange of_tokens(const Operator& op, Operation operation, const TensorPlace& sent,
                            const TensorPlace& received, bool again) const;
  SegmentExchange of_operator(const Operator& op, bool again = false) const;
  SegmentExchange of_backward(const Operator& op) const;
  bool is_in_backward(TensorId id) const;
  void add_places(std::vector<RunPlace>& places, const Operator& op, bool makes,
                  bool backward) const;
  RunPlaces of_forward(const model::Run& run) const;
  RunPlaces of_backward(const model::Run& run) const;

  const Context& context_;
  SegmentBytes& bytes_;
  const model::Segment& segment_;
  std::vector<TensorId> brought_;
};

void Finder::find_brought() {
  for (const TensorId id : brought_) {
    BroughtTensor& tensor = bytes_.brought.emplace_back(BroughtTensor{.saved = saved_index(id)});
    for (const Operator& op : segment_.operators)
      if (model::is_norm(op.kind) && segment_.tensor(op.written).rows_of == id)
        for (const TensorId one : op.statistics) tensor.statistics.push_back(saved_index(one));
  }
  const model::BackwardCall& begin = segment_.backward.front();
  const TensorId begun = op_of(begin).written;
  bytes_.brings_again = begin.again && segment_.tensor(segment_.tensor(begun).rows_of).brought;
}

TensorPlace Finder::place(TensorId id, const model::Expr& offset) const {
  const model::Tensor& tensor = segment_.tensor(id);
  return {.first_byte = context_.value(offset) * segment_.activation_bytes,
          .bytes = context_.value(tensor.elements()) * tensor.element_bytes};
}

/// Rows of a gathered tensor, and of a gradient that is summed, lie in their place there.
TensorPlace Finder::of_tensor(TensorId id, bool again) const {
  id = segment_.tensor(id).rows_of;
  const model::Tensor& tensor = segment_.tensor(id);
  TensorPlace made = place(id, again ? tensor.again_offset : tensor.forward_offset);
  if (again) made.first_byte += bytes_.product_grads;
  made.saved = saved_index(id);
  const auto found = std::ranges::find(brought_, id);
  if (found != brought_.end()) made.brought = int(found - brought_.begin());
  return made;
}

TensorPlace Finder::of_gradient(TensorId id) const {
  id = segment_.tensor(id).gradient_of;
  TensorPlace made = place(id, segment_.tensor(id).backward_offset);
  made.among_products = segment_.tensor(id).gradient == model::Tensor::Gradient::products;
  if (!made.among_products) made.first_byte += bytes_.product_grads;
  return made;
}

SegmentExchange Finder::of_tokens(const Operator& op, Operation operation, const TensorPlace& sent,
                                  const TensorPlace& received, bool again) const {
  return {
      .operation = operation,
      .axes = axes(op),
      .whole = sent,
      .part = received,
      .again = again,
      .output_only = op.output_only,
      .routes = saved_index(*op.routes),
      .row_bytes = context_.value(segment_.tensor(op.read).columns) * segment_.activation_bytes};
}

SegmentExchange Finder::of_operator(const Operator& op, bool again) const {
  using enum Operation;
  if (model::is_of_tokens(op.kind))
    return of_tokens(op, op.kind == OperatorKind::send_rows ? send_rows : return_rows,
                     of_tensor(op.read, again), of_tensor(op.written, again), again);
  if (op.kind == OperatorKind::all_gather)
    return {all_gather, axes(op), of_tensor(op.written, again), {}, again, in_fp32(op)};
  const bool sums = op.kind == OperatorKind::reduce_scatter;
  return {sums ? reduce_scatter : all_to_all, axes(op), of_tensor(op.read), of_tensor(op.written)};
}

SegmentExchange Finder::of_backward(const Operator& op) const {
  using enum Operation;
  if (model::is_of_tokens(op.kind))
    return of_tokens(op, op.kind == OperatorKind::send_rows ? return_rows : send_rows,
                     of_gradient(op.written), of_gradient(op.read), false);
  if (op.kind == OperatorKind::all_gather)
    return {reduce_scatter, axes(op), of_gradient(op.written), {}, false, in_fp32(op)};
  if (op.kind == OperatorKind::reduce_scatter)
    return {all_gather, axes(op), of_gradient(op.read), {}};
  return {all_to_all, op.axes, of_gradient(op.written), of_gradient(op.read)};
}

/// Whether a backward finds a tensor, or makes it again.
bool Finder::is_in_backward(TensorId id) const {
  return saved_index(id) >= 0 ||
         std::ranges::any_of(segment_.backward, [&](const model::BackwardCall& call) {
           return call.again && op_of(call).written == id;
         });
}

/// @param makes  whether the operator's output is made, else gradients of what it reads
void Finder::add_places(std::vector<RunPlace>& places, const Operator& op, bool makes,
                        bool backward) const {
  const auto add = [&](TensorId id, bool writes) {
    if (id == TensorId::input || id == TensorId::output) return;
    if (!backward || is_in_backward(id))
      places.push_back({of_tensor(id, backward), makes && writes});
    if (backward && !makes) places.push_back({of_gradient(id), true});
  };
  add(op.read, false), add(op.written, true);
  if (op.second) add(*op.second, false);
  if (op.gates) add(*op.gates, false);
  if (makes)
    for (const TensorId id : op.statistics) places.push_back({of_tensor(id, backward), true});
}

RunPlaces Finder::of_forward(const model::Run& run) const {
  RunPlaces found;
  for (int i = run.first; i < run.end && run.beside; ++i) {
    const Operator& op = segment_.operators[std::size_t(i)];
    add_places(found.places, op, true, false);
    found.writes_output |= op.written == TensorId::output;
  }
  if (run.end == int(segment_.operators.size())) return found;
  const Operator& op = segment_.operators[std::size_t(run.end)];
  if (model::is_exchange(op.kind)) found.behind = of_operator(op);
  return found;
}

RunPlaces Finder::of_backward(const model::Run& run) const {
  RunPlaces found;
  for (int i = run.first; i < run.end && run.beside; ++i) {
    const model::BackwardCall& call = segment_.backward[std::size_t(i)];
    add_places(found.places, op_of(call), call.again, true);
  }
  if (run.end == int(segment_.backward.size())) return found;
  const model::BackwardCall& call = segment_.backward[std::size_t(run.end)];
  const Operator& op = op_of(call);
  if (model::is_exchange(op.kind))
    found.behind = call.again ? of_operator(op, true) : of_backward(op);
  return found;
}

void Finder::find() {
  const model::Split split = context_.stage.split();
  bytes_.forward_runs = model::forward_runs(segment_, split);
  bytes_.backward_runs = model::backward_runs(segment_, split);
  bytes_.cuts = !segment_.tensor(TensorId::output).cut.empty();
  bytes_.sums = segment_.terms != TensorId::output;
  find_brought();
  for (const model::Run& run : bytes_.forward_runs)
    bytes_.forward_places.push_back(of_forward(run));
  for (const model::Run& run : bytes_.backward_runs)
    bytes_.backward_places.push_back(of_backward(run));
}

}  // namespace

void Context::add_exchanges(SegmentBytes& bytes, const model::Segment& segment) const {
  Finder(*this, bytes, segment).find();
}

}  // namespace brume::schedule
