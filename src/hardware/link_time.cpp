/// @file Times of collectives, messages and copies between measured sizes.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "base/error.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

/// Measured seconds by bytes, of one kind and group shape.
using Curve = std::map<double, double>;

/// Constant below the first point, linear between points, the slope of the last two above.
double read(const Curve& curve, double bytes) {
  if (bytes <= curve.begin()->first) return curve.begin()->second;
  if (curve.size() == 1) return curve.begin()->second * bytes / curve.begin()->first;
  const auto above = curve.lower_bound(bytes);
  const auto [x1, y1] = above == curve.end() ? *std::prev(above) : *above;
  const auto [x0, y0] = *std::prev(above, above == curve.end() ? 2 : 1);
  double slope = (y1 - y0) / (x1 - x0);
  // Noise may make the larger transfer the faster one; it must not make a huge one free.
  if (above == curve.end()) slope = std::max(slope, 0.0);
  return y1 + slope * (bytes - x1);
}

struct Shape {
  int nodes;
  int ranks_per_node;

  int ranks() const { return nodes * ranks_per_node; }
  bool operator==(const Shape&) const = default;
};

/// What crosses nodes differs most, so the node count weighs more than any difference in ranks.
double distance(Shape a, Shape b) {
  const double nodes = std::abs(std::log(double(a.nodes) / b.nodes));
  const double ranks = std::abs(std::log(double(a.ranks()) / b.ranks()));
  return ((a.nodes > 1) != (b.nodes > 1) ? 100.0 : 0.0) + 10.0 * nodes + ranks;
}

/// Share of the buffer that each link of a ring carries.
double ring_share(Shape shape) { return double(shape.ranks() - 1) / shape.ranks(); }

constexpr double bytes_per_gib = 1024.0 * 1024.0 * 1024.0;

double line_s(const TransferRow& line, double bytes) {
  return bytes / bytes_per_gib / line.gib_per_s + line.latency_s;
}

template <typename Row>
bool has_kind(const std::vector<Row>& rows, const std::string& kind) {
  return std::ranges::any_of(rows, [&](const Row& row) { return row.kind == kind; });
}

/// A collective or a message by the line of the nearest group.
double link_line_s(const Profile& profile, const std::string& kind, Shape wanted, double bytes) {
  const TransferRow* nearest = nullptr;
  const auto far = [&](const TransferRow& row) {
    return distance({row.nodes, row.ranks_per_node}, wanted);
  };
  for (const TransferRow& row : profile.transfers)
    if (row.kind == "collective" && (!nearest || far(row) < far(*nearest))) nearest = &row;
  if (kind == "send") return line_s(*nearest, bytes);
  const double weight = kind == "reduce_scatter" ? 1.1 : kind == "all_reduce" ? 2.1 : 1.0;
  return weight * line_s(*nearest, bytes * ring_share(wanted));
}

Shape nearest_shape(const Profile& profile, const std::string& kind, Shape wanted) {
  const LinkRow* nearest = nullptr;
  for (const LinkRow& row : profile.links) {
    const Shape shape{row.nodes, row.ranks_per_node};
    if (row.kind != kind || shape.ranks() < 2) continue;
    if (!nearest ||
        distance(shape, wanted) < distance({nearest->nodes, nearest->ranks_per_node}, wanted))
      nearest = &row;
  }
  require(nearest != nullptr, Failure::input,
          "profile '{}' has no measured '{}', which a group of {} ranks needs", profile.origin,
          kind, wanted.ranks());
  return {nearest->nodes, nearest->ranks_per_node};
}

}  // namespace

double link_time(const Profile& profile, const std::string& kind, int nodes, int ranks_per_node,
                 double bytes) {
  const Shape wanted{nodes, ranks_per_node};
  if (wanted.ranks() < 2 || bytes <= 0.0) return 0.0;
  if (!has_kind(profile.links, kind) && has_kind(profile.transfers, "collective"))
    return link_line_s(profile, kind, wanted, bytes);
  const Shape shape = nearest_shape(profile, kind, wanted);
  Curve curve;
  for (const LinkRow& row : profile.links)
    if (row.kind == kind && Shape{row.nodes, row.ranks_per_node} == shape)
      curve.emplace(double(row.bytes), row.time_s);
  const double measured_s = read(curve, bytes);
  // A message has two ends however its group is described.
  return kind == "send" ? measured_s : measured_s * ring_share(wanted) / ring_share(shape);
}

double copy_time(const Profile& profile, const std::string& kind, double bytes) {
  if (bytes <= 0.0) return 0.0;
  Curve curve;
  for (const CopyRow& row : profile.copies)
    if (row.kind == kind) curve.emplace(double(row.bytes), row.time_s);
  const auto line = std::ranges::find(profile.transfers, kind, &TransferRow::kind);
  if (curve.empty() && line != profile.transfers.end()) return line_s(*line, bytes);
  require(!curve.empty(), Failure::input, "profile '{}' has no measured '{}'", profile.origin,
          kind);
  return read(curve, bytes);
}

}  // namespace brume::hardware
