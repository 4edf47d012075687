#include "model/layer.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace brume::model {
namespace {

struct ModuleNames {
  Module module;
  const char *weight, *bias;
};
/// A row per module, ordered as they are.
constexpr ModuleNames modules[] = {
    {Module::token, "token", ""},
    {Module::position, "position", ""},
    {Module::norm1, "norm1.gain", "norm1.bias"},
    {Module::norm2, "norm2.gain", "norm2.bias"},
    {Module::post_norm1, "post_norm1.gain", "post_norm1.bias"},
    {Module::post_norm2, "post_norm2.gain", "post_norm2.bias"},
    {Module::q_norm, "attention.q_norm.gain", "attention.q_norm.bias"},
    {Module::k_norm, "attention.k_norm.gain", "attention.k_norm.bias"},
    {Module::sinks, "attention.sinks.bias", ""},
    {Module::qkv, "attention.qkv.weight", "attention.qkv.bias"},
    {Module::q, "attention.q.weight", "attention.q.bias"},
    {Module::kv, "attention.kv.weight", "attention.kv.bias"},
    {Module::k, "attention.k.weight", ""},
    {Module::v, "attention.v.weight", ""},
    {Module::q_down, "attention.q_down.weight", ""},
    {Module::q_down_norm, "attention.q_down_norm.gain", ""},
    {Module::kv_down, "attention.kv_down.weight", ""},
    {Module::kv_down_norm, "attention.kv_down_norm.gain", ""},
    {Module::kv_up, "attention.kv_up.weight", ""},
    {Module::k_turned, "attention.k_turned.weight", ""},
    {Module::attention_out, "attention.out.weight", "attention.out.bias"},
    {Module::mlp_in, "mlp.in.weight", "mlp.in.bias"},
    {Module::mlp_gate, "mlp.gate.weight", ""},
    {Module::mlp_up, "mlp.up.weight", ""},
    {Module::mlp_out, "mlp.out.weight", "mlp.out.bias"},
    {Module::router, "mlp.router.weight", "mlp.router.bias"},
    {Module::experts_in, "mlp.experts.in.weight", "mlp.experts.in.bias"},
    {Module::experts_out, "mlp.experts.out.weight", "mlp.experts.out.bias"},
    {Module::shared_in, "mlp.shared.in.weight", ""},
    {Module::shared_gate, "mlp.shared.gate.weight", ""},
    {Module::shared_up, "mlp.shared.up.weight", ""},
    {Module::shared_out, "mlp.shared.out.weight", ""},
    {Module::shared_expert_gate, "mlp.shared_expert_gate.weight", ""},
    {Module::head_norm, "norm.gain", "norm.bias"},
    {Module::head, "weight", ""},
};

static_assert(in_order(modules, &ModuleNames::module));

bool is_end(TensorId id) { return id == TensorId::input || id == TensorId::output; }

/// Scratch of one pass: tensors lie behind all that live with them.
class Scratch {
 public:
  explicit Scratch(const Segment& segment) : segment_(segment) {}

  bool holds(TensorId id, bool apart = false) const {
    return std::ranges::count(live_, Key{id, apart}, &Live::key) > 0;
  }
  /// Places a tensor, or its gradient, of `elements` of the scratch.
  ///
  /// @param apart  the tensor, if its gradient has another place
  /// @return its offset
  Expr place(TensorId id, const Expr& elements, bool apart = false) {
    std::optional<Expr> offset;
    for (const Live& one : live_) offset = offset ? max(*offset, one.end) : one.end;
    const int wide = segment_.tensor(id).element_bytes / segment_.activation_bytes;
    if (offset && wide > 1) offset = double(wide) * ceil(*offset / double(wide));
    live_.push_back({{id, apart}, offset ? *offset + elements : elements});
    peak_ = peak_ ? max(*peak_, live_.back().end) : live_.back().end;
    return offset.value_or(0.0);
  }
  void free(TensorId id, bool apart = false) {
    std::erase_if(live_, [&](const Live& one) { return one.key == Key{id, apart}; });
  }
  Expr peak() const { return peak_.value_or(0.0); }

