#include "schedule/compile.hpp"

#include "base/error.hpp"
#include "compiler.hpp"
#include "schedule/place.hpp"

namespace brume::schedule {
namespace {

/// The next forward or backward after slot `i`; none: nullptr.
const Slot* next_pass(const std::vector<Slot>& order, std::size_t i) {
  while (++i < order.size())
    if (order[i].kind != Slot::Kind::update) return &order[i];
  return nullptr;
}

}  // namespace

Program Compiler::compile() {
  for (int block = range_.first; block <= range_.last; ++block) make_block_state(block);
  make_tied_buffers();
  const std::int64_t all_batches = batch_bytes_ * plan_.microbatches;
  if (place_.stage == 0)
    inputs_ = add_buffer("inputs", Tier::device, Content::batch, all_batches, -1, true);
  if (last_stage()) {
    targets_ = add_buffer("targets", Tier::device, Content::batch, all_batches, -1, true);
    loss_ = add_buffer("loss", Tier::device, Content::totals, sizeof(double), -1, true);
  }
  totals_ = add_buffer("totals", Tier::device, Content::totals, 2 * sizeof(double), -1, true);

  const std::vector<Slot> order = slots(plan_, place_.stage, options_);
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
    // Before the copy in of the next slot, so that the disk reads on meanwhile.
    if (ahead && i + 2 < order.size()) read(at(i + 2));
    const bool fetched = ahead && prefetch(at(i + 1));
    // An update is short: what an earlier slot leaves has until the next pass over a block.
    const bool passes = at(i).kind != Slot::Kind::update;
    const std::vector<int> left = passes ? leaving() : std::vector<int>{};
    next_ = fetched ? &at(i + 1) : nullptr;
    compute(at(i));
    // Before anything else computes: a peer may send this before it receives what was just sent.
    if (has_next && !received) receive(at(i + 1));
    if (passes) {
      copy_out_gradients(left);
      const std::size_t copied_out = unwritten_.size();  // before this slot
      for (; drained < i; ++drained) drain(at(drained));
      write_out(copied_out);
    }
    if (!options_.overlap || !has_next || !fetched) {
      for (; drained <= i; ++drained) drain(at(drained));
      copy_out_gradients(leaving());
      write_out(unwritten_.size());
    }
    exchange_ahead(at(i));
    if (passes) release_weights(at(i), next_pass(order, i));
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

/// After the last slot: the head's share of a tied gradient goes home, loss and norm are summed.
void Compiler::finish() {
  const bool train = options_.mode == Mode::train;
  const Slot last{train ? Slot::Kind::backward : Slot::Kind::forward, plan_.microbatches - 1, -1};
  if (train) send_tied_gradients(last);
  if (!train) norm(last, -1);
  if (plan_.devices() == 1) return;
  add_task(Channel::collective_dp, Operation::all_reduce, last).group = Group::world;
  operand(Role::totals, totals_, true, true);
}

Program compile(const plan::Plan& plan, const model::Config& model, int rank,
                const Options& options) {
  options.deadline.check();
  Program program = Compiler(plan, model, rank, options).compile();
  place(program, options.tight, options.deadline);
  link(program, options.overlap);
  return program;
}

std::vector<Program> compile_all(const plan::Plan& plan, const model::Config& model,
                                 const Options& options) {
  // A pass takes some 8 KiB: a plan of millions of microbatches would fill any memory.
  constexpr std::int64_t most_passes = 2'000'000;
  double passes = 0.0;
  for (const plan::Stage& stage : plan.stages)
    passes += double(stage.devices()) * stage.layers * plan.microbatches;
  require(
      passes <= double(most_passes), Failure::input,
      "the plan's ranks make more than {} passes over layers in an iteration, which is too much "
      "to simulate: give it fewer microbatches, or fewer devices",
      most_passes);
  std::vector<Program> programs;
  for (int rank = 0; rank < plan.devices(); ++rank)
    programs.push_back(compile(plan, model, rank, options));
  return programs;
}

}  // namespace brume::schedule
