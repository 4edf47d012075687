/// @file The compiler of one rank's Program: its state, and the steps that its sources share.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/messages.hpp"
#include "schedule/compile.hpp"
#include "slots.hpp"

namespace brume::schedule {

using model::BlockKind;
using model::SegmentKind;

/// What a segment takes on this rank, in bytes.
struct SegmentBytes {
  std::vector<std::pair<std::string, std::int64_t>> saved;
  std::int64_t forward_workspace;
  std::int64_t backward_workspace;
};

/// Buffers of a block that live from step to step.
struct BlockBuffers {
  model::Layout layout;
  int weights = -1;
  int grads = -1;
  int moments = -1;       ///< part of the optimizer state that stays on the device
  int host_moments = -1;  ///< part that is kept on the host
  std::int64_t host_bytes = 0;
  std::int64_t shard_first = 0;  ///< this rank's part of the optimizer state, in the block
  std::int64_t shard_elements = 0;
};

/// Buffers one block keeps for the backward of one microbatch; -1: not kept.
struct Activations {
  std::map<SegmentKind, int> input;
  std::map<SegmentKind, std::vector<int>> saved;
  std::vector<int> on_host;  ///< offloaded tensors, in the order of model::kept_tensors
  bool drained = false;      ///< what offload moves is on its way
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
  Task& add_task(Channel channel, Operation operation, const Slot& slot);
  void operand(Role role, int buffer, bool reads, bool writes, int index = 0);
  void range(Role role, int buffer, std::int64_t first_byte, std::int64_t bytes, bool reads,
             bool writes, int index = 0);
  void keep_until_now(int buffer);

  // --- messages between stages ---
  void make_messages();
  const Messages& stream_messages(Channel channel) const {
    return channel == Channel::p2p_forward ? activation_messages_ : gradient_messages_;
  }

  // --- buffers that live from step to step ---
  void make_block_buffers(int block);
  void make_tied_buffers();

  // --- a slot: what it needs first, what it does, what it leaves ---
  bool receive(const Slot& slot);
  bool prefetch(const Slot& slot);
  void compute(const Slot& slot);
  void drain(const Slot& slot);
  void send_stream(const Slot& slot);
  std::optional<Channel> sends_on(const Slot& slot) const;
  std::optional<Channel> receives_on(const Slot& slot) const;

  void update(const Slot& slot);
  void forward(const Slot& slot);
  void forward_segments(const Slot& slot, Operation operation);
  void backward(const Slot& slot);
  void run_forward(const Slot& slot, SegmentKind kind, Operation operation, int input, int output,
                   std::vector<int>& saved);
  void run_backward(const Slot& slot, SegmentKind kind, int input, const std::vector<int>& saved);
  void tp_all_reduce(const Slot& slot, int buffer);
  void reduce_gradients(const Slot& slot);
  void clear_gradients(const Slot& slot);
  void finish();

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
  bool tied_across_stages() const { return model_.tied_head && plan_.num_stages() > 1; }
  Activations& activations(int microbatch, int block) { return activations_[{microbatch, block}]; }
  /// Buffers of the tensors that offload moves for a block, in order; may be assigned.
  std::vector<int*> movable(int microbatch, int block);

  const plan::Plan& plan_;
  const model::Config& model_;
  const Options& options_;
  plan::Place place_;
  const plan::Stage& stage_;
  plan::BlockRange range_;
  std::vector<model::Block> blocks_;
  std::map<SegmentKind, SegmentBytes> segments_;
  std::int64_t weight_bytes_;     ///< of an element
  std::int64_t optimizer_bytes_;  ///< of a parameter
  std::int64_t stream_bytes_ = 0;
  std::int64_t batch_bytes_ = 0;  ///< tokens of a microbatch
  /// Of a microbatch's activations and gradients [sequences]; of the tied table and its gradient.
  Messages activation_messages_, gradient_messages_, tied_weight_messages_, tied_grad_messages_;
  std::array<int, 2>
      num_moved_{};  ///< tensors that offload moves: of a full, of a recomputed layer

  Program program_;
  std::map<int, BlockBuffers> buffers_;
  int inputs_ = -1, targets_ = -1, loss_ = -1, totals_ = -1;
  int tied_weights_ = -1, tied_grads_ = -1;
  std::int64_t table_first_ = 0, table_elements_ = 0;  ///< token table within its flat block
  std::map<std::pair<int, int>, Activations> activations_;
  std::map<int, int> stream_;    ///< by microbatch: output of the last block that ran
  std::map<int, int> gradient_;  ///< by microbatch: gradient of the stream
  std::map<int, int> staged_;    ///< by block: optimizer state on its way
};

}  // namespace brume::schedule
