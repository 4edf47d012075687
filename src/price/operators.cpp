/// @file Seconds of what a rank computes: segments and the optimizer step; the table of operators.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/text.hpp"
#include "operator_time.hpp"
#include "plan/rules.hpp"
#include "price/price.hpp"

namespace brume::price {
namespace {

/// What of an operator's backward makes its output again.
double again_s(const model::Config& model, const hardware::Profile& profile,
               const model::Operator& op, const Values& values) {
  double bytes = model::activation_bytes(model.precision);
  for (const model::Expr& dim : op.dims) bytes *= dim.evaluate(values);
  const double forward_s = operator_time(model, profile, op, false, values).seconds;
  return std::max(forward_s, copy_s(profile, bytes));
}

double operator_s(const model::Config& model, const hardware::Profile& profile,
                  const model::Operator& op, Pass pass, const Values& values) {
  if (model::is_exchange(op.kind)) return 0.0;  // a collective has the price
  const bool forward = pass == Pass::forward || pass == Pass::recompute;
  if (!forward && op.kind == model::OperatorKind::residual) return 0.0;
  const double whole_s = operator_time(model, profile, op, !forward, values).seconds;
  const double dequantize_s = dequantize_time(model, profile, op, values).seconds;
  if (forward) return dequantize_s + whole_s;
  const double weights_share = model::rule(op.kind).weights_share;
  const double weights_s = op.trained * weights_share * whole_s;
  const double remade_s =
      op.remade ? dequantize_s + operator_time(model, profile, op, false, values).seconds : 0.0;
  const double all_s = remade_s + dequantize_s + (1.0 - weights_share) * whole_s + weights_s;
  if (pass == Pass::backward) return all_s;
  const double cheap_s = op.again ? std::min(again_s(model, profile, op, values), all_s) : 0.0;
  switch (pass) {
    case Pass::stored_backward: return all_s - cheap_s;
    case Pass::backward_input: return all_s - cheap_s - weights_s;
    case Pass::backward_weights: return cheap_s + weights_s;
    default: return weights_s;
  }
}

/// Whether a backward makes an operator's output again before the segment computes.
bool is_brought(const model::Segment& segment, const model::Operator& op) {
  return segment.tensor(segment.tensor(op.written).rows_of).brought && model::is_norm(op.kind);
}

/// Whether an operator belongs to a run of its segment's pass: its backward to the run of the first
/// call that reads the gradient of its output.
bool in_run(const model::Segment& segment, Pass pass, const model::Run& run, int op) {
  if (pass == Pass::forward || pass == Pass::recompute) return run.first <= op && op < run.end;
  const auto& operators = segment.operators;
  const auto call = std::ranges::find_if(segment.backward, [&](const model::BackwardCall& one) {
    return !one.again && operators[one.op].written == operators[op].written;
  });
  const auto index = int(call - segment.backward.begin());
  return run.first <= index && index < run.end;
}

/// Whether a run of a backward makes an operator's output again.
bool makes_again(const model::Segment& segment, const model::Run& run, int op) {
  return std::any_of(segment.backward.begin() + run.first, segment.backward.begin() + run.end,
                     [&](const model::BackwardCall& call) { return call.again && call.op == op; });
}

}  // namespace

double segment_s(const model::Config& model, const hardware::Profile& profile,
                 model::SegmentKind kind, Pass pass, const model::Split& split, int run) {
  const model::Segment segment = model::segment(model, kind, split.division());
  const Values values = split.values();
  const bool forward = pass == Pass::forward || pass == Pass::recompute;
  const std::vector<model::Run> runs =
      forward ? model::forward_runs(segment, split) : model::backward_runs(segment, split);
  const bool all = run == all_runs || runs.size() == 1;
  const bool of_weights = pass == Pass::backward_weights || pass == Pass::stored_backward_weights;
  // Where a layer's last segment is recomputed nobody reads its output.
  const bool no_output =
      pass == Pass::recompute && (!model::attends(kind) || kind == model::SegmentKind::parallel);
  double sum_s = 0.0;
  for (int i = 0; i < int(segment.operators.size()); ++i) {
    const model::Operator& op = segment.operators[i];
    if (no_output && op.output_only) continue;
    if (!forward && is_brought(segment, op)) {
      if (of_weights) continue;
      const model::Run now =
          all ? model::Run{0, int(segment.backward.size())} : runs[std::size_t(run)];
      if (pass != Pass::stored_backward && makes_again(segment, now, i))
        sum_s += again_s(model, profile, op, values);
      if (in_run(segment, pass, now, i))
        sum_s += operator_s(model, profile, op, Pass::stored_backward, values);
      continue;
    }
    if (!all && !in_run(segment, pass, runs.at(std::size_t(run)), i)) continue;
    sum_s += operator_s(model, profile, op, pass, values);
  }
  return sum_s * (1.0 + hardware::wait_share(profile, split.tp));
}

double cached_attention_s(const model::Config& model, const hardware::Profile& profile,
                          model::SegmentKind kind, const model::Split& split) {
  const model::Segment segment = model::segment(model, kind);
  const auto op = std::ranges::find(segment.operators, model::OperatorKind::cached_attention,
                                    &model::Operator::kind);
  return operator_s(model, profile, *op, Pass::forward, split.values()) *
         (1.0 + hardware::wait_share(profile, split.tp));
}

double optimizer_s(const model::Config& model, const hardware::Profile& profile, double elements,
                   model::UpdateUnit unit) {
  return elements > 0.0 ? update_time(model, profile, std::llround(elements), unit).seconds : 0.0;
}

namespace {

double orthogonalize_s(const model::Config& model, const hardware::Profile& profile,
                       std::int64_t rows, std::int64_t columns) {
  const std::int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  const double bytes = model::weight_bytes(model.precision);
  const auto product_s = [&](std::int64_t tokens, std::int64_t outputs, std::int64_t inputs) {
    model::Operator op{
        .name = "product", .kind = model::OperatorKind::matmul, .read = {}, .written = {}};
    op.dims = {double(tokens), double(outputs), double(inputs)};
    op.forward_flops = 2.0 * double(tokens) * double(outputs) * double(inputs);
    op.forward_bytes =
        sizeof(float) * double(tokens * inputs + outputs * inputs + tokens * outputs);
    return operator_time(model, profile, op, false, {}).seconds;
  };
  const double products_s = product_s(m, m, n) + product_s(m, m, m) + product_s(m, n, m);
  const double passes_s =
      accumulate_s(profile, bytes * double(m * m)) + accumulate_s(profile, bytes * double(m * n));
  return model::orthogonalize_iterations * (products_s + passes_s) +
         copy_s(profile, (bytes + sizeof(float)) / 2.0 * double(m * n));
}

}  // namespace

double matrix_step_s(const model::Config& model, const hardware::Profile& profile,
                     const model::Block& block, const model::Split& split, int shards) {
  const model::Layout layout = model::layout(block, split.tp, 0, shards, {split.ep});
  const std::int64_t shard = layout.trained_elements / shards;
  std::vector<double> all_s(std::size_t(shards), 0.0);  // by shard
  for (const model::Piece& piece : layout.pieces) {
    const model::Parameter& one = block.parameters[std::size_t(piece.parameter)];
    if (one.frozen || one.unit == model::UpdateUnit::element || piece.elements == 0) continue;
    const model::Matrices whole = model::matrices(one.shape), here = model::matrices(piece.shape);
    const double each_s = orthogonalize_s(model, profile, whole.rows, whole.columns);
    for (std::int64_t i = 0; i < here.count; ++i) {
      const std::int64_t first = piece.first + i * here.elements(), end = first + here.elements();
      for (std::int64_t rank = first / shard; rank <= (end - 1) / shard; ++rank)
        all_s[std::size_t(rank)] += each_s;
    }
    // The step along them reads the direction, and reads and writes the weights.
    const double moved_bytes = 3.0 * sizeof(float) + model::weight_bytes(model.precision);
    const std::int64_t end = piece.first + piece.elements;
    for (std::int64_t rank = piece.first / shard; rank <= (end - 1) / shard; ++rank)
      all_s[std::size_t(rank)] += copy_s(profile, moved_bytes / 2.0 *
                                                      double(std::min(end, (rank + 1) * shard) -
                                                             std::max(piece.first, rank * shard)));
  }
  return std::ranges::max(all_s);
}

bool host_is_apart(const hardware::Profile& profile) { return profile.host_updates_per_s > 0.0; }

double host_update_s(const model::Config& model, const hardware::Profile& profile,
                     double elements) {
  if (host_is_apart(profile)) return elements / profile.host_updates_per_s;
  const double bytes = model::lean_optimizer_bytes(model) * elements;
  return optimizer_s(model, profile, elements) + copy_in_s(profile, bytes) +
         copy_out_s(profile, bytes);
}

std::vector<OperatorPrice> operator_prices(const plan::Plan& plan, const model::Config& model,
                                           const hardware::Machine& machine) {
  std::vector<OperatorPrice> prices;
  std::set<std::pair<std::string, model::Split>> met;
  for (const plan::Stage& s : plan.stages) {
    if (!met.emplace(s.group, s.split()).second) continue;
    const hardware::Profile& profile = machine.profile(s.group);
    const std::string on = s.group.empty() ? "" : s.group + ": ";
    Values values = s.split().values();
    values.emplace("dp", s.dp);
    for (const model::SegmentKind kind : model::segment_kinds(model))
      for (const model::Operator& op :
           model::segment(model, kind, s.split().division()).operators) {
        if (model::is_exchange(op.kind)) continue;
        if (op.quantized) {
          const hardware::Time time = dequantize_time(model, profile, op, values);
          prices.push_back({on + model::name(kind) + (" weights of " + op.name),
                            model::dequantize_kind(model),
                            {std::llround((op.dims[1] * op.dims[2]).evaluate(values))},
                            time,
                            time});
        }
        prices.push_back({on + model::name(kind) + (" " + op.name), model::name(op.kind),
                          dims_of(op, values), operator_time(model, profile, op, false, values),
                          operator_time(model, profile, op, true, values)});
      }
    const std::vector<model::Block> blocks = model::blocks(model, s.split().division());
    const model::Block& block = model::most_trained_layer(model, blocks);
    const model::LayoutElements layer = model::layout_elements(model, block);
    const plan::Elements<double> elements{layer.trained.evaluate(values),
                                          layer.frozen.evaluate(values)};
    const std::int64_t shard = std::llround(
        plan::kept_state(plan::state_knobs(s), elements, plan::alignments(block)).optimizer);
    const hardware::Time update = update_time(model, profile, shard, model.optimizer->unit());
    prices.push_back({on + "update of a layer",
                      kind_of(*model.optimizer, model.moments),
                      {shard},
                      update,
                      {0.0, update.source}});
  }
  return prices;
}

std::string price_table(const std::vector<OperatorPrice>& prices) {
  std::map<hardware::Source, int> count;
  Table table({"part", "kind", "sizes", "forward", "from", "backward", "from"});
  for (const OperatorPrice& p : prices) {
    ++count[p.forward.source];
    table.add({p.part, p.kind, fmt::format("{}", fmt::join(p.dims, " x ")),
               format_seconds(p.forward.seconds), hardware::name(p.forward.source),
               format_seconds(p.backward.seconds), hardware::name(p.backward.source)});
  }
  using enum hardware::Source;
  return fmt::format("operator times: {} measured, {} interpolated, {} by roofline\n{}",
                     count[measured], count[interpolated], count[roofline], table.text());
}

}  // namespace brume::price
