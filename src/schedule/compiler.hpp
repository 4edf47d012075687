/// @file The compiler of one rank's Program: its state, and the steps that its sources share.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/messages.hpp"
#include "plan/rules.hpp"
#include "schedule/compile.hpp"
#include "slots.hpp"

namespace brume::schedule {

using model::BlockKind;
using model::SegmentKind;

/// Sizes of the buffers that a segment takes on this rank, in bytes.
struct SegmentBuffers {
  std::vector<std::pair<std::string, std::int64_t>> saved;
  std::int64_t forward_workspace;
  std::int64_t backward_workspace;
};

/// Elements of a block's flat layout.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
Range overlap(Range a, Range b);

/// What a rank keeps of a block from step to step: the first elements on the device, the next ones
/// on the host, the last ones on disk. A buffer is -1 where there are none.
struct Held {
  Range device, host, disk;
  int device_buffer = -1, host_buffer = -1, disk_buffer = -1;

  Range offloaded() const { return {host.first, host.count + disk.count}; }
  Range all() const { return {device.first, device.count + offloaded().count}; }
};

/// One block's state.
struct BlockState {
  model::Layout layout;
  Range whole;
  Range shard;  ///< what this rank updates: its part under ZeRO, else all
  Held weights, grads, moments;
  bool weights_staged;  ///< kernels work on a whole copy of the weights, assembled for a slot
  bool grads_staged;    ///< a backward writes a buffer of its own, which is added up afterwards
};

/// Gradients of a microbatch on their way from a backward to where they are kept.
struct Gradients {
  Slot slot;
  int fresh = -1;   ///< what the backward wrote; -1: it wrote where they are kept
  int staged = -1;  ///< earlier microbatches' part that is kept on the host, come to the device
};

/// Buffers one block keeps for the backward of one microbatch; -1: not kept.
struct Activations {
  std::map<SegmentKind, int> input;  ///< with tp > 1 this rank's shard
  std::map<SegmentKind, int> whole;  ///< with tp > 1: inputs that are brought together right now
  std::map<SegmentKind, std::vector<int>> saved;
  std::vector<int> on_host;  ///< offloaded tensors, in the order of model::kept_tensors
  std::vector<int> on_disk;  ///< the first of them, when they are written and not read again
  bool drained = false;      ///< what offload moves is on its way
};

/// What a copy out brings to host memory for the disk to take.
struct Unwritten {
  Slot slot;
  std::vector<int> staged;
};

/// A stream that a pass, which ends with this slot, has sent.
struct Sent {
  Slot slot;
  int buffer;
};

/// One rank's messages, in the order in which it sends and receives them.
struct Messages {
  void add(const std::vector<plan::Message>& all, int rank);  ///< those of the rank
  std::vector<plan::Message> sends, receives;
};

class Compiler {
 public:
  Compiler(const plan::Plan& plan, const model::Config& model, int rank, const Options& options);
  Program compile();

 private:
  // --- building: one buffer, one task, one operand ---
  int add_buffer(std::string name, Tier tier, Content content, std::int64_t bytes, int block,
                 bool persistent = false);
  /// A buffer for a part of a block's weights, gradients or optimizer state.
  int add_part(const char* what, Tier tier, Content content, Range part, int block,
               bool persistent = false);
  Task& add_task(Channel channel, Operation operation, const Slot& slot);
  void operand(Role role, int buffer, bool reads, bool writes, int index = 0);
  void range(Role role, int buffer, std::int64_t first_byte, std::int64_t bytes, bool reads,
             bool writes, int index = 0);
  /// The part of a block's weights or gradients that lies in `part` of its layout.
  void elements(Role role, int buffer, Range part, bool reads, bool writes, int index = 0);
  /// A source and a destination operand for the same elements, if there are any.
  void pair(int source, int destination, Range part, bool adds = false);
  /// The same for optimizer state, whose numbers of an element lie apart.
  void pair_moments(int source, int destination, Range part);
  void keep_until_now(int buffer);

