/// @file Tensors that a segment saves, and the calls of its backward.
#include "derivation.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace brume::model {

/// Whether a backward can make it again: by the kernel that first writes it.
bool Derivation::is_cheap(TensorId id) const {
  if (s_.tensor(id).remade || s_.tensor(id).stays) return s_.tensor(id).remade;
  const auto maker = std::ranges::find(s_.operators, id, &Operator::written);
  return !is_end(id) && maker != s_.operators.end() && rule(maker->kind).cheap;
}

/// Tensors to keep for an operator's backward, or for making its output again.
std::vector<TensorId> Derivation::needed_by(const Operator& op) const {
  std::vector<TensorId> ids;
  for (const Need what : rule(op.kind).needed) {
    if (what == Need::statistics) ids.insert(ids.end(), op.statistics.begin(), op.statistics.end());
    if (what == Need::read && !is_end(op.read)) ids.push_back(op.read);
    if (what == Need::written) ids.push_back(op.written);
  }
  if (op.second) ids.push_back(*op.second);
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
    op.remade = tensor.remade && !kernel.cheap;
    // Its gradient stays for the weights part, itself only until it is read.
    if (tensor.remade && tensor.gradient == Tensor::Gradient::products) tensor.apart = true;
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
  // One call makes the gradients of both tensors that an operator reads.
  for (const Operator& reader : s_.operators)
    if (reader.gates == id || reader.second == id) make_gradient(reader.read);
  const auto make_again_for = [&](bool products) {
    const auto needs = [&](int reader) {
      return is_product(op(reader).kind) == products && rule(op(reader).kind).needs(Need::read);
    };
    if (!is_cheap(id) || std::ranges::none_of(all, needs)) return;
    if (s_.tensor(id).brought) return make_read_again(id, products);
    // A router, which comes first, needs its input no more when it writes the gradient there.
    if (!products && s_.tensor(id).gradient_of == id &&
        op(all.front()).kind != OperatorKind::router) {
      require(maker(id).kind == OperatorKind::all_gather || s_.tensor(id).remade, Failure::bug,
              "'{}' and its gradient need two places", s_.tensor(id).name);
      s_.tensor(id).apart = true;
    }
    make_again(id, products);
  };
  make_again_for(true);
  for (const int reader : all)
    if (is_product(op(reader).kind)) s_.backward.push_back({reader, false, true});
  make_again_for(false);
  // Rows that come back are added last: the rest is made while they are on their way.
  std::vector<int> in_turn = all;
  std::ranges::stable_partition(in_turn,
                                [&](int reader) { return !s_.tensor(op(reader).written).sent; });
  for (const int reader : in_turn) s_.backward.push_back({reader, false, false});
  for (int i = int(s_.operators.size()) - 1; i >= 0; --i)
    if (op(i).read == id && op(i).in_place() && !is_epilogue(op(i).kind) &&
        s_.tensor(id).gradient != Tensor::Gradient::in_place)
      s_.backward.push_back({i, false, false});
}

void Derivation::order_backward() {
  // Rows leave first: products that do not need them follow.
  for (const Operator& op : s_.operators)
    if (op.kind == OperatorKind::return_rows) make_gradient(op.read);
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

void derive(Segment& segment) {
  Derivation derivation(segment);
  derivation.describe();
  derivation.save();
  derivation.order_backward();
  derivation.place_forward();
  derivation.place_backward();
}

}  // namespace brume::model
