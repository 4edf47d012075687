#include "operators.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"

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

/// Measures one operator after another.
class OperatorBench {
 public:
  OperatorBench(Bench& bench, const model::Config& model) : bench_(bench), model_(model) {}

  void measure(const Item& item);
  std::vector<hardware::OperatorRow> rows() { return std::move(rows_); }

 private:
  Bench& bench_;
  const model::Config& model_;
  std::vector<Operands> operands_{std::size_t(most_turns)};  ///< of each turn
  std::vector<hardware::OperatorRow> rows_;
};

void OperatorBench::measure(const Item& item) {
  const std::string kind = item.kind == OperatorKind::update
                               ? model::update_kind(*model_.optimizer, model_.moments)
                           : item.kind == OperatorKind::dequantize ? model::dequantize_kind(model_)
                                                                   : model::name(item.kind);
  const std::string name = fmt::format("{} {}", kind, fmt::join(item.dims, " x "));
  std::vector<Passes> turns;
  const auto prepare = [&] {
    std::int64_t bytes = 0;
    while (bytes < bench_.turn_bytes() && std::ssize(turns) < most_turns) {
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
  if (forward_s && backward_s) rows_.push_back({kind, item.dims, *forward_s, *backward_s});
  // Large operands go at once: all of them together would take several times the largest one's.
  if (turns.size() == 1) operands_[0].release();
}

/// Chooses operators to be measured, each (kind, dims) once.
class Choice {
 public:
  Choice(const model::Config& model, const Shapes& shapes, const Limits& limits)
      : model_(model), shapes_(shapes), limits_(limits) {}

  /// @param division  the operator is of the list for splits of this one
  void add(const model::Operator& op, const model::Division& division);
  void add(const Pass& pass);
  void add_update();
  Chosen chosen() { return std::move(chosen_); }

 private:
  using Values = std::map<std::string, double, std::less<>>;
  /// Whether some plan can hold the operator at these values.
  bool is_of_use(const model::Operator& op, const Values& values) const;
  void add_cached_attention(const model::Operator& op, const Pass& pass);
  void add_if_small(Item item, const model::Config& model);
  void add_dequantize(std::int64_t elements) {
    add({OperatorKind::dequantize, {elements}, 1, 0.0, double(elements * sizeof(float))});
  }
  void add(Item item) {
    if (met_.emplace(item.kind, item.dims).second) chosen_.items.push_back(std::move(item));
  }

  const model::Config& model_;
  const Shapes& shapes_;
  const Limits& limits_;
  std::set<std::pair<OperatorKind, std::vector<std::int64_t>>> met_;
  Chosen chosen_;
};

bool Choice::is_of_use(const model::Operator& op, const Values& values) const {
  const double fp32_share = model::activation_bytes(model_.precision) / double(sizeof(float));
  return fp32_share * op.forward_bytes.evaluate(values) <= double(limits_.memory_bytes);
}

void Choice::add(const model::Operator& op, const model::Division& division) {
  std::int64_t least_bytes = std::numeric_limits<std::int64_t>::max();
  bool of_use = false;
  for (const Split& split : shapes_.splits) {
    if (split.division() != division) continue;
    const Values values = split.values();
    const auto dims = whole_dims(op, values);
    if (!dims || !is_of_use(op, values)) continue;
    const Item item{
        .kind = op.kind,
        .dims = *dims,
        .tokens = std::int64_t(split.microbatch) * model_.padded_len() / split.cp,
        .flops = op.forward_flops.evaluate(values) + op.backward_flops.evaluate(values),
        .bytes = op.forward_bytes.evaluate(values) + op.backward_bytes.evaluate(values)};
    const std::int64_t bytes = operand_bytes(item, model_);
    of_use = true;
    least_bytes = std::min(least_bytes, bytes);
    if (bytes <= limits_.rank_bytes)
      add(item);
    else
      ++chosen_.left_out;
    if (op.quantized) add_dequantize((*dims)[1] * (*dims)[2]);
  }
  require(!of_use || least_bytes <= limits_.rank_bytes, Failure::resource,
          "measuring '{}' of this model takes at least {} for each rank, but this node has {} for "
          "each of its ranks: name a profile (cluster.profile = \"l4\", or a file), or run brume "
          "profile on the machine that is to train",
          op.name, format_bytes(double(least_bytes)), format_bytes(double(limits_.rank_bytes)));
}

/// All that a pass computes forward.
void Choice::add(const Pass& pass) {
  const Values values = pass.split.values();
  for (SegmentKind kind : model::segment_kinds(pass.model))
    for (const model::Operator& op : model::segment(pass.model, kind).operators) {
      const auto dims = whole_dims(op, values);
      if (model::is_exchange(op.kind) || !dims || !is_of_use(op, values)) continue;
      if (op.kind == OperatorKind::cached_attention) {
        add_cached_attention(op, pass);
        continue;
      }
      add_if_small({.kind = op.kind,
                    .dims = *dims,
                    .tokens = pass.model.computed_tokens(),
                    .flops = op.forward_flops.evaluate(values),
                    .bytes = op.forward_bytes.evaluate(values),
                    .forward_only = true},
                   pass.model);
      if (op.quantized) add_dequantize((*dims)[1] * (*dims)[2]);
    }
}

/// Attention of prompts and of single tokens at a few lengths.
void Choice::add_cached_attention(const model::Operator& op, const Pass& pass) {
  constexpr std::int64_t least = 64, most = 4096, enough_sequences = 16;
  const Values values = pass.split.values();
  const auto heads = std::llround(op.dims[2].evaluate(values)),
             head_dim = std::llround(op.dims[3].evaluate(values));
  const std::int64_t longest = std::min<std::int64_t>(pass.model.seq_len, most);
  if (pass.model.generation.sequences < enough_sequences) return;  // a longer pass has as many
  const std::int64_t group = pass.model.num_heads / pass.model.kv_heads();
  const auto key_heads = int(pass.model.keeps_latents() ? 1 : ceil_div(heads, group));
  for (std::int64_t seen = std::min(least, longest); 2 <= seen && seen <= longest; seen *= 4) {
    const std::int64_t sequences = std::min(enough_sequences, seen);
    for (const auto& [tokens, keys, kept] :
         {std::array{seen, seen / 2, seen}, std::array{sequences, seen, sequences * seen}})
      add_if_small({.kind = op.kind,
                    .dims = {tokens, keys, heads, head_dim},
                    .tokens = tokens,
                    .flops = model::cached_attention_flops(double(tokens), double(keys),
                                                           double(heads * head_dim)),
                    .bytes = 8.0 * double(kept) * double(key_heads * head_dim),
                    .forward_only = true,
                    .key_heads = key_heads},
                   pass.model);
  }
}

void Choice::add_if_small(Item item, const model::Config& model) {
  if (operand_bytes(item, model) <= limits_.rank_bytes)
    add(std::move(item));
  else
    ++chosen_.left_out;
}

void Choice::add_update() {
  const auto state_bytes = std::int64_t(std::ceil(
      model::weight_bytes(model_.precision) + model::grad_bytes + model::optimizer_bytes(model_)));
  const std::int64_t room = std::min(limits_.memory_bytes, limits_.rank_bytes) / state_bytes;
  const std::int64_t largest = std::min(largest_block_elements(model_), room);
  for (std::int64_t part : {64, 8, 1}) {
    const std::int64_t elements = round_up(ceil_div(largest, part), quantized_block);
    add({OperatorKind::update, {elements}, 1, 0.0, double(elements * state_bytes)});
  }
}

}  // namespace

std::int64_t largest_block_elements(const model::Config& model) {
  std::int64_t largest = 0;
  for (const model::Block& block : model::blocks(model))
    largest = std::max(largest, model::layout(block, 1, 0, 1).elements);
  return largest;
}

Chosen choose_operators(const model::Config& model, const Shapes& shapes, const Limits& limits) {
  Choice choice(model, shapes, limits);
  for (const Pass& pass : shapes.passes) choice.add(pass);
  if (shapes.splits.empty()) return choice.chosen();
  std::set<model::Division> divisions;
  for (const Split& split : shapes.splits) divisions.insert(split.division());
  for (const model::Division& division : divisions)
    for (SegmentKind kind : model::segment_kinds(model))
      for (const model::Operator& op : model::segment(model, kind, division).operators)
        if (!model::is_exchange(op.kind)) choice.add(op, division);
  choice.add_update();
  return choice.chosen();
}

double expected_s(const Item& item, const hardware::Profile& rates) {
  return std::max(item.flops / std::max(rates.flops_per_s, 1.0),
                  item.bytes / std::max(rates.bytes_per_s, 1.0));
}

std::vector<hardware::OperatorRow> measure_operators(Bench& bench, const model::Config& model,
                                                     const std::vector<Item>& items,
                                                     const hardware::Profile& rates) {
  OperatorBench operators(bench, model);
  double all_s = 0.0;
  for (const Item& item : items) all_s += expected_s(item, rates);
  Progress shown("measuring operators", all_s, bench.world().rank() == 0);
  for (const Item& item : items) {
    operators.measure(item);
    shown.add(expected_s(item, rates));
  }
  return operators.rows();
}

void measure_rates(Bench& bench, const model::Config& model, hardware::Profile& profile) {
  Operands operands;
  Passes work;
  const std::int64_t side = 768, elements = std::int64_t{4} << 20;
  const auto measure = [&](OperatorKind kind, const char* name, double& flops_per_s) {
    const Item product{kind, {side, side, side}, side};
    if (bench.prepared(name, [&] { work = make_passes(product, model, operands); }))
      if (const auto time_s = bench.seconds(name, work.forward))
        flops_per_s = 2.0 * double(side * side * side) / *time_s;
  };
  measure(OperatorKind::matmul, "matrix product", profile.flops_per_s);
  if (model.precision == model::Precision::fp8)
    measure(OperatorKind::matmul_fp8, "matrix product in 8 bits", profile.fp8_flops_per_s);
  if (bench.prepared("memory", [&] { work.forward = make_sum(elements, operands); }))
    if (const auto time_s = bench.seconds("memory", work.forward))
      profile.bytes_per_s = 3.0 * sizeof(float) * double(elements) / *time_s;
}

std::optional<double> measure_host_updates(Bench& bench, const model::Config& model) {
  constexpr const char* name = "updates of the host";
  constexpr std::int64_t elements = std::int64_t{4} << 20;
  Operands operands(device::Tier::host);
  Work work;
  if (!bench.prepared(name, [&] { work = make_host_update(elements, model, operands); })) return {};
  const auto time_s = bench.seconds(name, work);
  return time_s ? std::optional(double(elements) / *time_s) : std::nullopt;
}

}  // namespace brume::profiler