  // --- messages between stages ---
  void make_messages();
  const Messages& stream_messages(Channel channel) const {
    return channel == Channel::p2p_forward ? activation_messages_ : gradient_messages_;
  }

  // --- buffers that live from step to step ---
  void make_block_state(int block);
  Held hold(int block, Content content, Range range, double offloaded, double on_disk = 0.0);
  std::int64_t element_bytes(Content content) const;
  void make_tied_buffers();

  // --- a slot: what it needs first, what it does, what it leaves ---
  bool receive(const Slot& slot);
  void exchange_ahead(const Slot& slot);
  bool prefetch(const Slot& slot);
  bool prefetch_activations(const Slot& slot);
  void compute(const Slot& slot);
  void drain(const Slot& slot);
  void send_stream(const Slot& slot);
  void drain_activations(const Slot& slot);
  void read(const Slot& slot);
  void write_out(std::size_t count);
  std::optional<Channel> sends_on(const Slot& slot) const;
  std::optional<Channel> receives_on(const Slot& slot) const;

  // --- weights and optimizer state that are sharded or offloaded ---
  std::vector<int> weights_of(const Slot& slot) const;
  int weights(int block) const;
  void prefetch_weights(const Slot& slot);
  void assemble(const Slot& slot, Range part);
  void gather_weights(const Slot& slot);
  void release_weights(const Slot& slot, const Slot* next);
  int stage_grads(const Slot& slot, Range part);
  void stage_moments(const Slot& slot);
  void prefetch_update(const Slot& slot);
  bool stored_after_gather() const;
  void store_weights(const Slot& slot);
  void drain_update(const Slot& slot);

  // --- gradients: from a backward to where they are kept ---
  int grads(int block) const;
  bool prefetch_gradients(const Slot& slot);
  void make_gradients(const Slot& slot);
  void leave_gradients(const Slot& slot);
  void add_kept_gradients(const Gradients& gradients);
  bool reduce_gradients(const Slot& slot);
  void settle(int block);
  void store_gradients(const Gradients& gradients);
  void norm(const Slot& slot, int buffer);
  std::vector<int> leaving() const;
  void copy_out_gradients(const std::vector<int>& blocks);

  void update(const Slot& slot);
  void forward(const Slot& slot);
  void forward_segments(const Slot& slot, Operation operation);
  void backward(const Slot& slot);
  void run_forward(const Slot& slot, SegmentKind kind, Operation operation, int input, int output,
                   const std::vector<int>& saved, int piece = 0);
  void run_backward(const Slot& slot, SegmentKind kind, int input, const std::vector<int>& saved,
                    int piece = 0);
  std::vector<int> make_saved(const Slot& slot, SegmentKind kind);
  void later_pieces(const Slot& slot);
  Range of_piece(SegmentKind kind, int piece, std::int64_t bytes) const;
  void stream_operand(Role role, SegmentKind kind, int piece, int buffer, bool reads, bool writes);
  void targets_operand(const Slot& slot, int piece);
  void loss_operand(const Slot& slot, int piece);
  void run_loss(const Slot& slot, const std::vector<int>& saved, int piece);
  void finish();

  // --- the stream between segments: with tp > 1 a shard of its tokens on each rank ---
  int add_stream(const Slot& slot, const char* what, std::int64_t bytes);
  int gather(const Slot& slot, int shard);
  int scatter(const Slot& slot, int part, const char* what);
  void sum_gradient(const Slot& slot, bool last_segment);
  int whole_input(const Slot& slot, SegmentKind kind);
  void gather_beside(const Slot& slot, SegmentKind kind);
  void gather_next();
  void release_shard();

  /// Rows of this rank's part of the token table, within its flat block.
  Range table_rows(std::int64_t first, std::int64_t count) const {
    return {table_.first + first * model_.hidden_size, count * model_.hidden_size};
  }
  void table_operand(Role role, bool reads, bool writes);
  void send_tied_weights(const Slot& slot);
  void receive_tied_weights();
  void send_tied_gradients(const Slot& slot);
  void receive_tied_gradients(const Slot& slot);

