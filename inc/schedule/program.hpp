/// @file The Program of one rank: tasks on channels, what they wait for, the buffers they touch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "model/model.hpp"

namespace brume::schedule {

/// Tasks of one channel run in order; channels run beside each other.
enum class Channel : std::uint8_t {
  compute,
  collective_tp,
  collective_dp,  ///< apart from tp: a gradient reduction never stands before a layer's all-reduce
  // Each p2p channel is acyclic in stage order, so none can deadlock, but for a tied table's first
  // message and its gradient's last one.
  p2p_forward,   ///< activations; after them all, from the last stage to the first, that gradient
  p2p_backward,  ///< gradients; before them all, from the first stage to the last, that table
  h2d,
  d2h,
  disk,  ///< reads and writes, between host memory and the disk
  host,  ///< work of the CPU next to a device
};
inline constexpr int num_channels = 9;
const char* name(Channel channel);

enum class Tier : std::uint8_t { device, host, disk };
inline constexpr int num_tiers = 3;
using Arenas = std::array<std::int64_t, num_tiers>;  ///< bytes of a rank, by tier
/// Arenas in which Programs with either fit, one at a time.
Arenas largest(Arenas a, const Arenas& b);

/// Content of a buffer.
enum class Content : std::uint8_t {
  weights,
  grads,
  optimizer,
  stream,
  saved,
  workspace,
  staging,
  batch,
  totals,
  cache,
};

const char* name(Content content);

/// It says where a buffer stands in Program::buffers.
enum class BufferId : int { none = -1 };

struct Buffer {
  std::string name;  ///< "layers.3.grads", "layers.3.qkv#5" (of microbatch 5)
  Tier tier;
  Content content;
  std::int64_t bytes;
  bool persistent = false;  ///< lives from step to step; else from its first to its last task
  int block = -1;           ///< model block it belongs to
  std::int64_t first_element = 0;  ///< start of its content in the block's flat layout
  std::int64_t elements = 0;       ///< elements of that layout
  int first_task = -1;             ///< first task of its life, in the order of Program::tasks
  int last_task = -1;
  std::int64_t offset = -1;  ///< offset in the arena of its tier; place() sets it
};

enum class Operation : std::uint8_t {
  forward,         ///< a segment: input -> output, saved
  backward,        ///< a segment: output gradient -> input gradient (same buffer), weight gradients
  backward_input,  ///< the first part of one: output gradient -> input gradient, gradients of norms
  backward_weights,  ///< the second part: gradients of linear layers
  recompute,         ///< forward again for what it saves; without an output when nobody needs it
  loss,              ///< the head's forward with tp > 1, from the statistics of all tp ranks
  all_reduce,
  reduce_scatter,  ///< works in place; with a second operand, the rank's shard ends there
  all_to_all,      ///< parts of equal size: part i goes to rank i of the group
  send_rows,       ///< rows to the ranks of a token's experts, as many as the routes say
  return_rows,     ///< the way back
  all_gather,      ///< works in place; with a second operand, the rank's shard comes from there
  send,
  recv,
  copy_in,     ///< host -> device
  copy_out,    ///< device -> host
  read,        ///< disk -> host
  write,       ///< host -> disk
  copy,        ///< device -> device
  clear,       ///< gradients of a block become zero
  accumulate,  ///< destination += source
  norm,        ///< this rank's share of a block's squared gradient norm, and of the loss
  optimizer_step,
  host_step,    ///< the same by the node's processor, in host memory
  matrix_step,  ///< steps whole matrices, of which optimizer_step has made the directions only
};
const char* name(Operation operation);
/// Whether it is a forward, a backward or a part of one, or a recompute.
bool computes_segment(Operation operation);

/// Tasks of phase `update` apply the last iteration's gradients: the executor skips them while
/// there are none, and runs them alone when weights must be final (checkpoint, evaluation, end).
/// Tasks of phase `both` bring together weights that the update changes and the first forward uses.
enum class Phase : std::uint8_t { train, update, both };

/// Role of an operand in its task.
enum class Role : std::uint8_t {
  input,     ///< residual stream into the segment [N, C]; tokens for the embedding
  output,    ///< residual stream out of it; of a head, in generation, logits
  gradient,  ///< gradient of the stream: d output on entry, d input on return; d output alone if
             ///< the task has `output`, which is d input
  normed,    ///< gathered inputs of a segment's products, if they are not saved, by their exchanges
  products,  ///< gradients of what a segment's products make, from the first part to the second
  saved,     ///< the segment's saved tensors, numbered as in model::Segment
  weights,   ///< flat block; index 1: the tied token table. In an update: the part that is stepped,
             ///< index 0 on the device, index 1 in CPU memory
  grads,     ///< flat block; index 1: the gradient of the tied token table. In an update as weights
  moments,   ///< first and second moments, side by side, in the same two parts
  directions,  ///< directions of whole matrices: flat block; index 1: parts of all tp ranks. None:
               ///< they take the gradients' place
  workspace,
  targets,    ///< tokens to predict, for the head
  documents,  ///< start of each token's document, if the segment needs it
  cache,      ///< a layer's key cache, in generation
  sequences,  ///< sequence of each token, in generation
  tables,     ///< blocks of each sequence in the key cache
  loss,       ///< this rank's part of {loss, misses} so far, doubles; of pairs, then that of each
              ///< of its sequences [microbatch, sequence]
  totals,     ///< {loss, squared gradient norm} of the iteration, doubles
  source,
  destination,
};

struct Operand {
  Role role;
  BufferId buffer;
  std::int64_t first_byte;  ///< first byte of the range within the buffer
  std::int64_t bytes;
  bool reads;
  bool writes;
  int index = 0;  ///< index of a saved tensor, or of a pair of source and destination
};

struct Task {
  Channel channel;
  Operation operation;
  Phase phase = Phase::train;
  model::SegmentKind segment = model::SegmentKind::embedding;
  int run = 0;     ///< index of a run between the exchanges of a segment
  int block = -1;  ///< model block; of a tied table's messages TiedPart
  int microbatch = -1;
  model::AxisSet group = {};   ///< axes of a collective; empty: none
  int peer = -1;               ///< rank in the job, of send and recv
  bool backward_pass = false;  ///< part of a backward pass, for the peaks
  bool replaces = false;       ///< the first contribution to gradients, loss or totals: replace
  bool in_fp32 = false;        ///< an exchange of fp32 whatever the precision
  std::int64_t row_bytes = 0;  ///< bytes of a row that ranks send each other
  std::vector<Operand> operands{};
  std::vector<int> waits{};  ///< tasks on other channels that must be done first

