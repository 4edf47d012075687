/// @file Mist's peak memory of a stage.
#include <algorithm>
#include <cmath>

#include "mist/stage.hpp"
#include "units.hpp"

namespace brume::mist {
namespace {

double share(int dp, bool sharded) { return sharded ? 1.0 / dp : 1.0; }

/// Bytes of a layer's state that stay on the device.
struct State {
  double weights;
  double grads;
  double optimizer;

  double all() const { return weights + grads + optimizer; }
};

State state_of(double weights, const Strategy& s) {
  return {weights * share(s.dp, s.shard_weights) * (1.0 - s.offload_weights),
          weights * share(s.dp, s.shard_grads) * (1.0 - s.offload_grads),
          optimizer_per_weight * weights * share(s.dp, s.shard_optimizer) *
              (1.0 - s.offload_optimizer)};
}

/// Weights, or gradients, that are sharded or offloaded pass through two buffers of a whole layer.
double rings(const Strategy& s, const Strategy& ends, double largest_weights) {
  const bool weights =
      (s.shard_weights && s.dp > 1) || s.offload_weights > 0.0 || ends.shard_weights;
  const bool grads = (s.shard_grads && s.dp > 1) || s.offload_grads > 0.0 || ends.shard_grads;
  return ((weights ? 2.0 : 0.0) + (grads ? 2.0 : 0.0)) * largest_weights;
}

/// Over the peak, by what makes allocations scatter, the place left out.
double margin_of(const Model& model, const Strategy& s) {
  const auto beyond_2048 = [](double size) { return std::max(0.0, size / 2048.0 - 1.0); };
  double factor = 1.0 + 0.005 * beyond_2048(model.hidden) + 0.045 * beyond_2048(model.sequence);
  if (s.offload_weights > 0.0) factor += 0.025;
  if (s.offload_grads > 0.0) factor += 0.025;
  if (s.offload_optimizer > 0.0) factor += 0.03;
  if (s.offload_saved > 0.0) factor += 0.04;
  if (s.shard_weights) factor += 0.025;
  if (s.shard_grads) factor += 0.025;
  if (s.tp > 1) factor += 0.04;
  if (s.microbatch >= 4) factor += 0.01;
  return factor;
}

}  // namespace

/// Saved activations of one microbatch that stay on the device.
struct StageMemory::Saved {
  double all;        ///< of all layers
  double but_one;    ///< without the layer at work
  double coming_in;  ///< of that layer, from the host
  double full_in;    ///< the same, for a stage that recomputes nothing
};

StageMemory::StageMemory(const Case& mist, const Stage& stage) {
  const Strategy& s = stage.strategy;
  const Strategy& ends = mist.ends;
  block_ = block_bytes(mist.model, s.microbatch, s.tp);
  head_ = head_bytes(mist.model, ends.microbatch, ends.tp);
  const LayerBytes embedding = embedding_bytes(mist.model, ends.microbatch);
  offload_saved_ = s.offload_saved;
  full_ = block_.saved * (1.0 - s.offload_saved);
  input_ = block_.saved_recomputed * (1.0 - s.offload_saved);
  rings_ = rings(s, ends, std::max({block_.weights, embedding.weights, head_.weights}));
  const State state = state_of(block_.weights, s);
  weights_and_grads_ = state.weights + state.grads;
  optimizer_ = state.optimizer;
  // While it steps, one layer's optimizer state is on the device as a whole: counted in whole MiB.
  stepping_ = bytes_per_mib * std::floor(optimizer_per_weight * block_.weights *
                                         share(s.dp, s.shard_optimizer) / bytes_per_mib);
  embedding_ = state_of(embedding.weights, ends).all() + embedding.saved;
  embedding_saved_ = embedding.saved;
  Strategy whole = ends;
  whole.shard_weights = whole.shard_grads = false;
  head_state_ = state_of(head_.weights, whole).all();
  margin_ = margin_of(mist.model, s);
}

StageMemory::Saved StageMemory::saved(int l, int c) const {
  Saved saved{};
  saved.all = c * input_ + (l - c) * full_;
  saved.but_one = c == l ? (l - 1) * input_ : c * input_ + (l - c - 1) * full_;
  saved.coming_in = offload_saved_ * (c >= l - 1 ? block_.saved_recomputed : block_.saved);
  saved.full_in = c == 0 ? offload_saved_ * block_.saved : 0.0;
  return saved;
}

Peaks StageMemory::peaks(int layers, int recomputed, const Place& place) const {
  const Saved saved = this->saved(layers, recomputed);
  const double both = rings_ + layers * weights_and_grads_;
  const double states_forward = both + stepping_ + (layers - 1) * optimizer_;
  const double states_backward = both + layers * optimizer_;
  const double beside = saved.but_one + saved.coming_in + block_.scores;
  Peaks peaks{states_forward + beside + block_.forward_peak,
              states_backward + beside + block_.backward_peak + 2.0 * block_.output,
              saved.all + 2.0 * block_.output};
  if (place.last) {  // the head may need more than any block does
    const double at_head = head_state_ + saved.all + block_.scores;
    peaks.forward =
        std::max(states_forward + at_head + head_.forward_peak, peaks.forward + head_state_);
    peaks.backward = std::max(states_backward + at_head + head_.backward_peak + saved.full_in,
                              peaks.backward - block_.output + head_state_) +
                     head_.output;
  }
  if (place.first) {
    peaks.forward += embedding_;
    peaks.backward += embedding_;
    peaks.each_earlier += embedding_saved_;
  }
  return {peaks.forward / bytes_per_mib, peaks.backward / bytes_per_mib,
          peaks.each_earlier / bytes_per_mib};
}

double StageMemory::margin(const Place& place) const {
  double factor = margin_;
  if (!(place.first && place.last)) factor += 0.025;
  if (!place.first && !place.last) factor += 0.01;
  return factor;
}

double usable_mib(const Hardware& hardware) { return 0.88 * 1024.0 * hardware.memory_gib; }

}  // namespace brume::mist
