/// @file Times of collectives, messages and copies between measured sizes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "base/units.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

/// Measured seconds by bytes, of one kind and group shape.
using Curve = std::map<double, double>;

/// Reads a curve: constant below the first point, linear between points, and above them with the
/// slope of the last two.
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

double line_s(const TransferRow& line, double bytes) {
  return bytes / bytes_per_gib / line.gib_per_s + line.latency_s;
}

/// Whether some group was measured with this kind.
bool has_links(const Profile& profile, LinkKind kind) {
  return std::ranges::any_of(profile.links, [&](const LinkRow& row) {
    return row.kind == kind && row.nodes * row.ranks_per_node >= 2;
  });
}

bool has_lines(const Profile& profile) {
  return std::ranges::any_of(profile.transfers,
                             [](const TransferRow& row) { return row.kind == "collective"; });
}

/// The kind whose times are taken where `kind` has none.
std::optional<LinkKind> stand_in(const Profile& profile, LinkKind kind) {
  const auto found = std::ranges::find_if(
      all_links, [&](LinkKind other) { return other != kind && has_links(profile, other); });
  return found == all_links.end() ? std::nullopt : std::optional(*found);
}

/// How often the ring of a collective carries the buffer; a message has no ring.
double rounds_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::all_gather:
    case LinkKind::reduce_scatter: return 1.0;
    case LinkKind::all_reduce: return 2.0;
    case LinkKind::send: return 0.0;
  }
  return 0.0;
}

/// The time of a collective or a message by the line of the nearest group [s]. A larger group takes
/// more steps than were measured: in a tree, as many more as its ranks' logarithm is larger.
double link_line_s(const Profile& profile, LinkKind kind, Shape wanted, double bytes) {
  const TransferRow* nearest = nullptr;
  const auto far = [&](const TransferRow& row) {
    return distance({row.nodes, row.ranks_per_node}, wanted);
  };
  for (const TransferRow& row : profile.transfers)
    if (row.kind == "collective" && (!nearest || far(row) < far(*nearest))) nearest = &row;
  if (kind == LinkKind::send) return line_s(*nearest, bytes);
  const double weight = kind == LinkKind::reduce_scatter ? 1.1
                        : kind == LinkKind::all_reduce   ? 2.1
                                                         : 1.0;
  TransferRow line = *nearest;
  const int measured = line.nodes * line.ranks_per_node;
  if (measured >= 2 && wanted.ranks() > measured)
    line.latency_s *= std::log2(double(wanted.ranks())) / std::log2(double(measured));
  return weight * line_s(line, bytes * ring_share(wanted));
}

const NetworkRow* network(const Profile& profile, std::string_view span) {
  const auto found = std::ranges::find(profile.networks, span, &NetworkRow::span);
  return found == profile.networks.end() ? nullptr : &*found;
}

/// What a tree reaches of a ring's rate. @source NCCL, src/graph/tuning.cc
constexpr double tree_share = 0.9;

/// The time of a collective or a message by rates and hops [s].
/// @throws Error(input) when no network joins the ranks
double network_s(const Profile& profile, LinkKind kind, Shape shape, double bytes) {
  const NetworkRow* within = network(profile, "node");
  const NetworkRow* between = network(profile, "cluster");
  require(
      (shape.nodes == 1 || between != nullptr) && (shape.ranks_per_node == 1 || within != nullptr),
      Failure::input, "profile '{}' has no network between {}", profile.title(),
      shape.nodes > 1 && between == nullptr ? "nodes: name one by cluster.network"
                                            : "the devices of a node");
  const auto reached = [&](const NetworkRow& row, int peers) {
    return row.peer_gib_per_s > 0.0 ? std::min(row.gib_per_s, peers * row.peer_gib_per_s)
                                    : row.gib_per_s;
  };
  double gib_per_s = HUGE_VAL;
  if (within && shape.ranks_per_node > 1)
    gib_per_s = reached(*within, kind == LinkKind::send ? 1 : shape.ranks_per_node - 1);
  double start_s = within && shape.nodes == 1 ? within->start_s : 0.0;
  if (shape.nodes > 1) {
    const double share = std::min(1.0, double(shape.ranks_per_node) / profile.key.ranks_per_node);
    gib_per_s = std::min(gib_per_s, share * between->gib_per_s);
    start_s = between->start_s;
  }
  const double within_s = within ? within->hop_s : 0.0, between_s = between ? between->hop_s : 0.0;
  const double all_s = bytes / bytes_per_gib / gib_per_s;
  if (kind == LinkKind::send) return start_s + (shape.nodes > 1 ? between_s : within_s) + all_s;
  const double rounds = rounds_of(kind);
  const double ring_s =
      start_s + rounds * ((shape.ranks() - shape.nodes) * within_s + (shape.nodes - 1) * between_s +
                          ring_share(shape) * all_s);
  if (rounds < 2.0) return ring_s;
  const double tree_s = start_s + rounds * ((shape.ranks_per_node - 1) * within_s +
                                            std::log2(double(shape.nodes)) * between_s +
                                            ring_share(shape) * all_s / tree_share);
  return std::min(ring_s, tree_s);
}

Shape nearest_shape(const Profile& profile, LinkKind kind, Shape wanted) {
  const LinkRow* nearest = nullptr;
  for (const LinkRow& row : profile.links) {
    const Shape shape{row.nodes, row.ranks_per_node};
    if (row.kind != kind || shape.ranks() < 2) continue;
    if (!nearest ||
        distance(shape, wanted) < distance({nearest->nodes, nearest->ranks_per_node}, wanted))
      nearest = &row;
  }
  return {nearest->nodes, nearest->ranks_per_node};
}