 private:
  using Key = std::pair<TensorId, bool>;
  struct Live {
    Key key;
    Expr end;
  };
  const Segment& segment_;
  std::vector<Live> live_;
  std::optional<Expr> peak_;
};

class Derivation {
 public:
  explicit Derivation(Segment& segment) : s_(segment), done_(segment.tensors.size()) {}

  void describe();
  void save();
  void order_backward();
  void place_forward();
  void place_backward();

 private:
  bool of_layer() const {
    return s_.kind != SegmentKind::embedding && s_.kind != SegmentKind::head;
  }
  const Operator& op(int index) const { return s_.operators[index]; }
  const Operator& maker(TensorId id) const {
    return *std::ranges::find(s_.operators, id, &Operator::written);
  }
  bool is_cheap(TensorId id) const;
  bool in_forward_scratch(TensorId id) const;
  std::vector<TensorId> needed_by(const Operator& op) const;
  void mark_for_weights(TensorId id);
  std::vector<int> readers(TensorId id) const;
  Expr scratch_elements(TensorId id) const;
  void make_again(TensorId id, bool for_weights);
  void make_read_again(TensorId id, bool for_weights);
  void make_gradient(TensorId id);

  Segment& s_;
  std::vector<bool> done_;     ///< tensors whose gradients are made
  bool brings_again_ = false;  ///< a backward needs what the forward brought together
};

/// Whether a backward can make it again: by the kernel that first writes it.
bool Derivation::is_cheap(TensorId id) const {
  const auto maker = std::ranges::find(s_.operators, id, &Operator::written);
  return !is_end(id) && maker != s_.operators.end() && rule(maker->kind).cheap;
}

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

/// Tensors to keep for an operator's backward, or for making its output again.
std::vector<TensorId> Derivation::needed_by(const Operator& op) const {
  std::vector<TensorId> ids;
  for (const Need what : rule(op.kind).needed) {
    if (what == Need::statistics) ids.insert(ids.end(), op.statistics.begin(), op.statistics.end());
    if (what == Need::read && !is_end(op.read)) ids.push_back(op.read);
    if (what == Need::written) ids.push_back(op.written);
  }
  if (op.queries) ids.push_back(*op.queries);
  if (op.gates) ids.push_back(*op.gates);
  if (op.routes) ids.push_back(*op.routes);
  if (rule(op.kind).cheap && !rule(op.kind).needs(Need::read) && !is_end(op.read) &&
      !is_cheap(op.read))
    ids.push_back(op.read);
  return ids;
}

void Derivation::describe() {
  for (std::size_t i = 0; i < s_.tensors.size(); ++i)
    s_.tensors[i].gradient_of = s_.tensors[i].rows_of = TensorId(i);
  for (const Operator& op : s_.operators)
    if (op.kind == OperatorKind::reduce_scatter && op.written == TensorId::output)
      s_.terms = op.read;
  std::optional<TensorId> arrived;
  for (Operator& op : s_.operators) {
    const KernelRule& kernel = rule(op.kind);
    Tensor& tensor = s_.tensor(op.written);
    const bool to_output = op.written == TensorId::output || op.written == s_.terms;
    if (is_product(op.kind) && !to_output) tensor.gradient = Tensor::Gradient::products;
    if (op.in_place() && kernel.needs(Need::written)) tensor.gradient = Tensor::Gradient::in_place;
    // A norm turns the gradient of its output into that of a product's in its place.
    if (is_norm(op.kind) && !to_output && s_.tensor(op.read).gradient == Tensor::Gradient::products)
      tensor.gradient_of = op.read;
    if (op.kind == OperatorKind::reduce_scatter) {
      s_.tensor(op.read).summed = true;
      if (op.read == s_.terms)
        s_.tensor(op.read).gradient_of = TensorId::output;
      else
        tensor.gradient_of = op.read;  // rows of it
    }
    if (op.kind == OperatorKind::all_gather) {
      Tensor& rows = s_.tensor(op.read);
      require(rows.gradient == Tensor::Gradient::scratch, Failure::bug,
              "'{}' gathers what a product makes", op.name);
      rows.rows_of = rows.gradient_of = op.written;
    }
    // Rows go back in the place of those that came. A rank in rounds needs these, and their
    // gradients, to the last round.
    if (op.kind == OperatorKind::send_rows) {
      tensor.apart = s_.tensor(op.read).apart = true;
      arrived = op.written;
    }
    if (op.kind == OperatorKind::return_rows) {
      require(arrived.has_value(), Failure::bug, "'{}' returns rows that nobody sent", op.name);
      s_.tensor(op.read).rows_of = s_.tensor(op.read).gradient_of = *arrived;
    }
    require(!is_exchange(op.kind) || std::none_of(s_.operators.data(), &op,
                                                  [](const Operator& before) {
                                                    return before.written == TensorId::output &&
                                                           !is_epilogue(before.kind);
                                                  }),
            Failure::bug, "'{}' comes behind the output", op.name);
    op.output_only = to_output && (is_product(op.kind) || op.kind == OperatorKind::combine ||
                                   op.kind == OperatorKind::residual);
    op.again = of_layer() && is_cheap(op.written) && kernel.cheap && !tensor.remade;
  }
  for (auto op = s_.operators.rbegin(); op != s_.operators.rend(); ++op) {
    const bool leads_there = is_product(op->kind) || op->kind == OperatorKind::combine ||
                             op->kind == OperatorKind::return_rows;
    if (leads_there && op->written != TensorId::output && op->written != s_.terms)
      op->output_only = std::ranges::all_of(s_.operators, [&](const Operator& reader) {
        return reader.read != op->written || is_epilogue(reader.kind) ||
               (!is_product(reader.kind) && reader.output_only);
      });
  }
  s_.tensor(TensorId::output).summed = s_.tensor(TensorId::output).cut.empty();
}

void Derivation::save() {
  std::vector<Saved> cheap;
  for (const Operator& op : s_.operators)
    for (const TensorId id : needed_by(op)) {
      const auto there = [&](const std::vector<Saved>& list) {
        return std::ranges::count(list, id, &Saved::tensor) > 0;
      };
      if (there(s_.saved) || there(cheap) || (is_cheap(id) && !of_layer())) continue;
      if (s_.tensor(id).remade) continue;
      const Tensor& tensor = s_.tensor(id);
      (is_cheap(id) ? cheap : s_.saved)
          .push_back(
              {tensor.name, tensor.elements(), tensor.element_bytes, is_cheap(id), false, id});
    }
  s_.saved.insert(s_.saved.end(), cheap.begin(), cheap.end());
  for (const Operator& op : s_.operators) {
    if (!is_product(op.kind)) continue;
    mark_for_weights(op.read);
    if (op.routes) mark_for_weights(*op.routes);
    if (op.gates) mark_for_weights(*op.gates);
  }
}

/// Marks a factor of a product's weights, or all that makes it again.
void Derivation::mark_for_weights(TensorId id) {
  const auto saved = std::ranges::find(s_.saved, id, &Saved::tensor);
  if (saved != s_.saved.end()) saved->for_weights = true;
  if (!is_cheap(id) || s_.tensor(id).brought) return;
  for (const Operator& op : s_.operators) {
    if (op.written != id || op.in_place()) continue;
    for (const TensorId needed : needed_by(op)) mark_for_weights(needed);
    mark_for_weights(op.read);
  }
}

/// Operators that read a tensor and write another, in forward order.
std::vector<int> Derivation::readers(TensorId id) const {
  std::vector<int> indices;
  for (int i = 0; i < int(s_.operators.size()); ++i)
    if (op(i).read == id && !op(i).in_place() && !is_epilogue(op(i).kind) &&
        op(i).kind != OperatorKind::residual)
      indices.push_back(i);
  return indices;
}

/// Makes a tensor again where it is read, or with others before all else.
void Derivation::make_read_again(TensorId id, bool for_weights) {
  if (s_.tensor(id).brought || s_.tensor(id).arrives)
    brings_again_ = true;
  else
    make_again(id, for_weights);
}

/// Repeats the operators that write a cheap tensor, and those that make what they read.
void Derivation::make_again(TensorId id, bool for_weights) {
  for (int i = 0; i < int(s_.operators.size()); ++i) {
    if (op(i).written != id || is_epilogue(op(i).kind)) continue;
    if (!op(i).in_place() && is_cheap(op(i).read)) make_read_again(op(i).read, for_weights);
    s_.backward.push_back({i, true, for_weights});
  }
}

void Derivation::make_gradient(TensorId id) {
  if (id == TensorId::output || id == s_.terms || done_[std::size_t(id)]) return;
  done_[std::size_t(id)] = true;
  const std::vector<int> all = readers(id);
  if (id == TensorId::input) {
    for (const int reader : all) {
      require(!is_product(op(reader).kind), Failure::bug, "'{}' reads the stream without a norm",
              op(reader).name);
      make_gradient(op(reader).written);
      s_.backward.push_back({reader, false, false});
    }
    return;
  }
  for (const int reader : all) make_gradient(op(reader).written);
  // One call makes the gradients of gates and of the tensor whose rows they multiply.
  for (const Operator& reader : s_.operators)
    if (reader.gates == id) make_gradient(reader.read);
  const auto make_again_for = [&](bool products) {
    const auto needs = [&](int reader) {
      return is_product(op(reader).kind) == products && rule(op(reader).kind).needs(Need::read);
    };
    if (!is_cheap(id) || std::ranges::none_of(all, needs)) return;
    if (s_.tensor(id).brought) return make_read_again(id, products);
    // A router, which comes first, needs its input no more when it writes the gradient there.
    if (!products && s_.tensor(id).gradient_of == id &&
        op(all.front()).kind != OperatorKind::router) {
      require(maker(id).kind == OperatorKind::all_gather, Failure::bug,
              "'{}' and its gradient need two places", s_.tensor(id).name);
      s_.tensor(id).apart = true;
    }
    make_again(id, products);
  };
  make_again_for(true);
  for (const int reader : all)
    if (is_product(op(reader).kind)) s_.backward.push_back({reader, false, true});
  make_again_for(false);
  for (const int reader : all) s_.backward.push_back({reader, false, false});
  for (int i = int(s_.operators.size()) - 1; i >= 0; --i)
    if (op(i).read == id && op(i).in_place() && !is_epilogue(op(i).kind) &&
        s_.tensor(id).gradient != Tensor::Gradient::in_place)
      s_.backward.push_back({i, false, false});
}

void Derivation::order_backward() {
  for (const Operator& op : s_.operators)
    if (is_product(op.kind)) make_gradient(op.written);
  // All calls of experts are in one run.
  for (const Operator& op : s_.operators)
    if (op.kind == OperatorKind::send_rows) make_gradient(op.written);
  make_gradient(TensorId::input);
  if (!brings_again_) return;
  const std::vector<BackwardCall> rest = std::exchange(s_.backward, {});
  for (const TensorId id : s_.brought()) make_again(id, false);
  for (const Operator& op : s_.operators)
    if (op.kind == OperatorKind::send_rows) make_again(op.written, false);
  s_.backward.insert(s_.backward.end(), rest.begin(), rest.end());
}

void Derivation::place_forward() {
  Scratch scratch(s_);
  for (int i = 0; i < int(s_.operators.size()); ++i) {
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
  const auto place = [&](TensorId id, bool apart = false) {
    Tensor& tensor = s_.tensor(id);
    Expr& offset = apart ? tensor.again_offset : tensor.backward_offset;
    if (!scratch.holds(id, apart)) offset = scratch.place(id, scratch_elements(id), apart);
    return offset + scratch_elements(id);
  };
  for (const BackwardCall& call : s_.backward) {
    const Operator& done = op(call.op);
    const Tensor& read = s_.tensor(done.read);
    if (call.again) {
      const TensorId made = s_.tensor(done.written).rows_of;
      if (s_.tensor(made).brought) continue;
      const Expr end = place(made, s_.tensor(made).apart);
      if (call.for_weights) of_weights = of_weights ? max(*of_weights, end) : end;
      if (done.kind == OperatorKind::send_rows) scratch.free(done.read, true);
    } else if (!call.for_weights) {
      if (!is_end(done.read) && read.gradient == Tensor::Gradient::scratch &&
          (read.gradient_of == done.read || s_.tensor(read.gradient_of).arrives))
        place(read.gradient_of);
      // All rounds of a rank write it.
      if (done.kind == OperatorKind::return_rows)
        for (const Operator& op : s_.operators)
          if (op.kind == OperatorKind::order_copies) place(op.read);
      if (done.queries && s_.tensor(*done.queries).gradient == Tensor::Gradient::scratch)
        place(*done.queries);
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

}  // namespace

std::string name(ParameterId id) {
  const ModuleNames& names = modules[std::size_t(id.module)];
  switch (id.part) {
    case Part::weight: return names.weight;
    case Part::bias: return names.bias;
    case Part::correction: return module_name(id.module) + ".correction";
    case Part::lora_a: return module_name(id.module) + ".lora_a";
    case Part::lora_b: return module_name(id.module) + ".lora_b";
  }
  return "";
}

AxisSet sum_axes(SegmentKind kind) {
  return kind == SegmentKind::experts ? expert_axes : AxisSet(Axis::tp);
}

Expr sum_ranks(SegmentKind kind) {
  const Expr tp = Expr::variable("tp");
  return kind == SegmentKind::experts ? max(tp, Expr::variable("ep")) : tp;
}

std::string module_name(Module module) {
  switch (module) {
    case Module::token:
    case Module::position: return "embedding." + name({module});
    case Module::head_norm: return "head.norm";
    case Module::head: return "head";
    default: break;
  }
  const std::string weight = name({module});
  return weight.substr(0, weight.rfind('.'));
}

namespace {

/// @param op_at  operators in the order of their calls
template <class OpAt>
std::vector<Run> runs(int count, const Split& split, const OpAt& op_at) {
  std::vector<Run> runs{{0, 0}};
  for (int i = 0; i < count; ++i)
    if (const Operator& op = op_at(i); is_exchange(op.kind) && split.size(op.axes) > 1) {
      runs.back().end = i;
      runs.push_back({i + 1, i + 1});
    }
  runs.back().end = count;
  return runs;
}

}  // namespace

std::vector<Run> forward_runs(const Segment& segment, const Split& split) {
  return runs(int(segment.operators.size()), split,
              [&](int i) -> const Operator& { return segment.operators[i]; });
}

std::vector<Run> backward_runs(const Segment& segment, const Split& split) {
  return runs(int(segment.backward.size()), split,
              [&](int i) -> const Operator& { return segment.operators[segment.backward[i].op]; });
}

std::vector<TensorId> Segment::brought() const {
  std::vector<TensorId> ids;
  for (const Operator& op : operators)
    if (op.kind == OperatorKind::all_gather && tensor(op.written).brought)
      ids.push_back(op.written);
  return ids;
}

void derive(Segment& segment) {
  Derivation derivation(segment);
  derivation.describe();
  derivation.save();
  derivation.order_backward();
  derivation.place_forward();
  derivation.place_backward();
}

}  // namespace brume::model
