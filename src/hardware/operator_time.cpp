/// @file Operator times: measured, interpolated, or scaled by the roofline.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

using Dims = std::span<const std::int64_t>;

double time_of(const OperatorRow& row, bool backward) {
  return backward ? row.backward_s : row.forward_s;
}

/// The only dimension in which two operators differ; none when it is not exactly one.
std::optional<std::size_t> only_difference(Dims a, Dims b) {
  std::optional<std::size_t> dim;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (dim) return std::nullopt;
    dim = i;
  }
  return dim;
}

/// What FLOPs and bytes of an operator grow with. Attention reads dims {batch, T, heads, head_dim}
/// and scores T x T; an embedding {N, C, V} touches N rows however long the table is.
double work(const std::string& kind, Dims dims) {
  double product = 1.0;
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (kind != "embedding" || i < 2) product *= double(dims[i]);
  return kind == "attention" && dims.size() > 1 ? product * double(dims[1]) : product;
}

/// Distance of shapes: sum of |log| of the ratios of their dimensions.
double distance(Dims a, Dims b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += std::abs(std::log(double(std::max<std::int64_t>(a[i], 1))) -
                    std::log(double(std::max<std::int64_t>(b[i], 1))));
  return sum;
}

/// Interpolates between the closest rows below and above in one dimension, all others equal [s].
std::optional<double> interpolated_s(const Profile& profile, const std::string& kind, Dims dims,
                                     bool backward) {
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    const OperatorRow *below = nullptr, *above = nullptr;
    for (const OperatorRow& row : profile.operators) {
      if (row.kind != kind || row.dims.size() != dims.size()) continue;
      if (only_difference(row.dims, dims) != dim) continue;
      const std::int64_t at = row.dims[dim];
      if (at < dims[dim] && (!below || at > below->dims[dim])) below = &row;
      if (at > dims[dim] && (!above || at < above->dims[dim])) above = &row;
    }
    if (!below || !above) continue;
    const double part =
        double(dims[dim] - below->dims[dim]) / double(above->dims[dim] - below->dims[dim]);
    return std::lerp(time_of(*below, backward), time_of(*above, backward), part);
  }
  return std::nullopt;
}

const OperatorRow* nearest_row(const Profile& profile, const std::string& kind, Dims dims,
                               bool backward) {
  const OperatorRow* nearest = nullptr;
  for (const OperatorRow& row : profile.operators) {
    if (row.kind != kind || row.dims.size() != dims.size() || time_of(row, backward) <= 0.0 ||
        work(kind, row.dims) <= 0.0)
      continue;
    if (!nearest || distance(row.dims, dims) < distance(nearest->dims, dims)) nearest = &row;
  }
  return nearest;
}

double efficiency(const Profile& profile, const std::string& kind) {
  const auto row = std::ranges::find(profile.efficiencies, kind, &EfficiencyRow::kind);
  return row == profile.efficiencies.end() ? 1.0 : row->efficiency;
}

/// What efficiencies by size go by.
double size_of(const std::string& kind, Dims dims) {
  if (kind == "attention") return dims.size() > 1 ? double(dims[1]) : 1.0;
  double product = 1.0;
  for (const std::int64_t dim : dims) product *= double(dim);
  return kind == "matmul" ? std::cbrt(product) : product;
}

/// The efficiencies of a kind that are known by size, about one size.
struct SizedEfficiency {
  const EfficiencyRow* below = nullptr;  ///< the next smaller size
  const EfficiencyRow* above = nullptr;  ///< the next larger one, or just that size
  const EfficiencyRow* largest = nullptr;

  /// By the logarithm of the size; the nearest one outside.
  double at(double size) const {
    if (!below) return above->efficiency;
    if (!above) return below->efficiency;
    const double first = std::log(below->size), last = std::log(above->size);
    return std::lerp(below->efficiency, above->efficiency,
                     (std::log(size) - first) / (last - first));
  }
};

/// None where the profile knows the kind by no size.
std::optional<SizedEfficiency> sized_efficiency(const Profile& profile, const std::string& kind,
                                                double size) {
  SizedEfficiency found;
  for (const EfficiencyRow& row : profile.efficiencies) {
    if (row.size <= 0.0 || row.kind != kind) continue;
    if (!found.largest || row.size > found.largest->size) found.largest = &row;
    const EfficiencyRow*& side = row.size < size ? found.below : found.above;
    if (!side || std::abs(row.size - size) < std::abs(side->size - size)) side = &row;
  }
  return found.largest ? std::optional(found) : std::nullopt;
}

/// Seconds by FLOPs, bytes and what the profile says of their efficiency.
double roofline_s(const Profile& profile, const std::string& kind, Dims dims, double flops,
                  double bytes, double speed) {
  const double compute_s = flops / profile.flops_per_s, memory_s = bytes / profile.bytes_per_s;
  const double size = std::max(size_of(kind, dims), 1.0);
  const auto by_size = sized_efficiency(profile, kind, size);
  if (!by_size) return (compute_s / speed + memory_s) / efficiency(profile, kind);
  const double most = by_size->largest->efficiency;
  const double saved_s = compute_s / most * (1.0 - 1.0 / speed);
  return std::max(compute_s / by_size->at(size) - saved_s,
                  memory_s / pass_efficiency(profile, most));
}

}  // namespace

const char* name(Source source) {
  switch (source) {
    case Source::measured: return "measured";
    case Source::interpolated: return "interpolated";
    case Source::roofline: return "roofline";
  }
  return "";
}

double pass_efficiency(const Profile& profile, double otherwise) {
  const auto row = std::ranges::find(profile.efficiencies, "pointwise", &EfficiencyRow::kind);
  return row == profile.efficiencies.end() ? otherwise : row->efficiency;
}

const OperatorRow* measured_operator(const Profile& profile, const std::string& kind,
                                     std::span<const std::int64_t> dims, int group) {
  const OperatorRow* found = nullptr;
  for (const OperatorRow& row : profile.operators) {
    if (row.kind != kind || !std::ranges::equal(row.dims, dims)) continue;
    if (row.group == group) return &row;
    if (!found) found = &row;
  }
  return found;
}

Time operator_time(const Profile& profile, const std::string& kind,
                   std::span<const std::int64_t> dims, bool backward, double flops, double bytes,
                   double speed) {
  if (const OperatorRow* row = measured_operator(profile, kind, dims))
    return {time_of(*row, backward), Source::measured};
  if (const auto seconds = interpolated_s(profile, kind, dims, backward))
    return {*seconds, Source::interpolated};

  // The nearest row's roofline is that of these dims scaled by its work, so its efficiency carries
  // over when its time is scaled back.
  if (const OperatorRow* row = nearest_row(profile, kind, dims, backward)) {
    const double row_s = time_of(*row, backward);
    const double scaled_s = row_s * work(kind, dims) / work(kind, row->dims);
    // Few rows of a product still read all of its weights.
    const double bytes_s = profile.bytes_per_s > 0.0 ? bytes / profile.bytes_per_s : 0.0;
    return {std::max(scaled_s, std::min(bytes_s, row_s)), Source::roofline};
  }
  require(profile.flops_per_s > 0.0 && profile.bytes_per_s > 0.0, Failure::input,
          "profile '{}' has neither a '{}' row nor flops_per_s and bytes_per_s", profile.title(),
          kind);
  const double kernels = backward ? 2.0 : 1.0;
  return {
      std::max(roofline_s(profile, kind, dims, flops, bytes, speed), kernels * profile.launch_s),
      Source::roofline};
}

}  // namespace brume::hardware
