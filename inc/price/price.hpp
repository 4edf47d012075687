/// @file Prices: how long one rank takes for one piece of work by itself, from its group's profile.
///
/// A price stands once. The simulation takes these numbers for the tasks of a Program, the analyzer
/// takes them as functions that its expressions call. Each is the work alone, in seconds; `task_s`
/// adds what a task takes beside its work.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::price {

/// Seconds of tasks that follow each other, or of one: their work and, for each of them, the
/// hand-over between channels.
///
///   tasks task_overhead_s + work_s
///
/// @param work_s  [s] of all of them together
double task_s(const hardware::Profile& profile, double work_s, int tasks = 1);

// --- what a rank computes -----------------------------------------------------------------------

/// A recompute is a forward that does not make the output of a layer's last segment. A backward
/// makes again what is cheap; of a layer that stores that (model::Recompute::none) it does not. In
/// two parts it makes first the gradients of the stream and of norms, whether or not the layer
/// stores anything, then those of linear layers, for which it makes again what is cheap.
enum class Pass {
  forward,
  backward,
  recompute,
  stored_backward,
  backward_input,
  backward_weights,
  stored_backward_weights
};

inline constexpr int all_runs = -1;

/// Seconds of one segment on one rank, without its tensor-parallel collectives: the sum of its
/// operators, under tensor parallelism `1 + w` times as long, where `w` is what the slowest of `tp`
/// ranks takes beyond their mean. What a stored backward does not make again takes as long as in
/// the forward, at least as a copy: where products make it the forward's pass costs nothing.
/// Of the parts of a backward the second has half of each product, both halves being as many FLOPs,
/// what makes again what is cheap, and the gradients of biases; together they take as long as one.
///
/// @param run  index of a run between exchanges, whose operators alone are counted
double segment_s(const model::Config& model, const hardware::Profile& profile,
                 model::SegmentKind kind, Pass pass, const model::Split& split, int run = all_runs);

/// Seconds of one layer's attention to kept keys, a part of the forward of its segment.
/// @param model  Config::generates(), whose seq_len is the keys that a token sees
double cached_attention_s(const model::Config& model, const hardware::Profile& profile,
                          model::SegmentKind kind, const model::Split& split);

/// Seconds of the optimizer step over `elements` parameters on one rank; of whole matrices those of
/// making the directions.
double optimizer_s(const model::Config& model, const hardware::Profile& profile, double elements,
                   model::UpdateUnit unit = model::UpdateUnit::element);

/// Seconds of the step of a block's whole matrices along their directions. Each rank makes
/// orthogonal the matrices of which its shard has a part; all wait for the one with most of them.
///
///   5 (product of [m, n] and [n, m], of [m, m] and [m, m], of [m, m] and [m, n]) and passes over
///   memory
double matrix_step_s(const model::Config& model, const hardware::Profile& profile,
                     const model::Block& block, const model::Split& split, int shards);

/// Whether the node's processor works beside the device: not where ranks compute on it themselves,
/// nor where a profile does not know.
bool host_is_apart(const hardware::Profile& profile);
/// The same step by the node's processor, of all ranks of the node at once:
///
///   elements / host_updates_per_s
///
/// If the host is not apart, it uses compute's time, and its price is at least that of a step with
/// the copies that it saves.
double host_update_s(const model::Config& model, const hardware::Profile& profile, double elements);

// --- passes over the device's memory ------------------------------------------------------------
// A pass reads or writes `bytes` once, at the measured bandwidth of memory. Without a measured
// bandwidth passes cost nothing.

/// Seconds of a copy from one place on the device to another: one read, one write.
double copy_s(const hardware::Profile& profile, double bytes);
/// Seconds of adding gradients to others: two reads, one write.
double accumulate_s(const hardware::Profile& profile, double bytes);
/// Seconds of setting gradients to zero, which is priced as adding is.
double clear_s(const hardware::Profile& profile, double bytes);
/// Seconds of the squared norm of gradients: one read.
double norm_s(const hardware::Profile& profile, double bytes);

