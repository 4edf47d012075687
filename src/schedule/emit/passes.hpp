/// @file What a slot computes: a block's update, its forward, its backward.
#pragma once

#include <functional>
#include <optional>

#include "stores.hpp"

namespace brume::schedule {

class Passes : Store {
 public:
  Passes(const Store& store, Stores& stores) : Store(store), stores_(stores) {}

  /// @param next  the next slot, where its first input may be brought together; else nullptr
  void run(const Slot& slot, const Slot* next);

 private:
  void update(const Slot& slot);
  /// Steps whole matrices, if the block has any.
  void matrix_step(const Slot& slot, Part weights);
  void forward(const Slot& slot, const Slot* next);
  void backward(const Slot& slot, const Slot* next);
  void weights(const Slot& slot, const Slot* next);
  void segments_forward(const Slot& slot, Operation operation, const Slot* next);
  BufferId make_output(const Slot& slot, SegmentKind kind, const char* name);
  void bring(const Slot& slot, SegmentKind kind);
  void bring_first_beside(const Slot& slot, const Slot* next);
  void bring_gradient(const Slot& slot, SegmentKind kind);
  void later_pieces(const Slot& slot);
  /// Buffers in which a pass over a segment has its tensors.
  struct Scratch {
    BufferId workspace = BufferId::none;
    BufferId products = BufferId::none;  ///< gradients of products; none: first in the workspace
  };
  void bring_beside(const std::vector<model::Run>& runs, std::function<void()> bring);
  void add_runs(const Slot& slot, Operation operation, std::vector<Operand> operands,
                const TaskDetails& details, const Scratch& scratch);
  Part part(const Slot& slot, SegmentKind kind, const TensorPlace& place,
            const Scratch& scratch) const;
  std::vector<Operand> beside_exchange(const Slot& slot, const TaskDetails& of_run,
                                       const std::vector<RunPlace>& places,
                                       std::vector<Operand> operands, const Scratch& scratch) const;
  void exchange(const Slot& slot, const SegmentExchange& exchange, SegmentKind kind,
                const Scratch& scratch);
  void run_forward(const Slot& slot, SegmentKind kind, Operation operation, BufferId output,
                   int piece = 0);
  void run_backward(const Slot& slot, SegmentKind kind, int piece = 0);
  void run_tiles_backward(const Slot& slot, SegmentKind kind);
  void run_backward_input(const Slot& slot, SegmentKind kind);
  void run_backward_weights(const Slot& slot, SegmentKind kind);
  void run_loss(const Slot& slot, int piece);

  std::int64_t all_tokens() const { return context_.batch_bytes / model::token_bytes; }
  std::int64_t tokens_of(SegmentKind kind, int piece) const;
  Part stream(BufferId buffer, SegmentKind kind, int piece) const;
  Part tokens(BufferId buffer, const Slot& slot, SegmentKind kind, int piece = 0) const;
  Operand input(const Slot& slot, SegmentKind kind, int piece);
  Operand loss(bool first) const;
  void add_normed(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind);
  void add_grads(std::vector<Operand>& operands, const Slot& slot, bool replaces);
  void add_cache(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind);
  void add_saved(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind) const;
  void add_documents(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind);
  BufferId add_workspace(std::vector<Operand>& operands, const Slot& slot, std::int64_t bytes);

  Stores& stores_;
  std::function<void()> beside_;  ///< brings an input together, if it has to wait for a run
  std::optional<BufferId> whole_gradient_;  ///< of the output of the segment that comes next
};

}  // namespace brume::schedule
