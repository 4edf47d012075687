#include "schedule/compile.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "schedule/emit/passes.hpp"
#include "schedule/order/order.hpp"
#include "schedule/place.hpp"

namespace brume::schedule {
namespace {

/// Emits the tasks of one rank, slot by slot (README.md of this module, "Around a slot").
class Compiler {
 public:
  Compiler(const plan::Plan& plan, const model::Config& model, int rank, const Options& options)
      : context_(plan, model, rank, options) {}
  Program compile();

 private:
  void read(const Slot& slot);
  bool prefetch(const Slot& slot);
  void drain(const Slot& slot);
  void write(const Slot& slot);
  void finish();

  const Context context_;
  ProgramBuilder build_{context_};
  const PersistentBuffers persistent_{context_, build_};
  const Store store_{context_, persistent_, build_};
  Stores stores_{store_};
  Passes passes_{store_, stores_};
};

bool is_pass(const Slot& slot) { return slot.kind != Slot::Kind::update; }

Program Compiler::compile() {
  const std::vector<Slot> order =
      slots(context_.plan, context_.place.stage, context_.blocks, context_.options);
  std::size_t drained = 0, written = 0;  // slots so far
  const auto drain_until = [&](std::size_t end) {
    for (; drained < end; ++drained) drain(order[drained]);
  };
  const auto write_until = [&](std::size_t end) {
    for (; written < end; ++written) write(order[written]);
  };

  if (context_.trains()) stores_.tied.prefetch();
  stores_.streams.prefetch(order[0]);
  prefetch(order[0]);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Slot& slot = order[i];
    const std::span<const Slot> rest = std::span(order).subspan(i + 1);
    const bool ahead = !rest.empty() && context_.options.overlap;
    const bool received = ahead && stores_.streams.prefetch_beside(slot, rest[0]);
    // Before the copy in of the next slot, so that the disk reads on meanwhile.
    if (ahead && rest.size() > 1) read(rest[1]);
    stores_.tied.prefetch_grads(slot);
    const bool fetched = ahead && prefetch(rest[0]);
    passes_.run(slot, fetched ? &rest[0] : nullptr);
    // Before anything else computes: a peer may send this before it receives what was just sent.
    if (!rest.empty() && !received) stores_.streams.prefetch(rest[0]);
    // An update is short: what an earlier slot leaves has until the next pass over a block.
    if (is_pass(slot)) {
      stores_.gradients.copy_out(&slot);
      const std::size_t drained_before = drained;
      drain_until(i);
      write_until(drained_before);
    }
    if (!fetched) {
      drain_until(i + 1);
      stores_.gradients.copy_out();
      write_until(i + 1);
    }
    stores_.streams.exchange_ahead(slot, rest);
    if (is_pass(slot)) {
      const auto next = std::ranges::find_if(rest, is_pass);
      stores_.weights.leave(slot, next == rest.end() ? nullptr : &*next);
    }
    if (!rest.empty() && !fetched) prefetch(rest[0]);
  }
  finish();
  return build_.take();
}

/// What a slot needs of the disk, into host memory.
void Compiler::read(const Slot& slot) {
  stores_.optimizer.read(slot);
  stores_.activations.read(slot);
}

/// @return false when something of it is not ready to be fetched: then it must be called again
bool Compiler::prefetch(const Slot& slot) {
  stores_.weights.prefetch(slot);
  if (!stores_.gradients.prefetch(slot)) return false;
  stores_.optimizer.prefetch(slot);
  return stores_.activations.prefetch(slot);
}

void Compiler::drain(const Slot& slot) {
  stores_.optimizer.drain(slot);
  stores_.weights.drain(slot);
  stores_.streams.drain(slot);
  stores_.activations.drain(slot);
  stores_.gradients.drain(slot);
}

/// What was drained for the disk.
void Compiler::write(const Slot& slot) {
  stores_.optimizer.write(slot);
  stores_.activations.write(slot);
}

/// After the last slot: the head's share of a tied gradient goes home, loss and norm are summed.
void Compiler::finish() {
  if (context_.generates()) return;
  const int last_block = plan::block_range(context_.plan, context_.place.stage).last;
  const bool goes_back = context_.trains() && context_.model.has_backward(last_block);
  const Slot last{goes_back ? Slot::Kind::backward : Slot::Kind::forward,
                  context_.plan.microbatches - 1, -1};
  if (goes_back) stores_.tied.drain(last);
  stores_.gradients.finish(last);
  if (context_.plan.devices() == 1) return;
  build_.add(last, Operation::all_reduce, {updates(Role::totals, persistent_.totals)},
             {.group = model::all_axes});
}

Program placed(const plan::Plan& plan, const model::Config& model, int rank, const Options& options,
               Spread spread) {
  options.deadline.check();
  Program program = Compiler(plan, model, rank, options).compile();
  place(program, {options.tight, options.enough, spread}, options.deadline, options.packings);
  return program;
}

}  // namespace

Program compile(const plan::Plan& plan, const model::Config& model, int rank,
                const Options& options) {
  // What else 1F1B waits for where buffers take each other's bytes is in the analyzer's formulas.
  const Spread spread = plan.order.is_1f1b() ? Spread::received : Spread::all;
  Program program = placed(plan, model, rank, options, spread);
  link(program, options.overlap);
  return program;
}

Arenas arena_bytes(const plan::Plan& plan, const model::Config& model, int rank,
                   const Options& options) {
  return placed(plan, model, rank, options, Spread::none).arena_bytes;
}

std::vector<Program> compile_all(const plan::Plan& plan, const model::Config& model,
                                 const Options& options) {
  // A pass takes some 8 KiB, and a tile of an MLP a quarter of that: a plan of millions of
  // microbatches would fill any memory.
  constexpr std::int64_t most_passes = 2'000'000;
  double passes = 0.0;
  for (const plan::Stage& stage : plan.stages)
    passes += double(stage.devices()) * stage.layers * plan.microbatches *
              (1.0 + (stage.mlp_tiles - 1) / 4.0);
  require(passes <= double(most_passes), Failure::input,
          "the plan's ranks make more than {} passes over layers in a step, which is too much "
          "to simulate: give it fewer microbatches, devices or tiles of the MLP",
          most_passes);
  std::vector<Program> programs(std::size_t(plan.devices()));
  Packings packings;
  Options shared = options;
  if (!shared.packings) shared.packings = &packings;
  // One rank of each stage first: most others are like it, and find its packing.
  std::vector<int> turns(programs.size());
  std::iota(turns.begin(), turns.end(), 0);
  std::ranges::stable_sort(turns, {}, [&](int rank) {
    return rank - plan::first_rank(plan, plan::stage_index(plan, rank));
  });
  parallel_for(turns.size(), options.threads, [&](std::size_t turn, std::size_t) {
    const int rank = turns[turn];
    programs[rank] = compile(plan, model, rank, shared);
  });
  return programs;
}

}  // namespace brume::schedule
