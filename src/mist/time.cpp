/// @file Mist's time of a stage: what runs beside each layer, what stays exposed.
#include <algorithm>

#include "mist/stage.hpp"
#include "units.hpp"

namespace brume::mist {
namespace {

/// What runs beside a layer in one pass over a microbatch, activations left out.
struct Beside {
  double gather = 0.0;
  double reduction = 0.0;
  double in = 0.0;
  double out = 0.0;
};

double layer_backward_s(const LayerTime& layer, int microbatches) {
  return layer.backward_s + layer.accumulate_s * (microbatches - 1) / microbatches;
}

Bundles difference(const Bundles& more, const Bundles& less) {
  return {more.inner - less.inner, more.head - less.head, more.tail - less.tail};
}

/// The bundles of both ends stand for two layers, also in a stage of one. Not inlined: GCC 12
/// forgets the rounding when it vectorizes two of these calls.
[[gnu::noinline]] double sum(const std::array<Bundles, 2>& of, int layers, int recomputed) {
  const int inner = std::max(0, layers - 2);
  const int inner_recomputed = std::clamp(recomputed - 1, 0, inner);
  const double s = inner_recomputed * of[1].inner + (inner - inner_recomputed) * of[0].inner +
                   of[recomputed == layers ? 1 : 0].head + of[recomputed == 0 ? 0 : 1].tail;
  return static_cast<float>(s);  // as Mist does before it adds the ends of the model
}

void add(Time& time, const Time& more) {
  time.stable_s += more.stable_s;
  time.delta_s += more.delta_s;
}

}  // namespace

Time StageTime::at(int layers, int recomputed, const Place& place) const {
  Time time{sum(stable, layers, recomputed), sum(delta, layers, recomputed)};
  if (place.first) add(time, embedding);
  if (place.last) add(time, head[recomputed > 0 ? 1 : 0]);
  return time;
}

double StageTime::stable_s(int layers, int recomputed) const {
  return sum(stable, layers, recomputed);
}

StageTimer::StageTimer(const Case& mist, const Stage& stage) : mist_(mist), stage_(stage) {
  const Strategy& s = stage.strategy;
  const Strategy& ends = mist.ends;
  bytes_ = block_bytes(mist.model, s.microbatch, s.tp);
  block_ = collectives(bytes_.weights, s.dp);
  head_ = collectives(head_bytes(mist.model, ends.microbatch, ends.tp).weights, ends.dp);
  const Collectives embedding =
      collectives(embedding_bytes(mist.model, ends.microbatch).weights, ends.dp);
  Time& time = time_.embedding;
  time.stable_s = mist.embedding.forward_s + layer_backward_s(mist.embedding, mist.microbatches);
  (ends.shard_weights ? time.stable_s : time.delta_s) += embedding.gather;
  (ends.shard_grads ? time.stable_s : time.delta_s) += embedding.scatter;
}

const StageTime& StageTimer::of(const Strategy& strategy) {
  Strategy before = stage_.strategy;
  before.offload_optimizer = strategy.offload_optimizer;
  const bool same = known_ && before == strategy;
  known_ = true;
  stage_.strategy = strategy;
  transfers_ = transfers();
  for (const std::size_t r : {0U, 1U}) {
    if (!same) {
      forward_[r] = forward(r == 1, false);
      backward_[r] = backward(r == 1, false);
      last_backward_[r] = backward(r == 1, true);
    }
    const Bundles ends = bundles(forward(r == 1, true), last_backward_[r]);
    // One microbatch only is the first and the last.
    time_.stable[r] = mist_.microbatches == 1 ? ends : bundles(forward_[r], backward_[r]);
    time_.delta[r] = difference(ends, time_.stable[r]);
  }
  if (!same) time_.head = {head(false), head(true)};
  return time_;
}

StageTimer::Collectives StageTimer::collectives(double bytes, int dp) const {
  const bool spread = dp > stage_.nodes;
  const auto seconds = [&](Collective kind) {
    return collective_s(mist_.hardware, kind, bytes / bytes_per_gib, spread ? stage_.nodes : dp,
                        spread ? dp / stage_.nodes : 1);
  };
  return {seconds(Collective::all_gather), seconds(Collective::reduce_scatter),
          seconds(Collective::all_reduce)};
}

StageTimer::Transfers StageTimer::transfers() const {
  const Strategy& s = stage_.strategy;
  const auto in = [&](double bytes) {
    return copy_s(mist_.hardware.copy_in, bytes / bytes_per_gib);
  };
  const auto out = [&](double bytes) {
    return copy_s(mist_.hardware.copy_out, bytes / bytes_per_gib);
  };
  const double weights = bytes_.weights / (s.shard_weights ? s.dp : 1) * s.offload_weights;
  const double grads = bytes_.weights / (s.shard_grads ? s.dp : 1) * s.offload_grads;
  const double optimizer =
      optimizer_per_weight * bytes_.weights / (s.shard_optimizer ? s.dp : 1) * s.offload_optimizer;
  Transfers t;
  t.weights_in = in(weights), t.weights_out = out(weights);
  t.grads_in = in(grads), t.grads_out = out(grads);
  t.optimizer_in = in(optimizer), t.optimizer_out = out(optimizer);
  for (const std::size_t r : {0U, 1U}) {
    const double saved = s.offload_saved * (r == 1 ? bytes_.saved_recomputed : bytes_.saved);
    t.saved_in[r] = in(saved), t.saved_out[r] = out(saved);
  }
  return t;
}

double StageTimer::together(double compute, double network, double in, double out) const {
  return overlapped_s(mist_.hardware.slowdowns, {compute, network, in, out});
}

StageTimer::Pass StageTimer::forward(bool recomputed, bool first_microbatch) const {
  const Strategy& s = stage_.strategy;
  const Transfers& t = transfers_;
  const Beside b = first_microbatch
                       ? Beside{s.shard_optimizer ? block_.gather : 0.0, 0.0,
                                t.optimizer_in + t.grads_in, t.optimizer_out + t.weights_out}
                       : Beside{s.shard_weights ? block_.gather : 0.0, 0.0, t.weights_in, 0.0};
  const double reduce = stage_.block.reduce_forward_s;
  const double compute = stage_.block.forward_s - reduce;
  const double out = b.out + t.saved_out[recomputed ? 1 : 0];
  return {together(compute, b.gather, b.in, out) + reduce,
          together(compute, b.gather, b.in, 0.0) + reduce,
          together(compute, 0.0, 0.0, out) + reduce, together(0.0, b.gather, b.in, 0.0),
          together(0.0, 0.0, 0.0, out)};
}

StageTimer::Pass StageTimer::backward(bool recomputed, bool last_microbatch) const {
  const Strategy& s = stage_.strategy;
  const LayerTime& block = stage_.block;
  const double at_end = s.shard_optimizer ? block_.scatter : block_.reduce;
  const double always = s.shard_grads ? block_.scatter : 0.0;
  const Beside b{s.shard_weights ? block_.gather : 0.0, last_microbatch ? at_end : always,
                 transfers_.weights_in + transfers_.grads_in, transfers_.grads_out};
  const double reduce = block.reduce_backward_s + (recomputed ? block.reduce_forward_s : 0.0);
  const double compute =
      layer_backward_s(block, mist_.microbatches) + (recomputed ? block.forward_s : 0.0) - reduce;
  const double in = b.in + transfers_.saved_in[recomputed ? 1 : 0];
  return {together(compute, b.gather + b.reduction, in, b.out) + reduce,
          together(compute, b.reduction, 0.0, b.out) + reduce,
          together(compute, b.gather, in, 0.0) + reduce, together(0.0, b.gather, in, 0.0),
          together(0.0, b.reduction, 0.0, b.out)};
}

Bundles StageTimer::bundles(const Pass& forward, const Pass& backward) {
  return {forward.inner + backward.inner,
          forward.exposed_before + forward.first + backward.first + backward.exposed_after,
          forward.exposed_after + forward.last + backward.last + backward.exposed_before};
}

Time StageTimer::head(bool recomputed) const {
  const Strategy& ends = mist_.ends;
  const std::size_t r = recomputed ? 1 : 0;
  const double backward_s = layer_backward_s(mist_.head, mist_.microbatches);
  Time time;
  time.stable_s = mist_.head.forward_s + std::max(backward_s - backward_[1].exposed_before, 0.0);

  const double hides_gather = stage_.block.forward_s - transfers_.saved_out[r];
  const double hides_scatter = layer_backward_s(stage_.block, mist_.microbatches) +
                               (recomputed ? stage_.block.forward_s : 0.0) -
                               (stage_.strategy.shard_weights ? block_.gather : 0.0) -
                               (transfers_.weights_in + transfers_.grads_in) -
                               transfers_.saved_in[r];
  (ends.shard_weights ? time.stable_s : time.delta_s) +=
      std::max(head_.gather - std::max(hides_gather, 0.0), 0.0);
  (ends.shard_grads ? time.stable_s : time.delta_s) +=
      std::max(head_.scatter - std::max(hides_scatter, 0.0), 0.0);
  return time;
}

}  // namespace brume::mist
