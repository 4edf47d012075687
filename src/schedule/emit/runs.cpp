/// @file Tasks of the runs of a pass over a segment, and of the exchanges between them.
#include <algorithm>
#include <utility>

#include "passes.hpp"

namespace brume::schedule {

/// Brings a later input together during a segment's longest run: a channel works in order, so an
/// exchange before that run would wait for it.
void Passes::bring_beside(const std::vector<model::Run>& runs, std::function<void()> bring) {
  if (runs.size() == 1) return bring();
  beside_ = std::move(bring);
}

/// Adds a task for each run of a pass over a segment, with the exchanges between them, but for runs
/// that bring the input together or add the stream. A later run finds what an earlier one made; a
/// forward's last one makes the output.
void Passes::add_runs(const Slot& slot, Operation operation, std::vector<Operand> operands,
                      const TaskDetails& details, const Scratch& scratch) {
  const SegmentBytes& segment = context_.segments.at(details.segment);
  const bool forward = operation == Operation::forward || operation == Operation::recompute;
  const auto& runs = forward ? segment.forward_runs : segment.backward_runs;
  const auto& places = forward ? segment.forward_places : segment.backward_places;
  const bool wanted = !forward || std::ranges::count(operands, Role::output, &Operand::role) > 0;
  const std::size_t first = forward || segment.brings_again ? segment.brought.size() : 0;
  const std::size_t end = runs.size() - (forward && segment.sums ? 1 : 0);
  const auto longest = std::max_element(
      runs.begin() + std::ptrdiff_t(first), runs.begin() + std::ptrdiff_t(end),
      [](const model::Run& a, const model::Run& b) { return a.end - a.first < b.end - b.first; });
  for (std::size_t run = first; run < end; ++run) {
    if (beside_ && runs.begin() + std::ptrdiff_t(run) == longest) std::exchange(beside_, {})();
    const bool last = run + 1 == end;
    std::vector<Operand> own = operands;
    if (forward && !last && !places[run].writes_output)
      std::erase_if(own, [](const Operand& o) { return o.role == Role::output; });
    TaskDetails of_run = details;
    of_run.run = int(run);
    if (runs[run].beside)
      own = beside_exchange(slot, of_run, places[run].places, std::move(own), scratch);
    if (runs[run].first < runs[run].end || last)
      build_.add(slot, operation, std::move(own), of_run);
    for (Operand& operand : operands) operand.reads |= operand.writes;
    if (const auto& behind = places[run].behind;
        !last && behind && (wanted || !behind->output_only))
      exchange(slot, *behind, details.segment, scratch);
  }
}

/// Operands of a run that computes while an exchange is on its way: of the workspace the places of
/// its own tensors, and of kept tensors it writes only its own.
std::vector<Operand> Passes::beside_exchange(const Slot& slot, const TaskDetails& of_run,
                                             const std::vector<RunPlace>& places,
                                             std::vector<Operand> operands,
                                             const Scratch& scratch) const {
  const SegmentBytes& segment = context_.segments.at(of_run.segment);
  std::erase_if(operands, [](const Operand& o) { return o.role == Role::workspace; });
  for (Operand& operand : operands)
    if (operand.role == Role::saved) operand.reads = true, operand.writes = false;
  int index = 0;
  for (const RunPlace& one : places) {
    const Part found = part(slot, of_run.segment, one.at, scratch);
    const auto is_there = [&](const Operand& o) {
      return o.buffer == found.buffer && o.first_byte == found.first_byte && o.bytes == found.bytes;
    };
    if (std::ranges::any_of(operands, is_there)) continue;
    if (found.buffer == scratch.workspace)
      operands.push_back(updates(Role::workspace, found, index++));
    else if (one.writes)
      for (Operand& operand : operands)
        operand.writes |= operand.role == Role::saved && operand.buffer == found.buffer;
  }
  if (segment.dequantized > 0)
    operands.push_back(updates(
        Role::workspace,
        Part(scratch.workspace, build_.buffer(scratch.workspace).bytes - segment.dequantized,
             segment.dequantized),
        index));
  return operands;
}

/// Part of a buffer that has a tensor of a segment.
Part Passes::part(const Slot& slot, SegmentKind kind, const TensorPlace& place,
                  const Scratch& scratch) const {
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, kind);
  if (place.saved >= 0 && saved[std::size_t(place.saved)] != BufferId::none)
    return Part(saved[std::size_t(place.saved)]);
  if (place.brought >= 0)
    return Part(stores_.activations.normed(slot, kind)->at(std::size_t(place.brought)));
  if (place.among_products && scratch.products != BufferId::none)
    return Part(scratch.products, place.first_byte, place.bytes);
  const bool apart = scratch.products != BufferId::none;
  const std::int64_t elsewhere = apart ? context_.segments.at(kind).product_grads : 0;
  return Part(scratch.workspace, place.first_byte - elsewhere, place.bytes);
}

void Passes::exchange(const Slot& slot, const SegmentExchange& exchange, SegmentKind kind,
                      const Scratch& scratch) {
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, kind);
  if (exchange.again && exchange.whole.saved >= 0 && saved[exchange.whole.saved] != BufferId::none)
    return;
  std::vector<Operand> operands{
      updates(Role::destination, part(slot, kind, exchange.whole, scratch))};
  if (exchange.part)
    operands = {updates(Role::source, part(slot, kind, exchange.whole, scratch)),
                writes(Role::destination, part(slot, kind, *exchange.part, scratch))};
  if (exchange.routes >= 0)
    operands.push_back(reads(Role::saved, saved[std::size_t(exchange.routes)], exchange.routes));
  build_.add(slot, exchange.operation, std::move(operands),
             {.segment = kind,
              .group = exchange.axes,
              .in_fp32 = exchange.in_fp32,
              .row_bytes = exchange.row_bytes});
}

}  // namespace brume::schedule
