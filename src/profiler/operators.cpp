#include "operators.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "passes.hpp"

namespace brume::profiler {
namespace {

using model::OperatorKind;
using model::SegmentKind;

/// The operator's dims at (b, tp); nothing when tp does not divide them.
std::optional<std::vector<std::int64_t>> whole_dims(
    const model::Operator& op, const std::map<std::string, double, std::less<>>& values) {
  std::vector<std::int64_t> dims;
  for (const model::Expr& dim : op.dims) {
    const double size = dim.evaluate(values);
    if (size < 1.0 || size != std::round(size)) return std::nullopt;
    dims.push_back(std::int64_t(size));
  }
  return dims;
}

constexpr std::int64_t most_turns = 32;

/// Calls the passes' forward, or backward, in turn.
Work in_turn(const std::vector<Passes>& turns, Work Passes::*pass) {
  if (!(turns[0].*pass)) return {};
  return [&turns, pass, next = std::size_t{0}]() mutable {
    (turns[next].*pass)();
    next = (next + 1) % turns.size();
  };
}

/// Measures operators, each (kind, dims) once.
class OperatorBench {
 public:
  OperatorBench(Bench& bench, const model::Config& model) : bench_(bench), model_(model) {}

  void measure(const Item& item);
  std::vector<hardware::OperatorRow> rows() { return std::move(rows_); }

 private:
  Bench& bench_;
  const model::Config& model_;
  std::vector<Operands> operands_{std::size_t(most_turns)};  ///< of each turn
  std::set<std::pair<OperatorKind, std::vector<std::int64_t>>> met_;
  std::vector<hardware::OperatorRow> rows_;
};

void OperatorBench::measure(const Item& item) {
  if (!met_.emplace(item.kind, item.dims).second) return;
  const std::string name =
      fmt::format("{} {}", model::name(item.kind), fmt::join(item.dims, " x "));
  std::vector<Passes> turns;
  const auto prepare = [&] {
    std::int64_t bytes = 0;
    while (bytes < turn_bytes() && std::ssize(turns) < most_turns) {
      Operands& operands = operands_[turns.size()];
      turns.push_back(make_passes(item, model_, operands));
      bytes += operands.bytes();
    }
  };
  if (!bench_.prepared(name, prepare)) return;
  const auto forward_s = bench_.seconds(name, in_turn(turns, &Passes::forward));
  const Work backward = in_turn(turns, &Passes::backward);
  const auto backward_s =
      backward ? bench_.seconds(name + " backward", backward) : std::optional(0.0);
  if (forward_s && backward_s)
    rows_.push_back({model::name(item.kind), item.dims, *forward_s, *backward_s});
}

void measure_segments(OperatorBench& operators, const model::Config& model, int microbatch, int tp,
                      std::int64_t memory_bytes) {
  const std::map<std::string, double, std::less<>> values{{"b", microbatch}, {"tp", tp}};
  for (SegmentKind kind : model::segment_kinds(model))
    for (const model::Operator& op : model::segment(model, kind).operators) {
      const double fp32_share = model::activation_bytes(model.precision) / double(sizeof(float));
      if (fp32_share * op.forward_bytes.evaluate(values) > double(memory_bytes)) continue;
      if (const auto dims = whole_dims(op, values))
        operators.measure({op.kind, *dims, std::int64_t(microbatch) * model.seq_len});
    }
}

}  // namespace

std::int64_t largest_block_elements(const model::Config& model) {
  std::int64_t largest = 0;
  for (const model::Block& block : model::blocks(model))
    largest = std::max(largest, model::layout(block, 1, 0, 1).elements);
  return largest;
}

std::vector<hardware::OperatorRow> measure_operators(Bench& bench, const model::Config& model,
                                                     const Shapes& shapes,
                                                     std::int64_t memory_bytes) {
  OperatorBench operators(bench, model);
  for (int microbatch : shapes.microbatches)
    for (int tp : shapes.tp) measure_segments(operators, model, microbatch, tp, memory_bytes);
  // Weight, gradient, two moments; a master weight takes the place of the fp32 weight.
  const std::int64_t state_bytes = model::weight_bytes(model.precision) + model::grad_bytes +
                                   model::optimizer_bytes(model.precision);
  const std::int64_t largest = std::min(largest_block_elements(model), memory_bytes / state_bytes);
  for (std::int64_t part : {64, 8, 1})
    operators.measure({OperatorKind::adamw, {round_up(ceil_div(largest, part), 16)}, 1});
  return operators.rows();
}

void measure_rates(Bench& bench, const model::Config& model, hardware::Profile& profile) {
  Operands operands;
  Passes work;
  const std::int64_t side = 768, elements = std::int64_t{4} << 20;
  const Item product{OperatorKind::matmul, {side, side, side}, side};
  if (bench.prepared("matrix product", [&] { work = make_passes(product, model, operands); }))
    if (const auto time_s = bench.seconds("matrix product", work.forward))
      profile.flops_per_s = 2.0 * double(side * side * side) / *time_s;
  if (bench.prepared("memory", [&] { work.forward = make_sum(elements, operands); }))
    if (const auto time_s = bench.seconds("memory", work.forward))
      profile.bytes_per_s = 3.0 * sizeof(float) * double(elements) / *time_s;
}

}  // namespace brume::profiler
