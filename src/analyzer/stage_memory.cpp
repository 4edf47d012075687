/// @file A stage's memory on the device, on the host and on disk.
#include "stage_memory.hpp"

#include "kept_state.hpp"
#include "layer_costs.hpp"
#include "stage_memory_builder.hpp"

namespace brume::analyzer {

using model::SegmentKind;

StageMemoryBuilder::StageMemoryBuilder(const model::Config& model, StageRole role)
    : model_(model),
      role_(role),
      v_(model),
      state_(model, role),
      head_(model, SegmentKind::head, role),
      ahead_(brings_ahead(model, StageBlocks(model, role).layer, role.host_update, true)),
      ahead_of_last_(
          brings_ahead(model, StageBlocks(model, role).layer, role.host_update, !role.last)),
      stream_(model::stream_bytes(model)),
      shard_(model::stream_shard_bytes(model)),
      shared_(less(1.0, v_.tp)),
      table_elements_(model::token_table_elements(model)) {
  for (SegmentKind kind : model::segment_kinds(model, model::BlockKind::layer)) {
    segments_.emplace_back(model, kind, role);
    if (role.dense > 0 && kind == SegmentKind::experts)
      segments_.back().join(SegmentBytes(model, SegmentKind::mlp, role),
                            [](const Expr& a, const Expr& b) { return max(a, b); });
    kept_.selective += shard_ + segments_.back().kept(0.0);
    kept_.stored += shard_ + segments_.back().kept(1.0);
  }
  kept_.recomputed = shard_;
  const auto bytes = [&](const Expr& ratio) {
    using enum model::Recompute;
    const auto of = [&](model::Recompute recompute) {
      return moved_bytes(model, recompute, role, ratio);
    };
    return LayerBytes{of(none), of(selective), of(full)};
  };
  moved_ = bytes(v_.a);
  if (role.disk) to_disk_ = bytes(v_.ad);
}

// --- layers of three kinds ----------------------------------------------------------------------

Expr StageMemoryBuilder::of_layer(const Expr& j, const LayerBytes& bytes) const {
  return select(is_recomputed(j), bytes.recomputed,
                select(is_stored(j), bytes.stored, bytes.selective));
}

Expr StageMemoryBuilder::of_last_layer(const LayerBytes& bytes) const {
  const Expr all = of_layer(v_.l, bytes);
  return role_.trains_all_layers() ? all : less(frozen(), v_.l) * all;
}

/// Of layers 1..j-1 that have a backward.
Expr StageMemoryBuilder::of_layers_before(const Expr& j, const LayerBytes& bytes) const {
  const Expr full = v_.l - v_.c;  // the first layers, which are not recomputed
  const Expr first = role_.trains_all_layers() ? full : max(full, frozen());
  return trained(min(j - 1.0, v_.k)) * (bytes.stored - bytes.selective) +
         trained(min(j - 1.0, full)) * bytes.selective +
         max(j - 1.0 - first, 0.0) * bytes.recomputed;
}

Expr StageMemoryBuilder::of_all_layers(const LayerBytes& bytes) const {
  const Expr recomputed = role_.trains_all_layers() ? v_.c : min(v_.c, v_.l - frozen());
  return trained(v_.k) * (bytes.stored - bytes.selective) + trained(v_.l - v_.c) * bytes.selective +
         recomputed * bytes.recomputed;
}

/// Beside the last layers, those at which what is kept begins to grow more slowly: there a peak can
/// lie.
std::vector<Expr> StageMemoryBuilder::turning_points() const {
  return {v_.l - v_.c, v_.l - v_.c + 1.0, v_.k, v_.k + 1.0, Expr(1.0 + frozen())};
}

// --- what lives from step to step ---------------------------------------------------------------

Expr persistent_bytes(const model::Config& model, StageRole role, const StateMemory& state) {
  const Variables v(model);
  const Expr whole = double(model::token_bytes) * v.b * double(model.padded_len()) * v.G;
  const Expr batch = whole / v.cp;
  Expr sum = state.device_bytes() + 2.0 * sizeof(double);
  if (role.first) sum += batch;
  if (role.last) sum += batch + 2.0 * sizeof(double);
  if (model.isolated) sum += whole;
  if (role.last && !role.first && model.tied_head)
    sum += (model::weight_bytes(model.precision) + (model.trains_table() ? model::grad_bytes : 0)) *
           model::token_table_elements(model);
  return sum;
}

// --- a microbatch on its way ---------------------------------------------------------------------

/// What offload moves of layer j. The last layer of the last stage stays.
Expr StageMemoryBuilder::moved(const Expr& j, const LayerBytes& bytes) const {
  const Expr exists = at_most(1.0 + frozen(), j), all = of_layer(j, bytes);
  return exists * (role_.last ? less(j, v_.l) * all : all);
}

/// What layers 1..j-1 keep on the device for one microbatch, once their copies are done.
Expr StageMemoryBuilder::kept_before(const Expr& j) const {
  const Expr kept = of_layers_before(j, kept_ - moved_);
  return role_.last ? kept + less(v_.l, j) * of_last_layer(moved_) : kept;
}

/// Microbatches whose forward is done and whose backward has not begun.
Expr StageMemoryBuilder::others_bytes() const { return v_.p * kept_before(v_.l + 1.0); }

MemoryExpressions StageMemoryBuilder::build() const {
  const Expr persistent = persistent_bytes(model_, role_, state_);
  const Expr later = less(1.0, v_.G);  // there is a microbatch after the first
  Expr forward = first_forward();
  for (const Expr& j : {v_.l, v_.l - 1.0}) forward = max(forward, later * steady_forward(j));
  for (const Expr& j : turning_points())
    forward = max(forward, later * at_most(j, v_.l) * steady_forward(j));
  if (role_.first) {
    // In the warm-up what the microbatch before sent is still on its way.
    const Expr output = stream_ + shared_ * shard_;
    const Expr warm_up = shard_ + output + state_.beside_forward(0.0);
    const Expr turns = output + runs_ahead() * shard_ + state_.beside_forward_after_backward(0.0);
    forward = max(forward, later * (others_bytes() + max(warm_up, less(v_.p + 1.0, v_.G) * turns)));
  }
  if (role_.last) forward = max(forward, head_forward());
  Expr backward = highest_backward();
  // A lone microbatch's gradient has its place already while the only layer is still updated.
  if (!role_.first && !role_.last) {
    const Expr lone = state_.after_lone_update();
    backward = max(
        backward, has_backward() * at_most(v_.l, 1.0) * at_most(v_.G, 1.0) * (2.0 * shard_ + lone));
  }

  return {persistent + forward, persistent + backward,
          host_bytes(),         state_.disk_bytes() + moved_in_flight(to_disk_),
          persistent,           kept_before(v_.l + 1.0)};
}

// --- below the device ---------------------------------------------------------------------------

/// Of all microbatches, where most of it is away from the device.
Expr StageMemoryBuilder::moved_in_flight(const LayerBytes& bytes) const {
  const Expr of_microbatch = of_all_layers(bytes);
  if (role_.last) return of_microbatch - of_last_layer(bytes);
  // The oldest microbatch's last layers are back on the device when the newest one's arrive.
  const Expr last = moved(v_.l, bytes), back = last + min(last, moved(v_.l - 1.0, bytes));
  Expr times_back = less(0.0, v_.p);
  if (!role_.first) {
    // In a stage of one layer the first exchange comes later, and the cool-down may come before it.
    const Expr all_ahead = at_most(v_.G, v_.p + 1.0);
    const Expr one_layer =
        less(1.0, v_.p) * (select(state_.waits_for_grads(), 0.0, 1.0) + all_ahead);
    times_back = select(at_most(v_.l, 1.0), one_layer, times_back);
  }
  return (v_.p + 1.0) * of_microbatch - times_back * back;
}

/// What stays there, and what is on its way to the disk or from it: in passes of two layers, of
/// three where a backward follows another microbatch's forward; of two or three blocks in updates,
/// where there is also what the processor steps.
Expr StageMemoryBuilder::host_bytes() const {
  const Expr stays = state_.host_bytes();
  if (!role_.disk && !role_.host_update) return stays + moved_in_flight(moved_);
  const LayerBytes here = moved_ - to_disk_;
  const Expr layer = max(less(0.0, v_.k) * at_most(v_.l - v_.c, v_.k) * to_disk_.stored,
                         max(less(v_.k + v_.c, v_.l) * to_disk_.selective, to_disk_.recomputed));
  const Expr layers = max(v_.l - frozen() - (role_.last ? 1.0 : 0.0), 0.0);  // that move
  const Expr in_passes = moved_in_flight(here) + (min(layers, 2.0) + less(0.0, v_.p)) * layer;
  const Expr first_pass = of_all_layers(here) - of_last_layer(here);
  const Expr in_updates = max(state_.through_host_first(), state_.through_host_last() + first_pass +
                                                               min(v_.l - 1.0, 2.0) * layer);
  return stays + max(in_passes, in_updates);
}

MemoryExpressions stage_memory(const model::Config& model, StageRole role) {
  return role.layers ? StageMemoryBuilder(model, role).build() : lone_block_memory(model, role);
}

}  // namespace brume::analyzer
