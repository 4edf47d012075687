/// @file Mist's time of a stage: what runs beside each layer, what stays exposed.
#include "mist_stage.hpp"

#include <algorithm>

namespace brume::analyzer {
namespace {

/// Work of the four resources that starts together [s].
struct Load {
  double compute = 0.0;
  double network = 0.0;
  double in = 0.0;
  double out = 0.0;
};

/// Times of one layer's transfers [s].
struct Transfers {
  double gather = 0.0;
  double scatter = 0.0;
  double reduce = 0.0;
  double weights_in = 0.0, weights_out = 0.0;
  double grads_in = 0.0, grads_out = 0.0;
  double optimizer_in = 0.0, optimizer_out = 0.0;
  std::array<double, 2> saved_in{}, saved_out{};  ///< [recomputed]
};

/// What runs beside a layer in one pass over a microbatch, activations left out.
struct Beside {
  double gather = 0.0;
  double reduction = 0.0;
  double in = 0.0;
  double out = 0.0;
};

/// What a pass costs: an inner layer, the ends of the stage, and what the ends leave exposed.
struct Pass {
  double inner = 0.0;
  double first = 0.0;
  double last = 0.0;
  double exposed_before = 0.0;
  double exposed_after = 0.0;
};

/// Sums over passes, for an inner layer and for the bundles at both ends of the stage.
struct Bundles {
  double inner = 0.0;
  double head = 0.0;
  double tail = 0.0;
};

struct Group {
  int nodes;
  int ranks;
};

Group data_group(const MistStage& stage, int dp) {
  return dp > stage.nodes ? Group{stage.nodes, dp / stage.nodes} : Group{dp, 1};
}

double collective_s(const MistCase& mist, const MistStage& stage, MistCollective kind, double bytes,
                    int dp) {
  const Group group = data_group(stage, dp);
  return mist_collective_s(mist.hardware, kind, bytes / bytes_per_gib, group.nodes, group.ranks);
}

Transfers transfers_of(const MistCase& mist, const MistStage& stage) {
  const MistStrategy& s = stage.strategy;
  const MistHardware& hardware = mist.hardware;
  const MistLayerBytes block = mist_block_bytes(mist.model, s.microbatch, s.tp);
  const auto in = [&](double bytes) {
    return mist_copy_s(hardware.copy_in, bytes / bytes_per_gib);
  };
  const auto out = [&](double bytes) {
    return mist_copy_s(hardware.copy_out, bytes / bytes_per_gib);
  };
  const double weights = block.weights / (s.shard_weights ? s.dp : 1) * s.offload_weights;
  const double grads = block.weights / (s.shard_grads ? s.dp : 1) * s.offload_grads;
  const double optimizer =
      optimizer_per_weight * block.weights / (s.shard_optimizer ? s.dp : 1) * s.offload_optimizer;
  Transfers t;
  t.gather = collective_s(mist, stage, MistCollective::all_gather, block.weights, s.dp);
  t.scatter = collective_s(mist, stage, MistCollective::reduce_scatter, block.weights, s.dp);
  t.reduce = collective_s(mist, stage, MistCollective::all_reduce, block.weights, s.dp);
  t.weights_in = in(weights), t.weights_out = out(weights);
  t.grads_in = in(grads), t.grads_out = out(grads);
  t.optimizer_in = in(optimizer), t.optimizer_out = out(optimizer);
  for (const int recomputed : {0, 1}) {
    const double saved = s.offload_saved * (recomputed == 1 ? block.saved_recomputed : block.saved);
    t.saved_in[recomputed] = in(saved), t.saved_out[recomputed] = out(saved);
  }
  return t;
}

Beside beside_forward(const Transfers& t, const MistStrategy& s, bool first_microbatch) {
  if (first_microbatch)
    return {s.shard_optimizer ? t.gather : 0.0, 0.0, t.optimizer_in + t.grads_in,
            t.optimizer_out + t.weights_out};
  return {s.shard_weights ? t.gather : 0.0, 0.0, t.weights_in, 0.0};
}

Beside beside_backward(const Transfers& t, const MistStrategy& s, bool last_microbatch) {
  const double at_end = s.shard_optimizer ? t.scatter : t.reduce;
  const double always = s.shard_grads ? t.scatter : 0.0;
  return {s.shard_weights ? t.gather : 0.0, last_microbatch ? at_end : always,
          t.weights_in + t.grads_in, t.grads_out};
}

double layer_backward_s(const MistLayerTime& block, int microbatches) {
  return block.backward_s + block.accumulate_s * (microbatches - 1) / microbatches;
}

/// A stage under the interference of its machine.
class StageTime {
 public:
  StageTime(const MistCase& mist, const MistStage& stage)
      : mist_(mist), stage_(stage), transfers_(transfers_of(mist, stage)) {}

  double stable_s() const { return sum(stable(false), stable(true)); }
  double delta_s() const { return mist_.microbatches == 1 ? 0.0 : sum(delta(false), delta(true)); }
  void add_embedding(MistStagePrediction& time) const;
  void add_head(MistStagePrediction& time) const;

 private:
  double together(const Load& load) const {
    return mist_overlapped_s(mist_.hardware.slowdowns,
                             {load.compute, load.network, load.in, load.out});
  }
  Pass forward(bool recomputed, bool first_microbatch) const;
  Pass backward(bool recomputed, bool last_microbatch) const;
  static Bundles bundles(const Pass& forward, const Pass& backward);
  Bundles ends(bool recomputed) const;
  Bundles stable(bool recomputed) const;
  Bundles delta(bool recomputed) const;
  double sum(const Bundles& full, const Bundles& recomputed) const;

