/// @file Places of a segment's tensors in the scratch of its passes.
#include <algorithm>
#include <optional>
#include <utility>

#include "derivation.hpp"

namespace brume::model {
namespace {

/// Scratch of one pass: tensors lie behind all that live with them.
class Scratch {
 public:
  explicit Scratch(const Segment& segment) : segment_(segment), on_the_way_(segment) {}

  bool holds(TensorId id, bool apart = false) const {
    return std::ranges::count(live_, Key{id, apart}, &Live::key) > 0;
  }
  /// Places a tensor, or its gradient, of `elements` of the scratch.
  ///
  /// @param apart       the tensor, if its gradient has another place
  /// @param behind_all  behind all that were placed so far, also if they are free again
  /// @return its offset
  Expr place(TensorId id, const Expr& elements, bool apart = false, bool behind_all = false) {
    std::optional<Expr> offset = behind_all ? peak_ : std::nullopt;
    for (const Live& one : live_) offset = offset ? max(*offset, one.end) : one.end;
    const int wide = segment_.tensor(id).element_bytes / segment_.activation_bytes;
    if (offset && wide > 1) offset = double(wide) * ceil(*offset / double(wide));
    live_.push_back({{id, apart}, offset ? *offset + elements : elements});
    peak_ = peak_ ? max(*peak_, live_.back().end) : live_.back().end;
    return offset.value_or(0.0);
  }
  /// While tokens are on their way, no place is free again: an operator beside them would wait.
  void free(TensorId id, bool apart = false) {
    waiting_.push_back({id, apart});
    if (!on_the_way_.any()) free_waiting();
  }
  /// Meets an operator before its tensors are placed.
  void meet(const Operator& op) {
    on_the_way_.meet(op, is_exchange(op.kind));
    if (!on_the_way_.any()) free_waiting();
  }
  Expr peak() const { return peak_.value_or(0.0); }

 private:
  using Key = std::pair<TensorId, bool>;
  struct Live {
    Key key;
    Expr end;
  };
  void free_waiting() {
    for (const Key& key : std::exchange(waiting_, {}))
      std::erase_if(live_, [&](const Live& one) { return one.key == key; });
  }

  const Segment& segment_;
  OnTheWay on_the_way_;
  std::vector<Live> live_;
  std::vector<Key> waiting_;
  std::optional<Expr> peak_;
};

}  // namespace

/// Whether a forward holds it in scratch, unless it is kept.
bool Derivation::in_forward_scratch(TensorId id) const {
  if (s_.tensor(id).brought || id == s_.terms) return false;
  return is_cheap(id) || (!is_end(id) && std::ranges::count(s_.saved, id, &Saved::tensor) == 0);
}

/// The tensor's size in elements of the scratch, which are activations.
Expr Derivation::scratch_elements(TensorId id) const {
  const Tensor& tensor = s_.tensor(id);
  if (tensor.element_bytes == s_.activation_bytes) return tensor.elements();
  return tensor.elements() * (double(tensor.element_bytes) / double(s_.activation_bytes));
}

void Derivation::place_forward() {
  Scratch scratch(s_);
  for (int i = 0; i < int(s_.operators.size()); ++i) {
    scratch.meet(op(i));
    const TensorId made = s_.tensor(op(i).written).rows_of;
    if (in_forward_scratch(made) && !scratch.holds(made)) {
      s_.tensor(made).forward_offset = scratch.place(made, scratch_elements(made));
    }
    const TensorId read = s_.tensor(op(i).read).rows_of;
    int last = -1;
    for (std::size_t id = 0; id < s_.tensors.size(); ++id)
      if (s_.tensors[id].rows_of == read)
        for (const int reader : readers(TensorId(id))) last = std::max(last, reader);
    if (last == i) scratch.free(read);
  }
  s_.forward_workspace_elements = scratch.peak() + s_.dequantized_elements;
}

void Derivation::place_backward() {
  Scratch scratch(s_);
  std::optional<Expr> of_weights, products;
  for (const Operator& op : s_.operators) {
    Tensor& tensor = s_.tensor(op.written);
    if (!is_product(op.kind) || tensor.gradient != Tensor::Gradient::products) continue;
    if (&*std::ranges::find(s_.operators, op.written, &Operator::written) != &op) continue;
    tensor.backward_offset = products.value_or(0.0);
    products = products ? *products + tensor.elements() : tensor.elements();
  }
  const bool takes_rounds = std::ranges::any_of(
      s_.operators, [](const Operator& op) { return op.kind == OperatorKind::experts; });
  const auto place = [&](TensorId id, bool apart = false) {
    Tensor& tensor = s_.tensor(id);
    Expr& offset = apart ? tensor.again_offset : tensor.backward_offset;
    // All rounds of a rank write the gradient of gathered tokens, so none may use its place.
    const bool of_all_rounds = takes_rounds && tensor.brought;
    if (!scratch.holds(id, apart))
      offset = scratch.place(id, scratch_elements(id), apart, of_all_rounds);
    return offset + scratch_elements(id);
  };
  for (const BackwardCall& call : s_.backward) {
    const Operator& done = op(call.op);
    scratch.meet(done);
    const Tensor& read = s_.tensor(done.read);
    if (call.again) {
      const TensorId made = s_.tensor(done.written).rows_of;
      if (s_.tensor(made).brought) continue;
      const Expr end = place(made, s_.tensor(made).apart);
      if (call.for_weights) of_weights = of_weights ? max(*of_weights, end) : end;
      if (s_.tensor(done.read).remade) scratch.free(done.read, true);
    } else if (!call.for_weights) {
      if (!is_end(done.read) && read.gradient == Tensor::Gradient::scratch &&
          (read.gradient_of == done.read || s_.tensor(read.gradient_of).arrives))
        place(read.gradient_of);
      // All rounds of a rank write it.
      if (done.kind == OperatorKind::return_rows)
        for (const Operator& op : s_.operators)
          if (op.kind == OperatorKind::order_copies) place(op.read);
      if (done.second && s_.tensor(*done.second).gradient == Tensor::Gradient::scratch)
        place(*done.second);
      if (done.gates) place(*done.gates);
      const TensorId made = s_.tensor(done.written).rows_of;
      const bool stays = s_.tensor(made).arrives && made != done.written;
      if (!done.in_place() && done.kind != OperatorKind::all_gather && !stays) scratch.free(made);
      // All rounds of a rank read what arrived.
      if (!read.arrives) scratch.free(done.read, true);
      if (done.kind == OperatorKind::send_rows) scratch.free(done.written, true);
    }
  }
  for (Tensor& tensor : s_.tensors)
    if (!tensor.apart) tensor.again_offset = tensor.backward_offset;
  s_.product_grads_elements = products.value_or(0.0);
  // Gradients of fp32 lie behind them.
  const auto is_wide = [&](const Operator& op) {
    return op.gates && s_.tensor(*op.gates).element_bytes > s_.activation_bytes;
  };
  if (std::ranges::any_of(s_.operators, is_wide))
    s_.product_grads_elements = 2.0 * ceil(s_.product_grads_elements / 2.0);
  s_.backward_workspace_elements =
      s_.product_grads_elements + scratch.peak() + s_.dequantized_elements;
  s_.weights_workspace_elements = of_weights.value_or(0.0);
}

}  // namespace brume::model
