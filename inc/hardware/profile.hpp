/// @file Measured times of one machine: operators, links, copies, and how they slow each other
/// down.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "deck/schema.hpp"
#include "hardware/profile_rows.hpp"

namespace brume::hardware {

struct Profile {
  ProfileKey key;
  std::string origin;  ///< source of the measurements
  std::string file;    ///< its file, as it was requested; empty: none
  int generation = 0;  ///< 1: operators are those of generation, which has no backward
  ProfileOrigins origins;
  double flops_per_s = 0.0;       ///< measured large matrix product, per rank
  double fp32_flops_per_s = 0.0;  ///< the same in fp32; 0: flops_per_s
  double fp8_flops_per_s = 0.0;   ///< the same of factors in 8 bits; 0: flops_per_s
  double bytes_per_s = 0.0;       ///< measured memory bandwidth, per rank
  /// Parameters that the node's processor steps beside a device, per rank; 0: ranks compute on the
  /// processor itself, or nobody measured it.
  double host_updates_per_s = 0.0;
  double task_overhead_s = 0.0;  ///< per task: hand-over between channels
  double launch_s = 0.0;         ///< least time between the starts of two kernels
  double error = 0.0;            ///< expected relative error of predicted times
  /// Device memory of libraries and driver, in addition to a plan.
  std::int64_t reserved_bytes = 0;
  std::vector<OperatorRow> operators;
  std::vector<EfficiencyRow> efficiencies;
  std::vector<LinkRow> links;
  std::vector<WaitRow> waits;
  std::vector<CopyRow> copies;
  std::vector<TransferRow> transfers;
  std::vector<NetworkRow> networks;
  std::vector<SlowPair> slow_pairs;
  std::vector<deck::LevelKeys> levels;  ///< network levels; all else is of nodes in one unit
  std::vector<std::string> hosts;       ///< nodes of the slow pairs, in order; none: any
  /// The matrix a, row by row.
  std::vector<double> interference = std::vector<double>(num_resources * num_resources, 0.0);
  std::vector<GroupInterference> group_interference;
  std::vector<double> slowdowns;  ///< 28, as analyzer::MistSlowdowns, or none; Mist's counting only

  Interference interference_model() const;
  /// The table for collectives of this group: its own; else that of the group whose number of ranks
  /// is nearest, by ratio, of those measured across nodes or within one; else the one for all.
  Interference interference_model(int nodes, int ranks_per_node) const;

  const std::string& title() const { return file.empty() ? origin : file; }  ///< name in messages
};

/// The first round's rows, each figure the median of what the rounds that have it say.
///
/// @param rounds  [at least one] measurements of the same, one after the other
Profile medians(const std::vector<Profile>& rounds);

/// The row of these dims, if there is one; of several the one measured in such a group.
const OperatorRow* measured_operator(const Profile& profile, const std::string& kind,
                                     std::span<const std::int64_t> dims, int group = 0);

enum class Source { measured, interpolated, roofline };
const char* name(Source source);

struct Time {
  double seconds;
  Source source;
};

/// Looks an operator up: its row, else interpolated between rows of its kind that differ in one
/// dimension only, else flops / flops_per_s + bytes / bytes_per_s scaled by the efficiency that the
/// nearest row of its kind reached; without such a row, by that of `efficiencies`. With
/// efficiencies by size the larger of both terms counts, the bytes at the efficiency of pointwise
/// passes, or without it at that of the largest size:
///
///   max(flops / flops_per_s / e(size), bytes / bytes_per_s / e(pointwise)),
///
/// where e is linear in log(size), constant beyond its ends, and a matrix product's size is
/// (M N K)^(1/3), attention's the tokens of a sequence, others' the product of their dims. A
/// forward is one kernel, a backward two; each takes launch_s at least.
///
/// @param speed  how many times flops_per_s these FLOPs are made at, where no row tells: what a
///               size takes beyond its FLOPs at the largest size's efficiency stays
Time operator_time(const Profile& profile, const std::string& kind,
                   std::span<const std::int64_t> dims, bool backward, double flops, double bytes,
                   double speed = 1.0);

/// Slowdown of transfers that leave units of the network's levels.
struct Congestion {
  double times = 1.0;   ///< the busiest level takes as long as so many times the bytes
  double hops_s = 0.0;  ///< hops of a passage of the ring or the tree, or of a message

