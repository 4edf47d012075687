/// @file Times of operators, of making factors of quantized blocks, and of updates, by a profile.
#include "operator_time.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "price/price.hpp"

namespace brume::price {

std::vector<std::int64_t> dims_of(const model::Operator& op, const Values& values) {
  std::vector<std::int64_t> dims;
  for (const model::Expr& dim : op.dims) dims.push_back(std::llround(dim.evaluate(values)));
  return dims;
}

namespace {

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

}  // namespace

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

std::string kind_of(const model::OptimizerRow& row, Moments moments) {
  return row.of_elements ? row.name : model::update_kind(row, moments);
}

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

}  // namespace brume::price
