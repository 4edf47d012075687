/// @file Rows of a profile: measured operators, links and copies, and how they slow each other
/// down.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace brume::hardware {

/// One measured operator. `kind` and `dims` as in model::Operator, or as Mist has them.
struct OperatorRow {
  std::string kind;
  std::vector<std::int64_t> dims;
  double forward_s = 0.0;
  double backward_s = 0.0;
  int group = 0;  ///< ranks it was measured as a part of; 0: as part of none
};

/// Share of flops_per_s and bytes_per_s that an operator reaches without a measured row; by size if
/// its kind has rows with one, see operator_time.
struct EfficiencyRow {
  std::string kind;
  double efficiency = 1.0;
  double size = 0.0;  ///< 0: any
};

/// Collectives, in the order in which they stand in for each other, and a message.
enum class LinkKind { all_gather, reduce_scatter, all_reduce, send };
inline constexpr std::array all_links = {LinkKind::all_gather, LinkKind::reduce_scatter,
                                         LinkKind::all_reduce, LinkKind::send};
const char* name(LinkKind kind);

/// Host to device, device to host, disk to host, host to disk.
enum class CopyKind { copy_in, copy_out, disk_read, disk_write };
inline constexpr std::array all_copies = {CopyKind::copy_in, CopyKind::copy_out,
                                          CopyKind::disk_read, CopyKind::disk_write};
const char* name(CopyKind kind);
inline bool is_of_disk(CopyKind kind) { return kind >= CopyKind::disk_read; }

/// One measured collective or message.
struct LinkRow {
  LinkKind kind = LinkKind::send;
  int nodes = 1;           ///< nodes the group spans
  int ranks_per_node = 1;  ///< ranks of the group on each
  std::int64_t bytes = 0;  ///< bytes of the whole buffer
  double time_s = 0.0;
};

/// How much longer the slowest of some ranks computes than they do on average, of computations that
/// take them all about a millisecond.
struct WaitRow {
  int ranks = 2;  ///< ranks of one node
  double share = 0.0;
};

/// One measured copy, all ranks of a node at once.
struct CopyRow {
  CopyKind kind = CopyKind::copy_in;
  std::int64_t bytes = 0;
  double time_s = 0.0;
};

/// A transfer whose time is a line, gib / gib_per_s + latency_s; for kinds without measured sizes.
///
/// gib is the buffer's size for copies. In a `collective` over q = nodes x ranks_per_node ranks an
/// all-gather moves gib (q - 1) / q, reduce-scatter takes 1.1 and all-reduce 2.1 times as long; a
/// message, between the two ranks of a group, moves gib.
struct TransferRow {
  std::string kind;  ///< `collective`, or the name of a CopyKind
  int nodes = 1;
  int ranks_per_node = 1;
  double gib_per_s = 1.0;
  double latency_s = 0.0;

  bool operator==(const TransferRow&) const = default;
};

/// A network by its rate and its hops, for groups of any shape without measured sizes or lines.
struct NetworkRow {
  std::string span;             ///< "node": between the devices of a node; "cluster": between nodes
  double gib_per_s = 1.0;       ///< one way, as large messages reach it: of a device, of a node
  double peer_gib_per_s = 0.0;  ///< largest rate to one peer; 0: all of it
  double start_s = 0.0;         ///< start of a collective or a message
  double hop_s = 0.0;           ///< hop from a rank to the next
};

/// Two nodes between which transfers take longer than between most. What else a profile says of
/// transfers between nodes is for nodes that no such pair joins.
struct SlowPair {
  int first = 0;  ///< position among the nodes of the group
  int second = 0;
  double times = 1.0;  ///< slowdown
};

/// Sources of the measurements; empty: the profile's own origin.
struct ProfileOrigins {
  std::string operators;
  std::string rates;  ///< flops_per_s and bytes_per_s
  std::string efficiencies;
  std::string transfers;
  std::string interference;
};

/// Validity of a profile; a cached one is reused only under an equal key.
struct ProfileKey {
  std::string processor;  ///< CPU or GPU
  std::string packages;   ///< versions that matter for speed
  int ranks_per_node = 1;
  int threads_per_rank = 1;
  std::string binding;  ///< how ranks are pinned, in words
  std::string model;    ///< the shapes that were measured

  bool operator==(const ProfileKey&) const = default;
};

/// The four resources that work at once: compute, communication, host-to-device, device-to-host.
inline constexpr int num_resources = 4;

/// a[q][j]: how much slower resource q runs while j runs beside it; slowdown of q = 1 + sum_j
/// a[q][j].
struct Interference {
  std::array<std::array<double, num_resources>, num_resources> added{};

  /// Time until all four are done when started together [s].
  ///
  /// While the set Q is unfinished, each q in Q runs at 1 / (1 + sum_{j in Q} a[q][j]) of its
  /// speed.
  /// @param alone_s  time each would take by itself; 0: absent
  /// @source         Mist (EuroSys'25), interference model; pairwise-additive form
  double overlapped_s(const std::array<double, num_resources>& alone_s) const;

  /// The times until each of the four is done when started together [s]; 0 for absent ones.
  std::array<double, num_resources> done_s(const std::array<double, num_resources>& alone_s) const;
};

/// Interference measured with collectives of one group shape; these differ a lot (A100: 7 % error
/// with one table for all shapes, 2 % with one each).
struct GroupInterference {
  int nodes = 1;
  int ranks_per_node = 1;
  std::vector<double> added;  ///< a, row by row
};

}  // namespace brume::hardware
