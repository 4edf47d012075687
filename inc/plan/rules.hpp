/// @file Rules of what a rank keeps and moves, each of them once: as numbers, by which `schedule`
/// makes Programs, and as expressions, by which `analyzer` predicts them.
///
/// N is double or symbolic::Expr. A truth is 1, else 0. The module does not need `symbolic`: the
/// operations of an expression are found by its type. How many microbatches a stage has in flight
/// is plan::Order::in_flight.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::plan {

/// The same functions for expressions.
namespace numbers {
inline double less(double a, double b) { return a < b ? 1.0 : 0.0; }
inline double select(double condition, double yes, double no) { return condition > 0.0 ? yes : no; }
}  // namespace numbers

/// The knobs of a stage that say where it keeps weights, gradients and optimizer state.
template <class N>
struct StateKnobs {
  N shard_ranks;
  N zero_level;
  N weight_offload_ratio;
  N grad_offload_ratio;
  N optim_offload_ratio;
  N optim_disk_ratio;
  N host_update_ratio;
};

/// @param value              of a member of Stage
/// @param expert_data_ranks  Stage::expert_data_ranks()
template <class N>
StateKnobs<N> state_knobs(const auto& value, const N& expert_data_ranks) {
  return {.shard_ranks = N(value(&Stage::dp) * value(&Stage::cp) / expert_data_ranks /
                           value(&Stage::replicas)),
          .zero_level = value(&Stage::zero_level),
          .weight_offload_ratio = value(&Stage::weight_offload_ratio),
          .grad_offload_ratio = value(&Stage::grad_offload_ratio),
          .optim_offload_ratio = value(&Stage::optim_offload_ratio),
          .optim_disk_ratio = value(&Stage::optim_disk_ratio),
          .host_update_ratio = value(&Stage::host_update_ratio)};
}

inline StateKnobs<double> state_knobs(const Stage& stage) {
  return state_knobs<double>([&](auto member) { return double(stage.*member); },
                             double(stage.expert_data_ranks()));
}

/// The kinds of state of which a rank keeps its shard only.
template <class N>
struct Sharded {
  N optimizer;
  N grads;
  N weights;
};

/// ZeRO level 1 shards optimizer state, level 2 also gradients, level 3 also weights. One rank has
/// nothing to shard, whatever the level.
///
/// @param shard_ranks  Stage::shard_ranks()
/// @source  ZeRO (Rajbhandari et al. 2020), P_os, P_os+g, P_os+g+p
template <class N>
Sharded<N> sharded(const N& zero_level, const N& shard_ranks) {
  using numbers::less;
  const N level = less(1.0, shard_ranks) * zero_level;
  return {.optimizer = less(0.5, level), .grads = less(1.5, level), .weights = less(2.5, level)};
}

inline Sharded<bool> sharded(const Stage& stage) {
  const Sharded<double> of = sharded(double(stage.zero_level), double(stage.shard_ranks()));
  return {.optimizer = of.optimizer > 0.0, .grads = of.grads > 0.0, .weights = of.weights > 0.0};
}

/// Elements at the end of a range that do not stay on the device, or of these on disk: whole cache
/// lines, so that copies are aligned.
///
///   floor(ratio * range / alignment) * alignment
template <class N>
N offloaded_elements(const N& ratio, const N& range,
                     std::int64_t alignment = model::alignment_elements) {
  using std::floor;
  return floor(ratio * range / double(alignment)) * double(alignment);
}

/// The parts of a block's flat layout, in elements: what is trained, and behind it what is frozen.
template <class N>
struct Elements {
  N trained;
  N frozen;
};

/// Alignments of both parts.
inline Elements<std::int64_t> alignments(const model::Block& block) {
  return {model::trained_alignment(block), model::frozen_alignment(block)};
}

