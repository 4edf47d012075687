#include "task_time.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "schedule/simulate.hpp"

namespace brume::schedule {
namespace {

/// What the time of a task depends on beside its operation and its ranks: bytes; of a recompute,
/// whether its output is made; of a backward, or its second part, how many saved tensors it finds.
std::int64_t amount_of(const Task& task) {
  if (task.operation == Operation::recompute) return task.find(Role::output) ? 1 : 0;
  if (task.operation == Operation::backward || task.operation == Operation::backward_weights)
    return std::ranges::count(task.operands, Role::saved, &Operand::role);
  return amount_bytes(task);
}

}  // namespace

double TaskTimes::of(const Task& task, int rank) {
  const Key wanted = key(task, rank);
  const auto [entry, fresh] = known_s_.try_emplace(wanted, 0.0);
  const plan::Stage& stage = plan_.stages[wanted.stage];
  if (fresh) entry->second = price::task_s(machine_.profile(stage.group), work_s(wanted));
  return entry->second;
}

double TaskTimes::times_as_long(int rank, model::AxisSet group) {
  const auto [known, fresh] = times_as_long_.try_emplace({rank, group}, 1.0);
  if (fresh)
    known->second = price::times_as_long(plan_, machine_, plan::members(plan_, rank, group));
  return known->second;
}

TaskTimes::Key TaskTimes::key(const Task& task, int rank) {
  const int index = plan::stage_index(plan_, rank);
  const plan::Stage& stage = plan_.stages[index];
  Key key{.stage = index,
          .operation = task.operation,
          .segment = task.segment,
          .run = task.run,
          .amount = amount_of(task),
          .block = 0,
          .ranks = {},
          .ends = {}};
  if (task.operation == Operation::optimizer_step || task.operation == Operation::matrix_step) {
    const bool layer = blocks_[std::size_t(task.block)].kind == model::BlockKind::layer;
    key.block = layer && layers_alike_ ? 1 : task.block;
  }
  if (!task.group.empty()) {
    key.ranks = task.group.contains(model::Axis::stage)
                    ? price::world_ranks(machine_.profile(stage.group), plan_.devices())
                    : price::ranks(stage, task.group, price::first_in_unit(plan_, machine_, index));
    key.ranks.times = times_as_long(rank, task.group);
  }
  if (task.peer >= 0) key.ends = price::ends(plan_, machine_, rank, task.peer);
  return key;
}

double TaskTimes::work_s(const Key& key) const {
  using price::Collective, price::Pass;
  const plan::Stage& stage = plan_.stages[key.stage];
  const hardware::Profile& profile = machine_.profile(stage.group);
  const double bytes = double(key.amount);
  const bool all_of_it = key.operation == Operation::backward_weights;
  const auto segment_s = [&](Pass pass) {
    return price::segment_s(model_, profile, key.segment, pass, stage.split(),
                            all_of_it ? price::all_runs : key.run);
  };
  const auto saved = [&] {
    return model::segment(model_, key.segment, stage.split().division()).saved;
  };
  const auto collective_s = [&](Collective collective) {
    return price::collective_s(profile, collective, key.ranks, bytes);
  };
  switch (key.operation) {
    case Operation::forward: return segment_s(Pass::forward);
    case Operation::backward: {
      const bool all = key.amount == std::ssize(saved());  // cheap ones, too
      return segment_s(all ? Pass::stored_backward : Pass::backward);
    }
    case Operation::backward_input: return segment_s(Pass::backward_input);
    case Operation::backward_weights: {
      const bool all = key.amount == std::ranges::count(saved(), true, &model::Saved::for_weights);
      return segment_s(all ? Pass::stored_backward_weights : Pass::backward_weights);
    }
    case Operation::recompute: return segment_s(key.amount > 0 ? Pass::forward : Pass::recompute);
    case Operation::loss: return 0.0;  // a part of the head's forward, priced there
    case Operation::all_reduce: return collective_s(Collective::all_reduce);
    case Operation::reduce_scatter: return collective_s(Collective::reduce_scatter);
    case Operation::all_gather: return collective_s(Collective::all_gather);
    case Operation::all_to_all: return collective_s(Collective::all_to_all);
    case Operation::send_rows:
    case Operation::return_rows:
      return price::collective_s(profile, Collective::all_to_all, key.ranks, expected_bytes(key));
    case Operation::send:
    case Operation::recv: return price::send_s(machine_, key.ends, bytes);
    case Operation::copy_in: return price::copy_in_s(profile, bytes);
    case Operation::copy_out: return price::copy_out_s(profile, bytes);
    case Operation::read: return price::disk_read_s(profile, bytes);
    case Operation::write: return price::disk_write_s(profile, bytes);
    case Operation::copy: return price::copy_s(profile, bytes);
    case Operation::clear: return price::clear_s(profile, bytes);
    case Operation::accumulate: return price::accumulate_s(profile, bytes);
    case Operation::norm: return price::norm_s(profile, bytes);
    case Operation::optimizer_step: {
      const bool layer = blocks_[std::size_t(key.block)].kind == model::BlockKind::layer;
      return price::optimizer_s(model_, profile, bytes / model::weight_bytes(model_.precision),
                                layer ? model_.optimizer->unit() : model::UpdateUnit::element);
    }
    case Operation::matrix_step:
      return price::matrix_step_s(model_, profile, blocks_[std::size_t(key.block)], stage.split(),
                                  plan::sharded(stage).optimizer ? stage.shard_ranks() : 1);
    case Operation::host_step:
      return price::host_update_s(model_, profile, bytes / model::weight_bytes(model_.precision));
  }
  return 0.0;
}

/// Bytes that an exchange of tokens moves if loads are even.
double TaskTimes::expected_bytes(const Key& key) const {
  const model::Split split = plan_.stages[key.stage].split();
  for (const model::Operator& op : model::segment(model_, key.segment, split.division()).operators)
    if (model::is_of_tokens(op.kind)) return op.expected_bytes.evaluate(split.values());
  throw Error(Failure::bug, "a segment exchanges no tokens: {}", model::name(key.segment));
}

}  // namespace brume::schedule