/// The time that follows from those of another kind [s]. @throws Error(input) when there is none
double stand_in_s(const Profile& profile, LinkKind kind, Shape wanted, double bytes) {
  const std::optional<LinkKind> other = stand_in(profile, kind);
  require(other.has_value(), Failure::input,
          "profile '{}' has no measured links, which a group of {} ranks needs for '{}': leave "
          "cluster.profile empty, or measure the machine with mpirun -n {} brume profile DECK -o "
          "FILE",
          profile.title(), wanted.ranks(), name(kind), std::max(2, profile.key.ranks_per_node));
  const auto other_s = [&](double size) {
    return link_time(profile, *other, wanted.nodes, wanted.ranks_per_node, size);
  };
  const double rounds = rounds_of(kind), other_rounds = rounds_of(*other);
  if (rounds == 0.0) return other_s(bytes / ring_share(wanted)) / other_rounds;
  if (other_rounds == 0.0) return rounds * (wanted.ranks() - 1) * other_s(bytes / wanted.ranks());
  return rounds / other_rounds * other_s(bytes);
}

std::string stand_in_line(LinkKind kind, LinkKind other) {
  const double rounds = rounds_of(kind), other_rounds = rounds_of(other);
  const std::string formula = rounds == 0.0 ? fmt::format("{} that carries as much", name(other))
                              : other_rounds == 0.0
                                  ? fmt::format("a ring of {}s", name(other))
                                  : fmt::format("{} x {}", rounds / other_rounds, name(other));
  return fmt::format("no '{}' was measured: {} stands in for it", name(kind), formula);
}

}  // namespace

const char* name(LinkKind kind) {
  switch (kind) {
    case LinkKind::all_gather: return "all_gather";
    case LinkKind::reduce_scatter: return "reduce_scatter";
    case LinkKind::all_reduce: return "all_reduce";
    case LinkKind::send: return "send";
  }
  return "";
}

const char* name(CopyKind kind) {
  switch (kind) {
    case CopyKind::copy_in: return "copy_in";
    case CopyKind::copy_out: return "copy_out";
    case CopyKind::disk_read: return "disk_read";
    case CopyKind::disk_write: return "disk_write";
  }
  return "";
}

std::vector<std::string> stand_ins(const Profile& profile) {
  std::vector<std::string> lines;
  if (has_lines(profile) || !profile.networks.empty()) return lines;
  for (const LinkKind kind : all_links)
    if (const auto other = stand_in(profile, kind); other && !has_links(profile, kind))
      lines.push_back(stand_in_line(kind, *other));
  return lines;
}

double link_time(const Profile& profile, LinkKind kind, int nodes, int ranks_per_node, double bytes,
                 const Congestion& congestion) {
  const Shape wanted{nodes, ranks_per_node};
  if (wanted.ranks() < 2 || bytes <= 0.0) return 0.0;
  if (congestion != Congestion()) {
    const double passages = std::max(rounds_of(kind), 1.0);
    return link_time(profile, kind, nodes, ranks_per_node, congestion.times * bytes) +
           passages * congestion.hops_s;
  }
  if (!has_links(profile, kind)) {
    if (has_lines(profile)) return link_line_s(profile, kind, wanted, bytes);
    if (!profile.networks.empty()) return network_s(profile, kind, wanted, bytes);
    return stand_in_s(profile, kind, wanted, bytes);
  }
  const Shape shape = nearest_shape(profile, kind, wanted);
  Curve curve;
  for (const LinkRow& row : profile.links)
    if (row.kind == kind && Shape{row.nodes, row.ranks_per_node} == shape)
      curve.emplace(double(row.bytes), row.time_s);
  const double measured_s = read(curve, bytes);
  // A message has two ends however its group is described.
  return kind == LinkKind::send ? measured_s : measured_s * ring_share(wanted) / ring_share(shape);
}

const SlowPair* slowest_pair(const Profile& profile, std::span<const int> nodes) {
  const SlowPair* slowest = nullptr;
  const auto among = [&](int node) { return std::ranges::binary_search(nodes, node); };
  for (const SlowPair& pair : profile.slow_pairs)
    if (pair.first != pair.second && among(pair.first) && among(pair.second) &&
        (!slowest || pair.times > slowest->times))
      slowest = &pair;
  return slowest;
}

double wait_share(const Profile& profile, int ranks) {
  if (ranks < 2 || profile.waits.empty()) return 0.0;
  const auto far = [ranks](const WaitRow& row) {
    return std::abs(std::log(double(row.ranks) / ranks));
  };
  return std::ranges::min(profile.waits, {}, far).share;
}

double copy_time(const Profile& profile, CopyKind kind, double bytes) {
  if (bytes <= 0.0) return 0.0;
  Curve curve;
  for (const CopyRow& row : profile.copies)
    if (row.kind == kind) curve.emplace(double(row.bytes), row.time_s);
  const auto line = std::ranges::find(profile.transfers, name(kind), &TransferRow::kind);
  if (curve.empty() && line != profile.transfers.end()) return line_s(*line, bytes);
  require(!curve.empty(), Failure::input, "profile '{}' has no measured '{}'{}", profile.title(),
          name(kind),
          is_of_disk(kind)
              ? ", which cluster.disk_gib needs: measure the machine with brume profile DECK -o "
                "FILE, or add [[transfers]] with kind, gib_per_s and latency_s"
              : "");
  return read(curve, bytes);
}

}  // namespace brume::hardware
