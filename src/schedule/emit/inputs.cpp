/// @file Inputs of segments and gradients of their outputs, as several ranks bring them together.
#include "passes.hpp"

namespace brume::schedule {

/// Brings a segment's input together: of the head the stream; of a layer's segment each rank norms
/// its tokens before. A backward does so again if the layer does not keep the normed tokens.
void Passes::bring(const Slot& slot, SegmentKind kind) {
  Activations& kept = stores_.activations;
  const SegmentBytes& bytes = context_.segments.at(kind);
  if (bytes.brought.empty()) {
    kept.use(slot, kind);
    return;
  }
  const bool again = kept.has_saved(slot, kind);
  if (kept.normed(slot, kind) != nullptr || (again && !bytes.brings_again)) return;
  kept.make_saved(slot, kind);
  const std::vector<BufferId>& saved = kept.saved(slot, kind);
  std::vector<BufferId> made;
  for (const BroughtTensor& tensor : bytes.brought) {
    const bool keeps = tensor.saved >= 0 && saved[std::size_t(tensor.saved)] != BufferId::none;
    if (again && keeps) return;
    const auto run = int(&tensor - bytes.brought.data());
    std::vector<Operand> operands{input(slot, kind, 0),
                                  reads(Role::weights, stores_.weights.use(slot.block))};
    for (const int index : tensor.statistics) {
      const BufferId statistic = saved[std::size_t(index)];
      operands.push_back(again ? reads(Role::saved, statistic, index)
                               : writes(Role::saved, statistic, index));
    }
    const BufferId normed =
        keeps ? saved[std::size_t(tensor.saved)] : stores_.streams.make(slot, kind, "normed");
    operands.push_back(keeps ? writes(Role::saved, normed, tensor.saved)
                             : writes(Role::normed, normed, run));
    if (!keeps) made.push_back(normed);
    const Operation backward =
        context_.splits(slot.block) ? Operation::backward_input : Operation::backward;
    const Operation operation = slot.kind == Slot::Kind::forward ? Operation::forward
                                : again                          ? backward
                                                                 : Operation::recompute;
    build_.add(slot, operation, std::move(operands), {.segment = kind, .run = run});
    build_.add(slot, Operation::all_gather, {updates(Role::destination, normed)},
               {.segment = kind, .group = bytes.sum_axes});
  }
  if (!made.empty()) kept.put_normed(slot, kind, std::move(made));
}

/// The same for the next slot's first segment, if it is another layer's or microbatch's backward
/// and compute waits for nothing that is on its way there.
void Passes::bring_first_beside(const Slot& slot, const Slot* next) {
  if (next == nullptr || next->kind != Slot::Kind::backward) return;
  if (next->block == slot.block && next->microbatch == slot.microbatch) return;
  const bool assembles = next->block != slot.block && persistent_.block(next->block).weights_staged;
  if (assembles || context_.offloads(next->block)) return;
  const std::vector<SegmentKind> kinds = context_.segment_kinds(next->block);
  bring(*next, context_.recomputes(next->block) ? kinds.front() : kinds.back());
}

/// Brings the gradient of the output together, if a segment's products read it.
void Passes::bring_gradient(const Slot& slot, SegmentKind kind) {
  if (whole_gradient_ || (!context_.segments.at(kind).sums && kind != SegmentKind::embedding))
    return;
  whole_gradient_ = stores_.streams.gather(slot, kind, stores_.streams.use(slot));
}

void Passes::add_normed(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind) {
  const std::vector<BufferId>* const normed = stores_.activations.normed(slot, kind);
  if (normed == nullptr) return;
  for (std::size_t i = 0; i < normed->size(); ++i)
    operands.push_back(reads(Role::normed, (*normed)[i], int(i)));
}

}  // namespace brume::schedule