  const Operand* find(Role role, int index = 0) const;
  const Operand& at(Role role, int index = 0) const;  ///< @throws Error(bug) when there is none
};

/// Numbers in place of a block for messages of a tied table and of its gradient.
enum TiedPart { tied_ahead = -1, tied_rest = -2 };

std::string label(const Task& task);  ///< "backward block 3 mlp, microbatch 5"
/// Bytes that a task moves, updates or clears; 0 for passes over segments.
std::int64_t amount_bytes(const Task& task);

using brume::Span;

/// Everything one rank does in an iteration.
struct Program {
  int rank = 0;
  std::vector<Buffer> buffers;
  std::vector<Task> tasks;                    ///< tasks in an order that one thread could run
  Arenas arena_bytes{};                       ///< set by place(), guards included
  Arenas live_peak_bytes{};                   ///< largest sum of live buffers
  std::int64_t live_peak_forward_bytes = 0;   ///< device, over forward passes and updates
  std::int64_t live_peak_backward_bytes = 0;  ///< device, over backward passes

  const Task& task(int id) const { return tasks[std::size_t(id)]; }
  const Buffer& buffer(BufferId id) const { return buffers[std::size_t(id)]; }
  const Buffer& buffer(const Operand& operand) const { return buffer(operand.buffer); }
};

}  // namespace brume::schedule
