/// @file Mist's peak memory of a stage.
#include "mist_stage.hpp"

#include <algorithm>
#include <cmath>

namespace brume::analyzer {
namespace {

double share(int dp, bool sharded) { return sharded ? 1.0 / dp : 1.0; }

/// Bytes of a layer's state that stay on the device.
struct State {
  double weights;
  double grads;
  double optimizer;

  double all() const { return weights + grads + optimizer; }
};

State state_of(double weights, const MistStrategy& s) {
  return {weights * share(s.dp, s.shard_weights) * (1.0 - s.offload_weights),
          weights * share(s.dp, s.shard_grads) * (1.0 - s.offload_grads),
          optimizer_per_weight * weights * share(s.dp, s.shard_optimizer) *
              (1.0 - s.offload_optimizer)};
}

struct Layers {
  MistLayerBytes block;
  MistLayerBytes embedding;
  MistLayerBytes head;
};

Layers layers_of(const MistCase& mist, const MistStage& stage) {
  const MistStrategy& s = stage.strategy;
  return {mist_block_bytes(mist.model, s.microbatch, s.tp),
          mist_embedding_bytes(mist.model, mist.ends.microbatch),
          mist_head_bytes(mist.model, mist.ends.microbatch, mist.ends.tp)};
}

/// Weights, or gradients, that are sharded or offloaded pass through two buffers of a whole layer.
double ring_bytes(const Layers& layers, bool needed) {
  if (!needed) return 0.0;
  return 2.0 * std::max({layers.block.weights, layers.embedding.weights, layers.head.weights});
}

double rings(const MistCase& mist, const MistStage& stage, const Layers& layers) {
  const MistStrategy& s = stage.strategy;
  const bool weights =
      (s.shard_weights && s.dp > 1) || s.offload_weights > 0.0 || mist.ends.shard_weights;
  const bool grads = (s.shard_grads && s.dp > 1) || s.offload_grads > 0.0 || mist.ends.shard_grads;
  return ring_bytes(layers, weights) + ring_bytes(layers, grads);
}

/// While it steps, one layer's optimizer state is on the device as a whole: counted in whole MiB.
double stepping_bytes(const MistStage& stage, double weights) {
  const MistStrategy& s = stage.strategy;
  const double bytes = optimizer_per_weight * weights * share(s.dp, s.shard_optimizer);
  return std::floor(bytes / bytes_per_mib) * bytes_per_mib;
}

/// Saved activations of one microbatch that stay on the device.
struct Saved {
  double all;        ///< of all layers
  double but_one;    ///< without the layer at work
  double coming_in;  ///< of that layer, from the host
  double full_in;    ///< the same, for a stage that recomputes nothing
};

Saved saved_of(const MistStage& stage, const MistLayerBytes& block) {
  const double moved = stage.strategy.offload_saved;
  const double full = block.saved * (1.0 - moved);
  const double input = block.saved_recomputed * (1.0 - moved);
  const int l = stage.layers;
  const int c = stage.recomputed;
  Saved saved{};
  saved.all = c * input + (l - c) * full;
  saved.but_one = c == l ? (l - 1) * input : c * input + (l - c - 1) * full;
  saved.coming_in = moved * (c >= l - 1 ? block.saved_recomputed : block.saved);
  saved.full_in = c == 0 ? moved * block.saved : 0.0;
  return saved;
}

struct Peaks {
  double forward;
  double backward;
};

Peaks states_of(const MistCase& mist, const MistStage& stage, const Layers& layers) {
  const State state = state_of(layers.block.weights, stage.strategy);
  const double both = rings(mist, stage, layers) + stage.layers * (state.weights + state.grads);
  return {both + stepping_bytes(stage, layers.block.weights) + (stage.layers - 1) * state.optimizer,
          both + stage.layers * state.optimizer};
}

Peaks middle_peaks(const Peaks& states, const Saved& saved, const MistLayerBytes& block,
                   int earlier) {
  const double beside = earlier * saved.all + saved.but_one + saved.coming_in +
                        2.0 * earlier * block.output + block.scores;
  return {states.forward + beside + block.forward_peak,
          states.backward + beside + block.backward_peak + 2.0 * block.output};
}

/// The head may need more than any block does.
Peaks with_head(const MistCase& mist, const Peaks& states, const Saved& saved, const Layers& layers,
                const Peaks& middle) {
  MistStrategy whole = mist.ends;
  whole.shard_weights = whole.shard_grads = false;
  const double head_state = state_of(layers.head.weights, whole).all();
  const double beside = head_state + saved.all + layers.block.scores;
  return {std::max(states.forward + beside + layers.head.forward_peak, middle.forward + head_state),
          std::max(states.backward + beside + layers.head.backward_peak + saved.full_in,
                   middle.backward - layers.block.output + head_state) +
              layers.head.output};
}

/// Over the peak, by what makes allocations scatter.
double margin(const MistCase& mist, const MistStrategy& s, const MistPlace& place) {
  const auto beyond_2048 = [](double size) { return std::max(0.0, size / 2048.0 - 1.0); };
  double factor =
      1.0 + 0.005 * beyond_2048(mist.model.hidden) + 0.045 * beyond_2048(mist.model.sequence);
  if (s.offload_weights > 0.0) factor += 0.025;
  if (s.offload_grads > 0.0) factor += 0.025;
  if (s.offload_optimizer > 0.0) factor += 0.03;
  if (s.offload_saved > 0.0) factor += 0.04;
  if (s.shard_weights) factor += 0.025;
  if (s.shard_grads) factor += 0.025;
  if (s.tp > 1) factor += 0.04;
  if (s.microbatch >= 4) factor += 0.01;
  if (!(place.first && place.last)) factor += 0.025;
  if (!place.first && !place.last) factor += 0.01;
  return factor;
}

}  // namespace

MistStagePrediction mist_stage_memory(const MistCase& mist, const MistStage& stage,
                                      const MistPlace& place) {
  const Layers layers = layers_of(mist, stage);
  const Saved saved = saved_of(stage, layers.block);
  const Peaks states = states_of(mist, stage, layers);
  Peaks peaks = middle_peaks(states, saved, layers.block, place.earlier);
  if (place.last) peaks = with_head(mist, states, saved, layers, peaks);
  const double embedding = place.first ? state_of(layers.embedding.weights, mist.ends).all() +
                                             (place.earlier + 1) * layers.embedding.saved
                                       : 0.0;
  MistStagePrediction prediction;
  prediction.peak_forward_mib = (peaks.forward + embedding) / bytes_per_mib;
  prediction.peak_backward_mib = (peaks.backward + embedding) / bytes_per_mib;
  prediction.needed_mib = margin(mist, stage.strategy, place) *
                          std::max(prediction.peak_forward_mib, prediction.peak_backward_mib);
  return prediction;
}

double mist_usable_mib(const MistHardware& hardware) { return 0.88 * 1024.0 * hardware.memory_gib; }

}  // namespace brume::analyzer
