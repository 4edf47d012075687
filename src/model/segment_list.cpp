/// @file Operators that lists of several segments have.
#include "segment_list.hpp"

#include <cmath>
#include <numeric>

namespace brume::model {
namespace {

/// Experts that tokens of a pass choose: all in training, and where few tokens choose evenly
///
///   E (1 - (1 - k / E)^tokens)
double chosen_experts(const Config& m) {
  const double all = m.num_experts;
  if (!m.generates() || m.num_experts == 0) return all;
  return all * (1.0 - std::pow(1.0 - m.experts_per_token / all, m.computed_tokens()));
}

}  // namespace

void SegmentList::product(std::string name, OperatorKind kind, TensorId read, TensorId written,
                          const Product& product) {
  const bool grouped = kind == OperatorKind::experts;
  const Expr &m = grouped ? held_ : segment_.tensor(read).rows, &n = product.outputs,
             &k = product.inputs;
  const Expr flops = 2.0 * m * n * k;
  const Expr experts = chosen_experts(m_) / s_.ep;
  const Expr weights = grouped ? experts * k * n : k * n;
  const Expr bytes = 4.0 * (m * k + weights + m * n);
  const double trained = trained_.of(product.modules, product.part);
  segment_.operators.push_back({.name = std::move(name),
                                .kind = kind,
                                .read = read,
                                .written = written,
                                .modules = product.modules,
                                .part = product.part,
                                .dims = {m, n, k},
                                .forward_flops = flops,
                                .backward_flops = 2.0 * flops,
                                .forward_bytes = bytes,
                                .backward_bytes = 2.0 * bytes,
                                .trained = trained});
  Operator& op = segment_.operators.back();
  if (!grouped) return;
  op.dims.push_back(experts);
  op.routes = routes_;
}

void SegmentList::linear(const std::string& name, TensorId read, TensorId written,
                         const std::vector<Module>& modules, const Expr& outputs) {
  product(name, product_of_layer(), read, written,
          {modules, outputs, inputs(read, modules.front())});
  Operator& op = segment_.operators.back();
  op.quantized = std::ranges::any_of(
      modules, [&](Module one) { return std::ranges::count(quantized_, one) > 0; });
  if (!op.quantized) return;
  segment_.dequantized_elements = max(segment_.dequantized_elements, op.dims[1] * op.dims[2]);
}

/// An adapter a target: all first factors make a tensor of their columns side by side.
///
/// @param kind  of both products
void SegmentList::adapt(const std::string& name, TensorId read, TensorId written,
                        const std::vector<Target>& targets, OperatorKind kind) {
  Expr outputs = 0.0, elements = 0.0;  // of the second factors
  std::vector<Module> modules;
  std::vector<int> ranks;
  for (const auto& [module, columns] : targets)
    if (const Adapter::Target* target = m_.adapter.find(module)) {
      modules.push_back(module);
      ranks.push_back(target->rank);
      outputs += columns;
      elements += double(target->rank) * columns;
    }
  if (modules.empty()) return;
  const double width = std::accumulate(ranks.begin(), ranks.end(), 0);
  const bool alike = std::ranges::count(ranks, ranks.front()) == std::ssize(ranks);
  const bool grouped = kind == OperatorKind::experts;
  const TensorId low =
      grouped ? held(name + ".low", width) : as_many_rows(name + ".low", read, width);
  product(name + " lora a", kind, read, low,
          {modules, width, inputs(read, modules.front()), Part::lora_a});
  // Unlike ranks count by their mean, which gives the FLOPs of all.
  product(name + " lora b", kind, low, written,
          {modules, outputs, alike ? Expr(ranks.front()) : elements / outputs, Part::lora_b});
}

Operator& SegmentList::streaming(std::string name, OperatorKind kind, TensorId read,
                                 TensorId written, std::vector<Expr> dims, const Expr& elements) {
  segment_.operators.push_back({.name = std::move(name),
                                .kind = kind,
                                .read = read,
                                .written = written,
                                .dims = std::move(dims),
                                .forward_flops = 8.0 * elements,
                                .backward_flops = 16.0 * elements,
                                .forward_bytes = 4.0 * rule(kind).forward_accesses * elements,
                                .backward_bytes = 4.0 * rule(kind).backward_accesses * elements});
  return segment_.operators.back();
}

/// A bias, or the stream and biases to which products add.
void SegmentList::epilogue(std::string name, TensorId read, TensorId written,
                           std::vector<Module> modules) {
  const Expr elements = segment_.tensor(written).elements();
  Operator& op =
      streaming(std::move(name), OperatorKind::pointwise, read, written, {elements}, elements);
  op.trained = trained_.of(modules, Part::bias);
  op.modules = std::move(modules);
}

void SegmentList::norm(const std::string& name, Module module, TensorId read, TensorId written) {
  const bool layer = m_.norm() == NormKind::layer;
  const Expr rows = segment_.tensor(read).rows, columns = segment_.tensor(read).columns;
  Operator& op = streaming(name, layer ? OperatorKind::layer_norm : OperatorKind::rms_norm, read,
                           written, {rows, columns}, rows * columns);
  op.modules = {module};
  if (layer) op.statistics.push_back(statistic(name + ".mean", rows));
  op.statistics.push_back(statistic(name + ".rstd", rows));
}

void SegmentList::exchange(std::string name, OperatorKind kind, TensorId read, TensorId written,
                           AxisSet axes) {
  segment_.operators.push_back(
      {.name = std::move(name), .kind = kind, .read = read, .written = written, .axes = axes});
}

/// The normed input. If several ranks sum the output, each one norms its rows of it.
TensorId SegmentList::normed(const std::string& name, Module module) {
  if (dispatches_) {
    const TensorId own = of_own(name + ".out", s_.hidden);
    norm(name, module, TensorId::input, own);
    return own;
  }
  const TensorId out = activation(name + ".out", s_.hidden);
  const TensorId made = cuts_tokens_ ? activation(name + ".rows", s_.hidden) : out;
  if (cuts_tokens_) cut(made);
  norm(name, module, TensorId::input, made);
  if (cuts_tokens_) {
    exchange("gather " + name, OperatorKind::all_gather, made, out, sum_axes(segment_.kind));
    segment_.tensor(out).brought = true;
  }
  return out;
}

/// The same after tests' exchanges.
TensorId SegmentList::exchanged(const std::string& name, TensorId out) {
  if (!m_.exchanges_normed || dispatches_) return out;
  const TensorId there = activation(name + ".there", s_.hidden);
  const TensorId back = activation(name + ".back", s_.hidden);
  exchange("there", OperatorKind::all_to_all, out, there, Axis::tp);
  exchange("back", OperatorKind::all_to_all, there, back, Axis::tp);
  return back;
}

}  // namespace brume::model
