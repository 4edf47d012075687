/// @file Adds buffers and tasks to a Program, each whole in one call.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "context.hpp"
#include "schedule/program.hpp"

namespace brume::schedule {

/// Elements of a block's flat layout.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
Range overlap(Range a, Range b);

/// Bytes of a buffer; all of it unless said otherwise.
struct Part {
  Part(BufferId whole) : buffer(whole) {}
  Part(BufferId of, std::int64_t first, std::int64_t count)
      : buffer(of), first_byte(first), bytes(count) {}

  static constexpr std::int64_t all = -1;
  BufferId buffer;
  std::int64_t first_byte = 0;
  std::int64_t bytes = all;
};

Operand reads(Role role, Part part, int index = 0);
Operand writes(Role role, Part part, int index = 0);
Operand updates(Role role, Part part, int index = 0);  ///< reads and writes

/// The same elements in two buffers, from one to the other. Nothing where there are no elements.
struct Move {
  BufferId source, destination;
  Range part;
};

/// What of a task does not follow from its slot, its operation and its operands.
struct TaskDetails {
  SegmentKind segment = SegmentKind::embedding;
  int run = 0;
  Phase phase = Phase::train;  ///< of a task of an update: `update`, unless it is `both`
  model::AxisSet group = {};
  int peer = -1;
  Channel channel = Channel::compute;  ///< of a message; of others it follows
  bool replaces = false;
  bool in_fp32 = false;
  std::int64_t row_bytes = 0;
};

class ProgramBuilder {
 public:
  explicit ProgramBuilder(const Context& context) : context_(context) {
    program_.rank = context.rank;
  }

  BufferId add(std::string name, Tier tier, Content content, std::int64_t bytes, int block,
               bool persistent = false, Range part = {});
  /// A buffer for a part of a block's weights, gradients or optimizer state: "layers.3.grads".
  BufferId add_part(std::string_view what, Tier tier, Content content, Range part, int block,
                    bool persistent = false);
  /// A buffer on the device for what a slot makes: "layers.3.qkv#5".
  BufferId add_made(const Slot& slot, std::string_view what, Content content, std::int64_t bytes);

  /// Adds a task with all its operands; the lives of their buffers last until here.
  void add(const Slot& slot, Operation operation, std::vector<Operand> operands,
           const TaskDetails& details = {});
  void send(const Slot& slot, Channel channel, int peer, Part part);
  void receive(const Slot& slot, Channel channel, int peer, Part part);
  void keep_until_now(BufferId buffer);

  /// What a buffer holds of a part of its block's layout.
  Part elements(BufferId buffer, Range part) const;
  /// Pairs of source and destination.
  /// @param adds  to what is at the destination, or replaces it
  std::vector<Operand> moves(const std::vector<Move>& moves, bool adds = false) const;

  Buffer buffer(BufferId id) const { return program_.buffer(id); }
  Program take() { return std::move(program_); }

 private:
  Channel channel(Operation operation, const TaskDetails& details) const;
  Buffer& at(BufferId id) { return program_.buffers[std::size_t(id)]; }
  std::int64_t element_bytes(Content content) const;
  std::int64_t bytes(Content content, Range part, int block) const;

  const Context& context_;
  Program program_;
};

}  // namespace brume::schedule
