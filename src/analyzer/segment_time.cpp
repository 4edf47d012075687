/// @file Seconds of what a rank computes: segments and the optimizer step.
#include <cmath>
#include <map>

#include "analyzer/analyzer.hpp"

namespace brume::analyzer {
namespace {

using Values = std::map<std::string, double, std::less<>>;

double operator_s(const model::Config& model, const hardware::Profile& profile,
                  const model::Operator& op, bool backward, const Values& values) {
  std::vector<std::int64_t> dims;
  for (const Expr& dim : op.dims) dims.push_back(std::llround(dim.evaluate(values)));
  const Expr& flops = backward ? op.backward_flops : op.forward_flops;
  const Expr& fp32_bytes = backward ? op.backward_bytes : op.forward_bytes;
  const double bytes =
      fp32_bytes.evaluate(values) * model::activation_bytes(model.precision) / sizeof(float);
  return hardware::operator_time(profile, model::name(op.kind), dims, backward,
                                 flops.evaluate(values), bytes)
      .seconds;
}

}  // namespace

double segment_s(const model::Config& model, const hardware::Profile& profile,
                 model::SegmentKind kind, Pass pass, int microbatch, int tp) {
  const model::Segment segment = model::segment(model, kind);
  const Values values{{"b", microbatch}, {"tp", tp}};
  // Where a layer's last segment is recomputed nobody reads its output.
  const bool no_output = pass == Pass::recompute &&
                         kind == model::segment_kinds(model, model::BlockKind::layer).back();
  double sum_s = 0.0;
  for (const model::Operator& op : segment.operators)
    if (!(no_output && op.output_only))
      sum_s += operator_s(model, profile, op, pass == Pass::backward, values);
  return sum_s;
}

double optimizer_s(const hardware::Profile& profile, double elements) {
  if (elements <= 0.0) return 0.0;
  // AdamW reads weight, gradient and both moments, and writes all but the gradient: 7 fp32.
  const std::int64_t dims[] = {std::llround(elements)};
  return hardware::operator_time(profile, model::name(model::OperatorKind::adamw), dims, false,
                                 16.0 * elements, 28.0 * elements)
      .seconds;
}

}  // namespace brume::analyzer