/// The part of a block that a rank keeps from step to step, in elements of its flat layout. Frozen
/// parameters have weights only.
template <class N>
struct KeptState {
  Elements<N> whole;         ///< the block on this tensor-parallel rank
  Elements<N> weights;       ///< kept: all, or the shard
  Elements<N> host_weights;  ///< share of the kept weights
  N grads;                   ///< kept: all, or the shard
  N optimizer;               ///< kept, and what this rank updates: all, or the shard
  N host_grads;              ///< share of the kept gradients
  N offloaded_optimizer;     ///< share of the kept state, in CPU memory and on disk
  N disk_optimizer;          ///< part of the offloaded state
  N host_updated;            ///< ... what the node's processor steps: the end of the range
  N grads_down;              ///< part of these whose gradients go to the host for it
  N weights_staged;          ///< 1 where kernels work on a copy of the whole block, made for a slot
  N grads_staged;            ///< 1 where a backward writes a buffer of its own, added up afterwards
};

/// A range is all of a part, or part / shard_ranks where it is sharded. Weights and gradients are
/// staged where they are sharded or partly on the host; what is not staged is used in place.
/// Gradients that go down are those of the first shard, which has fewest on the host.
///
/// @param whole      of the block's layout, multiples of alignments times dp
/// @param alignment  of the block
/// @source           src/schedule/README.md, "State"
template <class N>
KeptState<N> kept_state(const StateKnobs<N>& knobs, const Elements<N>& whole,
                        const Elements<std::int64_t>& alignment = {model::alignment_elements,
                                                                   model::alignment_elements}) {
  using numbers::less, numbers::select, std::max, std::min;
  const Sharded<N> shards = sharded(knobs.zero_level, knobs.shard_ranks);
  const auto kept = [&](const N& part, const N& is_sharded) {
    return N(part / select(is_sharded, knobs.shard_ranks, 1.0));
  };
  const Elements<N> weights{kept(whole.trained, shards.weights),
                            kept(whole.frozen, shards.weights)};
  const Elements<N> host_weights{
      offloaded_elements(knobs.weight_offload_ratio, weights.trained, alignment.trained),
      offloaded_elements(knobs.weight_offload_ratio, weights.frozen, alignment.frozen)};
  const N grads = kept(whole.trained, shards.grads),
          optimizer = kept(whole.trained, shards.optimizer);
  const auto part = [&](const N& ratio, const N& range) {
    return offloaded_elements(ratio, range, alignment.trained);
  };
  const N host_grads = part(knobs.grad_offload_ratio, grads),
          offloaded = part(knobs.optim_offload_ratio, optimizer),
          on_disk = part(knobs.optim_disk_ratio, optimizer), in_memory = offloaded - on_disk,
          host_updated = min(part(knobs.host_update_ratio, optimizer), in_memory);
  const N none = 0.0, before_them = grads - host_grads - (optimizer - host_updated);
  return {.whole = whole,
          .weights = weights,
          .host_weights = host_weights,
          .grads = grads,
          .optimizer = optimizer,
          .host_grads = host_grads,
          .offloaded_optimizer = offloaded,
          .disk_optimizer = on_disk,
          .host_updated = host_updated,
          .grads_down = max(none, min(before_them, host_updated)),
          .weights_staged =
              max(shards.weights, N(less(0.0, N(host_weights.trained + host_weights.frozen)))),
          .grads_staged = max(shards.grads, N(less(0.0, host_grads)))};
}

/// The first ones of the tensors that a layer keeps: activation offload moves them.
struct MovedTensors {
  int count = 0;
  double bytes = 0.0;
};

/// Whole tensors, in the order of model::kept_tensors, as long as their sum stays within the share
/// of all of them. The half byte is for shares whose product with the sum is rounded down.
///
///   largest n with sum_{i<n} bytes_i <= ratio * sum_i bytes_i + 0.5
///
/// @param kept   model::kept_tensors
/// @param ratio  act_offload_ratio; act_disk_ratio for those that go on to the disk
MovedTensors moved_tensors(const std::vector<model::Kept>& kept, double ratio,
                           const model::Split& split);

}  // namespace brume::plan
