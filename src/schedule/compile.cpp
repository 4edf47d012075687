#include "schedule/compile.hpp"

#include "compiler.hpp"
#include "schedule/place.hpp"

namespace brume::schedule {

Program Compiler::compile() {
  for (int block = range_.first; block <= range_.last; ++block) make_block_buffers(block);
  make_tied_buffers();
  const std::int64_t all_batches = batch_bytes_ * plan_.microbatches;
  if (place_.stage == 0)
    inputs_ = add_buffer("inputs", Tier::device, Content::batch, all_batches, -1, true);
  if (last_stage()) {
    targets_ = add_buffer("targets", Tier::device, Content::batch, all_batches, -1, true);
    loss_ = add_buffer("loss", Tier::device, Content::totals, sizeof(double), -1, true);
  }
  totals_ = add_buffer("totals", Tier::device, Content::totals, 2 * sizeof(double), -1, true);

  const std::vector<Slot> order = slots(plan_, place_.stage, options_.mode);
  if (options_.mode == Mode::train) receive_tied_weights();
  const auto at = [&](std::size_t i) -> const Slot& { return order[i]; };
  receive(at(0));
  prefetch(at(0));
  std::size_t drained = 0;  // slots so far
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool has_next = i + 1 < order.size();
    // A send must not stand behind the next receive on its channel: the peer may need it first.
    const bool ahead = has_next && options_.overlap;
    const bool received = ahead &&
                          !(sends_on(at(i)) && sends_on(at(i)) == receives_on(at(i + 1))) &&
                          receive(at(i + 1));
    const bool fetched = ahead && prefetch(at(i + 1));
    compute(at(i));
    // An update is short: what an earlier slot leaves has until the next pass over a block.
    if (at(i).kind != Slot::Kind::update)
      for (; drained < i; ++drained) drain(at(drained));
    if (!options_.overlap || !has_next || !fetched)
      for (; drained <= i; ++drained) drain(at(drained));
    if (has_next && !received) receive(at(i + 1));
    if (has_next && !fetched) prefetch(at(i + 1));
  }
  finish();
  return std::move(program_);
}

void Compiler::compute(const Slot& slot) {
  switch (slot.kind) {
    case Slot::Kind::update: return update(slot);
    case Slot::Kind::forward: return forward(slot);
    case Slot::Kind::backward: return backward(slot);
  }
}

void Compiler::finish() {
  const bool train = options_.mode == Mode::train;
  const Slot last{train ? Slot::Kind::backward : Slot::Kind::forward, plan_.microbatches - 1, -1};
  if (train) send_tied_gradients(last);
  add_task(Channel::compute, Operation::norm, last);
  if (loss_ >= 0) operand(Role::loss, loss_, true, false);
  for (const auto& [block, b] : buffers_) {
    if (!train) break;
    // Each data-parallel rank counts its part of the block, whether or not the rest is here too.
    const std::int64_t part_bytes = b.layout.elements / stage_.dp * model::grad_bytes;
    range(Role::grads, b.grads, place_.dp_rank * part_bytes, part_bytes, true, false, block);
  }
  operand(Role::totals, totals_, false, true);
  if (plan_.devices() == 1) return;
  add_task(Channel::collective_dp, Operation::all_reduce, last).group = Group::world;
  operand(Role::totals, totals_, true, true);
}

Program compile(const plan::Plan& plan, const model::Config& model, int rank,
                const Options& options) {
  Program program = Compiler(plan, model, rank, options).compile();
  place(program);
  link(program, options.overlap);
  return program;
}

}  // namespace brume::schedule