// --- copies between device, host and disk -------------------------------------------------------

double copy_in_s(const hardware::Profile& profile, double bytes);     ///< host to device
double copy_out_s(const hardware::Profile& profile, double bytes);    ///< device to host
double disk_read_s(const hardware::Profile& profile, double bytes);   ///< disk to host
double disk_write_s(const hardware::Profile& profile, double bytes);  ///< host to disk

// --- transfers between ranks --------------------------------------------------------------------

/// The ranks of a collective: how many nodes they are on, and how many of them are on each.
struct Ranks {
  int nodes = 1;
  int per_node = 1;
  double times = 1.0;  ///< slowdown against most node pairs, see times_as_long
  int extent = 1;      ///< nodes from the first to the last
  int first = 0;       ///< hardware::NodeSpan::first, and the next one likewise
  int stage_nodes = 1;

  auto operator<=>(const Ranks&) const = default;
};
/// A group of a stage's ranks.
/// @param first  node of a unit of the network at which the stage begins
Ranks ranks(const plan::Stage& stage, model::AxisSet axes, int first = 0);
/// The node at which a stage of a plan begins, as hardware::first_in_unit counts.
int first_in_unit(const plan::Plan& plan, const hardware::Machine& machine, int stage);
/// All ranks of a plan, as nodes of this profile hold them.
Ranks world_ranks(const hardware::Profile& profile, int devices);

/// The node that a rank of a plan is on, as profiles count nodes.
plan::Node node_of(const plan::Plan& plan, const hardware::Machine& machine, int rank);

/// How many times as long as between most nodes what some nodes of a group exchange takes: their
/// slowest pair holds the others up.
/// @param nodes  in rising order
double times_as_long(const hardware::Profile& profile, std::span<const int> nodes);
/// The same of the nodes that ranks of a plan are on.
double times_as_long(const plan::Plan& plan, const hardware::Machine& machine,
                     std::span<const int> ranks);

enum class Collective {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all  ///< each rank sends as many bytes as in an all-gather's ring, whose price it has
              ///< within a node; a ring brings bytes to a node once, messages for each rank there
};

/// Seconds of a collective; 0 for a single rank.
/// @param bytes  of the whole buffer
double collective_s(const hardware::Profile& profile, Collective collective, Ranks ranks,
                    double bytes);

/// Seconds of a message between two ranks of a group.
/// @param leaves_node  whether the two are on different nodes
double send_s(const hardware::Profile& profile, bool leaves_node, double bytes,
              const hardware::Congestion& congestion = {});

/// The two ends of a message between ranks of a plan.
struct Ends {
  int group = 0;  ///< group of the machine of the task's rank
  int peer_group = 0;
  bool leaves_node = false;              ///< leaves the node, within a group
  double times = 1.0;                    ///< slowdown against most node pairs, see times_as_long
  hardware::Congestion congestion = {};  ///< all nodes of the sender's stage send at once

  auto operator<=>(const Ends&) const = default;
};
Ends ends(const plan::Plan& plan, const hardware::Machine& machine, int rank, int peer);

/// Seconds of a message: by the link between two groups, else by the group's own profile.
double send_s(const hardware::Machine& machine, const Ends& ends, double bytes);

// --- for people ---------------------------------------------------------------------------------

/// An operator of a layer under a profile: its times, and where each comes from.
struct OperatorPrice {
  std::string part;  ///< part of the model
  std::string kind;
  std::vector<std::int64_t> dims;
  hardware::Time forward;
  hardware::Time backward;
};

/// Operators of all segments and the update of a layer, for each (b, tp) of the plan on a group.
std::vector<OperatorPrice> operator_prices(const plan::Plan& plan, const model::Config& model,
                                           const hardware::Machine& machine);

/// How many times are measured, interpolated and by roofline, and each of them.
std::string price_table(const std::vector<OperatorPrice>& prices);

}  // namespace brume::price
