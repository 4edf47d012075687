/// @file Seconds of what a rank computes: segments and the optimizer step; the table of operators.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/text.hpp"
#include "plan/rules.hpp"
#include "price/price.hpp"

namespace brume::price {
namespace {

using Values = std::map<std::string, double, std::less<>>;

std::vector<std::int64_t> dims_of(const model::Operator& op, const Values& values) {
  std::vector<std::int64_t> dims;
  for (const model::Expr& dim : op.dims) dims.push_back(std::llround(dim.evaluate(values)));
  return dims;
}

/// A product whose factors are rounded to 8 bits: by its own rows, or as one of bf16 at the speed
/// of 8 bits, and before it passes that look for each factor's largest magnitude (2 bytes an
/// element) and round it (3 bytes).
hardware::Time float8_time(const hardware::Profile& profile, const std::vector<std::int64_t>& dims,
                           bool backward, double flops, double bytes) {
  using enum model::OperatorKind;
  if (std::ranges::any_of(profile.operators, [](const hardware::OperatorRow& row) {
        return row.kind == model::name(matmul_fp8);
      }))
    return hardware::operator_time(profile, model::name(matmul_fp8), dims, backward, flops, bytes);
  const double faster =
      profile.fp8_flops_per_s > 0.0 ? profile.fp8_flops_per_s / profile.flops_per_s : 1.0;
  hardware::Time time =
      hardware::operator_time(profile, model::name(matmul), dims, backward, flops, bytes, faster);
  if (profile.bytes_per_s <= 0.0) return time;
  // A backward reads both factors of the forward once more, and the output's gradient twice.
  const double reached = hardware::pass_efficiency(profile, 1.0);
  const double m = double(dims[0]), n = double(dims[1]), k = double(dims[2]);
  const double rounded = m * k + n * k + (backward ? 2.0 * m * n : 0.0);
  time.seconds += 5.0 * rounded / (profile.bytes_per_s * reached);
  return time;
}

bool knows(const hardware::Profile& profile, std::string_view kind) {
  const auto by_kind = [&](const auto& known) { return known.kind == kind; };
  return std::ranges::any_of(profile.operators, by_kind) ||
         std::ranges::any_of(profile.efficiencies, by_kind);
}

/// The products of experts with equally many rows: by their own rows, or as so many matmuls.
hardware::Time experts_time(const hardware::Profile& profile, const std::vector<std::int64_t>& dims,
                            bool backward, double flops, double bytes) {
  using enum model::OperatorKind;
  if (knows(profile, model::name(experts)))
    return hardware::operator_time(profile, model::name(experts), dims, backward, flops, bytes);
  const std::int64_t count = std::max<std::int64_t>(dims[3], 1);
  hardware::Time time = hardware::operator_time(
      profile, model::name(matmul), std::array{ceil_div(dims[0], count), dims[1], dims[2]},
      backward, flops / double(count), bytes / double(count));
  time.seconds *= double(count);
  return time;
}

/// FLOPs of a measured attention's forward: 2 b T^2 heads D of {b, T, heads, D}.
double attention_flops(const hardware::OperatorRow& row) {
  const auto n = double(row.dims[0]), seen = double(row.dims[1]),
             columns = double(row.dims[2] * row.dims[3]);
  if (row.kind == model::name(model::OperatorKind::cached_attention))
    return model::cached_attention_flops(n, seen, columns);
  return 2.0 * n * seen * seen * columns;
}

/// The row of those that `is_one` accepts whose queries see about as many keys; null: there is
/// none.
template <class IsOne>
const hardware::OperatorRow* nearest_attention(const hardware::Profile& profile, std::int64_t seen,
                                               const IsOne& is_one) {
  const hardware::OperatorRow* nearest = nullptr;
  const auto far = [&](const hardware::OperatorRow& row) {
    return std::abs(std::log(double(row.dims[1]) / double(seen)));
  };
  for (const hardware::OperatorRow& row : profile.operators)
    if (row.dims.size() == 4 && row.forward_s > 0.0 && is_one(row) &&
        (nearest == nullptr || far(row) < far(*nearest)))
      nearest = &row;
  return nearest;
}

/// Attention to kept keys is bound by FLOPs or by the keys and values that it reads.
///
///   max(FLOPs / FLOPs per second of prompts, bytes / bytes per second of single tokens)
///
/// A profile without rows of its own has the FLOPs of attention that sees as many keys, and the
/// bytes of its memory.
hardware::Time cached_attention_time(const model::Config& model, const hardware::Profile& profile,
                                     const std::vector<std::int64_t>& dims, double flops,
                                     double bytes) {
  using enum model::OperatorKind;
  const auto is_prompt = [](const hardware::OperatorRow& row) {
    return row.kind == model::name(cached_attention) && model::is_prompt(row.dims);
  };
  const auto is_token = [](const hardware::OperatorRow& row) {
    return row.kind == model::name(cached_attention) && !model::is_prompt(row.dims);
  };
  const auto is_attention = [](const hardware::OperatorRow& row) {
    return row.kind == model::name(attention);
  };
  const hardware::OperatorRow* computes = nearest_attention(profile, dims[1], is_prompt);
  if (computes == nullptr) computes = nearest_attention(profile, dims[1], is_attention);
  if (computes == nullptr)
    return hardware::operator_time(
        profile, model::name(knows(profile, model::name(attention)) ? attention : cached_attention),
        dims, false, flops, bytes);
  double bytes_per_s = profile.bytes_per_s;
  if (const hardware::OperatorRow* const reads = nearest_attention(profile, dims[1], is_token)) {
    // Each of its tokens reads the keys and values of a sequence.
    const double share = model.keeps_latents() ? 1.0 / double(dims[2])
                                               : double(model.kv_heads()) / double(model.num_heads);
    const double elements = 2.0 * double(reads->dims[0] * reads->dims[2] * reads->dims[3]) *
                            (share * double(reads->dims[1]) + 1.0);
    bytes_per_s = model::activation_bytes(model.precision) * elements / reads->forward_s;
  }
  return {std::max(flops * computes->forward_s / attention_flops(*computes), bytes / bytes_per_s),
          hardware::Source::roofline};
}

hardware::Time operator_time(const model::Config& model, const hardware::Profile& profile,
                             const model::Operator& op, bool backward, const Values& values) {
  const model::Expr& flops = backward ? op.backward_flops : op.forward_flops;
  const bool slow = model.precision == model::Precision::fp32 && profile.fp32_flops_per_s > 0.0;
  const double weight = slow ? profile.flops_per_s / profile.fp32_flops_per_s : 1.0;
  const model::Expr& fp32_bytes = backward ? op.backward_bytes : op.forward_bytes;
  const double bytes =
      fp32_bytes.evaluate(values) * model::activation_bytes(model.precision) / sizeof(float);
  const double all_flops = weight * flops.evaluate(values);
  const std::vector<std::int64_t> dims = dims_of(op, values);
  hardware::Time time;
  switch (op.kind) {
    case model::OperatorKind::matmul_fp8:
      time = float8_time(profile, dims, backward, all_flops, bytes);
      break;
    case model::OperatorKind::cached_attention:
      time = cached_attention_time(model, profile, dims, all_flops, bytes);
      break;
    case model::OperatorKind::absorb_queries:
    case model::OperatorKind::expand_values:
      time = knows(profile, model::name(op.kind))
                 ? hardware::operator_time(profile, model::name(op.kind), dims, backward, all_flops,
                                           bytes)
                 : experts_time(profile, dims, backward, all_flops, bytes);
      break;
    case model::OperatorKind::experts:
      time = experts_time(profile, dims, backward, all_flops, bytes);
      break;
    default:
      time =
          hardware::operator_time(profile, model::name(op.kind), dims, backward, all_flops, bytes);
  }
  time.seconds *= op.share;
  return time;
}

/// The time in which a product's factor is made of blocks: by its own rows, or as a copy. Products
/// of few rows on hosts do without, which this does not count: generation is faster there.
hardware::Time dequantize_time(const model::Config& model, const hardware::Profile& profile,
                               const model::Operator& op, const Values& values) {
  if (!op.quantized) return {};
  const std::int64_t elements =
      std::llround(op.dims[1].evaluate(values) * op.dims[2].evaluate(values));
  const double bytes =
      double(elements) * (model::weight_bytes(model.precision) +
                          double(block_bytes(model.quantization)) / quantized_block);
  const std::string kind = model::dequantize_kind(model);
  if (knows(profile, kind))
    return hardware::operator_time(profile, kind, {&elements, 1}, false, 0.0, bytes);
  return {copy_s(profile, bytes / 2.0), hardware::Source::roofline};
}

/// Kind of an update by this row in profiles; none has rows of steps of whole matrices.
std::string kind_of(const model::OptimizerRow& row, Moments moments) {
  return row.of_elements ? row.name : model::update_kind(row, moments);
}

/// The time of an update by the model's optimizer. A profile that knows AdamW alone gives its time
/// in proportion to the bytes that are moved.
hardware::Time update_time(const model::Config& model, const hardware::Profile& profile,
                           std::int64_t elements, model::UpdateUnit unit) {
  const bool matrices = unit == model::UpdateUnit::matrix;
  const auto time_of = [&](const model::OptimizerRow& row, Moments moments) {
    return hardware::operator_time(profile, kind_of(row, moments), {&elements, 1}, false,
                                   row.flops * double(elements),
                                   row.moved_bytes(moments) * double(elements));
  };
  const model::OptimizerRow& row = matrices ? *model.optimizer : model.optimizer->elementwise();
  if (knows(profile, kind_of(row, model.moments)) || !knows(profile, model::adamw.name))
    return time_of(row, model.moments);
  hardware::Time time = time_of(model::adamw, Moments::fp32);
  time.seconds *= row.moved_bytes(model.moments) / model::adamw.moved_bytes();
  return time;
}

}  // namespace

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
  const double all_s = dequantize_s + (1.0 - weights_share) * whole_s + weights_s;
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
    const std::vector<model::Block> blocks = model::blocks(model);
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