  const MistCase& mist_;
  const MistStage& stage_;
  Transfers transfers_;
};

Pass StageTime::forward(bool recomputed, bool first_microbatch) const {
  const Beside b = beside_forward(transfers_, stage_.strategy, first_microbatch);
  const double reduce = stage_.block.reduce_forward_s;
  const double compute = stage_.block.forward_s - reduce;
  const double out = b.out + transfers_.saved_out[recomputed ? 1 : 0];
  return {together({compute, b.gather, b.in, out}) + reduce,
          together({compute, b.gather, b.in, 0.0}) + reduce,
          together({compute, 0.0, 0.0, out}) + reduce, together({0.0, b.gather, b.in, 0.0}),
          together({0.0, 0.0, 0.0, out})};
}

Pass StageTime::backward(bool recomputed, bool last_microbatch) const {
  const Beside b = beside_backward(transfers_, stage_.strategy, last_microbatch);
  const MistLayerTime& block = stage_.block;
  const double reduce = block.reduce_backward_s + (recomputed ? block.reduce_forward_s : 0.0);
  const double compute =
      layer_backward_s(block, mist_.microbatches) + (recomputed ? block.forward_s : 0.0) - reduce;
  const double in = b.in + transfers_.saved_in[recomputed ? 1 : 0];
  return {together({compute, b.gather + b.reduction, in, b.out}) + reduce,
          together({compute, b.reduction, 0.0, b.out}) + reduce,
          together({compute, b.gather, in, 0.0}) + reduce, together({0.0, b.gather, in, 0.0}),
          together({0.0, b.reduction, 0.0, b.out})};
}

Bundles StageTime::bundles(const Pass& forward, const Pass& backward) {
  return {forward.inner + backward.inner,
          forward.exposed_before + forward.first + backward.first + backward.exposed_after,
          forward.exposed_after + forward.last + backward.last + backward.exposed_before};
}

Bundles StageTime::ends(bool recomputed) const {
  return bundles(forward(recomputed, true), backward(recomputed, true));
}

/// One microbatch only is the first and the last.
Bundles StageTime::stable(bool recomputed) const {
  if (mist_.microbatches == 1) return ends(recomputed);
  return bundles(forward(recomputed, false), backward(recomputed, false));
}

Bundles StageTime::delta(bool recomputed) const {
  const Bundles more = ends(recomputed);
  const Bundles less = stable(recomputed);
  return {more.inner - less.inner, more.head - less.head, more.tail - less.tail};
}

/// The bundles of both ends stand for two layers, also in a stage of one.
double StageTime::sum(const Bundles& full, const Bundles& recomputed) const {
  const int l = stage_.layers;
  const int c = stage_.recomputed;
  const int inner = std::max(0, l - 2);
  const int inner_recomputed = std::clamp(c - 1, 0, inner);
  const double s = inner_recomputed * recomputed.inner + (inner - inner_recomputed) * full.inner +
                   (c == l ? recomputed.head : full.head) + (c == 0 ? full.tail : recomputed.tail);
  return static_cast<float>(s);  // as Mist does before it adds the ends of the model
}

void StageTime::add_embedding(MistStagePrediction& time) const {
  const MistStrategy& s = mist_.ends;
  const double bytes = mist_embedding_bytes(mist_.model, s.microbatch).weights;
  const double gather = collective_s(mist_, stage_, MistCollective::all_gather, bytes, s.dp);
  const double scatter = collective_s(mist_, stage_, MistCollective::reduce_scatter, bytes, s.dp);
  time.stable_s +=
      mist_.embedding.forward_s + layer_backward_s(mist_.embedding, mist_.microbatches);
  (s.shard_weights ? time.stable_s : time.delta_s) += gather;
  (s.shard_grads ? time.stable_s : time.delta_s) += scatter;
}

void StageTime::add_head(MistStagePrediction& time) const {
  const MistStrategy& s = mist_.ends;
  const double bytes = mist_head_bytes(mist_.model, s.microbatch, s.tp).weights;
  const double gather = collective_s(mist_, stage_, MistCollective::all_gather, bytes, s.dp);
  const double scatter = collective_s(mist_, stage_, MistCollective::reduce_scatter, bytes, s.dp);
  const double before_backward = backward(true, false).exposed_before;
  time.stable_s +=
      mist_.head.forward_s +
      std::max(layer_backward_s(mist_.head, mist_.microbatches) - before_backward, 0.0);

  const bool recomputed = stage_.recomputed > 0;
  const Beside b = beside_backward(transfers_, stage_.strategy, true);
  const double hides_gather = stage_.block.forward_s - transfers_.saved_out[recomputed ? 1 : 0];
  const double hides_scatter = layer_backward_s(stage_.block, mist_.microbatches) +
                               (recomputed ? stage_.block.forward_s : 0.0) - b.gather - b.in -
                               transfers_.saved_in[recomputed ? 1 : 0];
  (s.shard_weights ? time.stable_s : time.delta_s) +=
      std::max(gather - std::max(hides_gather, 0.0), 0.0);
  (s.shard_grads ? time.stable_s : time.delta_s) +=
      std::max(scatter - std::max(hides_scatter, 0.0), 0.0);
}

}  // namespace

MistStagePrediction mist_stage_time(const MistCase& mist, const MistStage& stage,
                                    const MistPlace& place) {
  const StageTime stage_time(mist, stage);
  MistStagePrediction time;
  time.stable_s = stage_time.stable_s();
  time.delta_s = stage_time.delta_s();
  if (place.first) stage_time.add_embedding(time);
  if (place.last) stage_time.add_head(time);
  return time;
}

}  // namespace brume::analyzer