  auto operator<=>(const Congestion&) const = default;
};

/// Nodes that a group is on, in a stage whose groups lie one after the other.
struct NodeSpan {
  int nodes = 1;        ///< nodes of the group
  int extent = 1;       ///< nodes from its first to its last
  int first = 0;        ///< first node of the stage, counted from the border of a unit
  int stage_nodes = 1;  ///< a multiple of the extent
};

/// Congestion of a collective of all groups of a stage at once.
///
/// An extent of e nodes has e / n groups of n nodes each. The ring of each leaves a unit of m nodes
/// once, so of an extent with k of its nodes in a unit, and others elsewhere, min(e / n, k)
/// bandwidths of a node leave it together. In an all-to-all each node sends the share 1 - k / e.
/// Sums over the extents in a unit:
///
///   times = oversubscription max over units of sum / m, at least 1
///
/// A tree over the units has the hops.
Congestion congestion(const Profile& profile, const NodeSpan& span, bool all_to_all = false);

/// Congestion of a message between two nodes, when `senders` neighbouring nodes send at once.
Congestion congestion(const Profile& profile, int from, int to, int senders);

/// The node of a unit of the largest level at which a stage of so many nodes begins; 0 if units of
/// all levels are whole numbers of such stages or the reverse.
int first_in_unit(const Profile& profile, int first, int nodes);

/// The share of the bandwidth that passes over memory reach; `otherwise` if the profile has none.
double pass_efficiency(const Profile& profile, double otherwise);

/// Time of a collective over a group, or of a message: linear between measured sizes, latency below
/// the smallest, bandwidth of the last two above the largest; a group shape that was not measured
/// takes the ring formula from the nearest one. Without measured sizes, the line of the nearest
/// group in `transfers`; without that, by `networks`; without these, another kind's times
/// (`stand_ins`). 0 for a group of one.
///
/// Links as rings: with q ranks an all-gather of B bytes is q - 1 messages of B / q, a
/// reduce-scatter as much, an all-reduce twice that. By networks, over n nodes of r ranks each, the
/// ring's steps are n - 1 hops between nodes and q - n within them; a tree has the rate's
/// tree_share and for an all-reduce 2 (r - 1) hops within a node and 2 log2(n) between; the cheaper
/// counts. All groups of a node are taken to communicate at once: of a node's rate r ranks have r /
/// ranks_per_node.
///
/// @source  NCCL's own model of its algorithms (src/graph/tuning.cc)
/// @param   congestion  of a group over levels of the network
/// @throws Error(input) when a group of several ranks finds no link at all
double link_time(const Profile& profile, LinkKind kind, int nodes, int ranks_per_node, double bytes,
                 const Congestion& congestion = {});

/// Levels of the group's keys, where it has some, instead of the profile's.
void set_levels(Profile& profile, const deck::GroupKeys& group);

/// The slowest of the slow pairs among some nodes; null: none.
/// @param nodes  of the group, in rising order
const SlowPair* slowest_pair(const Profile& profile, std::span<const int> nodes);

/// Extra time of ranks that meet after each computation, as a share: from the row with the nearest
/// number of ranks, by ratio. 0 without rows, and for one rank.
double wait_share(const Profile& profile, int ranks);

/// A line for each kind of link that a profile with links lacks: whose times are taken instead.
std::vector<std::string> stand_ins(const Profile& profile);

double copy_time(const Profile& profile, CopyKind kind, double bytes);

const deck::Schema<Profile>& profile_schema();
/// @throws Error(input) when a list of the profile has another length than it must have
void check_sizes(const Profile& profile, const std::string& origin);

/// The profile of a group's machine: its device with the networks within and between its nodes, or
/// between them the group's own network.
///
/// @param group  with a machine
/// @throws Error(input)
Profile machine_profile(const deck::GroupKeys& group);

/// The keys of a network's file.
std::vector<deck::KeyText> network_keys();

/// @param name  a file, or the name of a profile that comes with the program (deck::shipped_path)
Profile load_profile(const std::string& name);

/// Writes under a temporary name and renames: jobs that share a folder never see half a file.
void save_profile(const Profile& profile, const std::string& path);

}  // namespace brume::hardware