  std::vector<SegmentKind> segment_kinds(int block) const {
    return model::segment_kinds(model_, blocks_[std::size_t(block)].kind);
  }
  bool is_layer(int block) const { return blocks_[std::size_t(block)].kind == BlockKind::layer; }
  bool is_head(int block) const { return blocks_[std::size_t(block)].kind == BlockKind::head; }
  bool recomputes(int block) const;
  bool offloads(int block) const;
  bool last_stage() const { return place_.stage == plan_.num_stages() - 1; }
  bool runs_ahead() const {
    return options_.overlap && plan_.run_ahead > 1 && plan_.microbatches > 2;
  }
  bool tied_across_stages() const { return model_.tied_head && plan_.num_stages() > 1; }
  bool tied_within_stage() const { return model_.tied_head && plan_.num_stages() == 1; }
  bool last_microbatch(const Slot& slot) const { return slot.microbatch == plan_.microbatches - 1; }
  Activations& activations(int microbatch, int block) { return activations_[{microbatch, block}]; }
  /// Buffers of the tensors that offload moves for a block, in order; may be assigned.
  std::vector<int*> movable(int microbatch, int block);

  const plan::Plan& plan_;
  const model::Config& model_;
  const Options& options_;
  plan::Place place_;
  const plan::Stage& stage_;
  plan::BlockRange range_;
  const plan::Sharded<bool> sharded_;
  std::vector<model::Block> blocks_;
  std::map<SegmentKind, SegmentBuffers> segments_;
  std::int64_t weight_bytes_;     ///< of an element
  std::int64_t optimizer_bytes_;  ///< of a parameter
  std::int64_t stream_bytes_ = 0;
  std::int64_t token_stream_bytes_ = 0;  ///< C elements
  std::int64_t shard_bytes_ = 0;         ///< of the stream, on one tensor-parallel rank
  std::int64_t batch_bytes_ = 0;         ///< tokens of a microbatch
  std::int64_t piece_tokens_ = 0;  ///< of a piece in which the head works, but for the last one
  int num_pieces_ = 1;
  /// Of a microbatch's activations and gradients [sequences]; of the tied table and its gradient.
  Messages activation_messages_, gradient_messages_, tied_weight_messages_, tied_grad_messages_;
  /// What a layer keeps, in the order in which offload takes it, and how many tensors that moves.
  struct KeptTensors {
    std::vector<std::pair<SegmentKind, int>> order;  ///< as model::Kept
    int moved = 0;
    int to_disk = 0;  ///< of those moved
  };
  std::array<KeptTensors, 2> kept_;  ///< of a full, of a recomputed layer

  Program program_;
  std::map<int, BlockState> state_;
  int inputs_ = -1, targets_ = -1, loss_ = -1, totals_ = -1;
  int tied_weights_ = -1, tied_grads_ = -1;
  Range table_;  ///< this rank's part of the token table within its flat block, of the size of the
                 ///< largest part
  std::map<std::pair<int, int>, Activations> activations_;
  const Slot* next_ = nullptr;  ///< the next slot, while what it reads may be brought together
  std::vector<Sent> leaving_streams_;  ///< where stages run further ahead
  int shard_beside_ = -1;              ///< of what is brought together beside the segment at work
  std::map<int, int> stream_;          ///< by microbatch: output of the last block that ran
  std::map<int, int> gradient_;        ///< by microbatch: gradient of the stream
  // By block:
  std::map<int, int> assembled_;                 ///< whole weights, for the slots that use them
  std::map<int, int> staged_moments_;            ///< for its update
  std::map<int, int> read_moments_;              ///< of these, what came from the disk
  std::map<int, int> staged_grads_;              ///< for its update, or for the next backward
  std::map<int, int> fresh_grads_;               ///< what the backward at work writes
  std::map<int, Gradients> unsettled_;           ///< being reduced
  std::map<int, std::pair<Slot, int>> leaving_;  ///< gradients that go to the host
  std::map<int, int> summed_;  ///< the last microbatch whose gradients left for the host
  std::vector<Unwritten> unwritten_;
  bool norm_begun_ = false;
};

}  // namespace brume::schedule
