/// @file Mist's counting of one stage, taken apart: what stays when its layers, the recomputed ones
/// and its place change. `predict` and the tuner put together the same parts.
#pragma once

#include <algorithm>
#include <array>

#include "mist/counting.hpp"

namespace brume::mist {

/// Position of a stage.
struct Place {
  bool first = true;
  bool last = true;
  int earlier = 0;  ///< microbatches in flight before the current one
};

/// Costs of an inner layer, and of all that belongs to the two ends of a stage [s].
struct Bundles {
  double inner = 0.0;
  double head = 0.0;
  double tail = 0.0;
};

struct Time {
  double stable_s = 0.0;  ///< t
  double delta_s = 0.0;   ///< d
};

/// t and d of a strategy, for any layers and place.
struct StageTime {
  std::array<Bundles, 2> stable, delta;  ///< [recomputed]
  Time embedding;                        ///< extra time of the first stage
  std::array<Time, 2> head;              ///< the last stage, [does it recompute a layer]

  Time at(int layers, int recomputed, const Place& place) const;

  /// t of a stage between others.
  double stable_s(int layers, int recomputed) const;
};

/// Prices the strategies of stages on one mesh with one microbatch, dp and tp.
class StageTimer {
 public:
  /// @param mist   hardware, microbatches and ends; has to outlive this
  /// @param stage  mesh, strategy and times of a layer
  StageTimer(const Case& mist, const Stage& stage);

  /// May differ from the stage's strategy in what is sharded and offloaded. Cheapest when it
  /// differs from the call before in the optimizer's ratio only.
  const StageTime& of(const Strategy& strategy);

 private:
  /// Times of one layer's transfers [s].
  struct Transfers {
    double weights_in = 0.0, weights_out = 0.0;
    double grads_in = 0.0, grads_out = 0.0;
    double optimizer_in = 0.0, optimizer_out = 0.0;
    std::array<double, 2> saved_in{}, saved_out{};  ///< [recomputed]
  };
  /// A pass over a microbatch: an inner layer, the layers at both ends, what these leave exposed.
  struct Pass {
    double inner = 0.0;
    double first = 0.0;
    double last = 0.0;
    double exposed_before = 0.0;
    double exposed_after = 0.0;
  };
  struct Collectives {
    double gather = 0.0;
    double scatter = 0.0;
    double reduce = 0.0;
  };

  Collectives collectives(double bytes, int dp) const;
  Transfers transfers() const;
  Pass forward(bool recomputed, bool first_microbatch) const;
  Pass backward(bool recomputed, bool last_microbatch) const;
  Time head(bool recomputed) const;
  double together(double compute, double network, double in, double out) const;
  static Bundles bundles(const Pass& forward, const Pass& backward);

  const Case& mist_;
  Stage stage_;
  LayerBytes bytes_;
  Collectives block_, head_;
  Transfers transfers_;
  bool known_ = false;
  std::array<Pass, 2> forward_, backward_, last_backward_;  ///< [recomputed]
  StageTime time_;
};

/// Peaks without earlier microbatches, and what each of these adds [MiB].
struct Peaks {
  double forward = 0.0;
  double backward = 0.0;
  double each_earlier = 0.0;
};

/// Memory of a strategy, for any layers and place.
class StageMemory {
 public:
  StageMemory(const Case& mist, const Stage& stage);

  Peaks peaks(int layers, int recomputed, const Place& place) const;

  /// Growth of a byte by fragmentation.
  double margin(const Place& place) const;

 private:
  struct Saved;
  Saved saved(int layers, int recomputed) const;

  LayerBytes block_, head_;
  double offload_saved_ = 0.0;
  double full_ = 0.0, input_ = 0.0;  ///< saved by a layer and staying on the device
  double rings_ = 0.0;
  double weights_and_grads_ = 0.0, optimizer_ = 0.0;  ///< bytes of a layer
  double stepping_ = 0.0;                             ///< optimizer state of the layer that steps
  double embedding_ = 0.0, embedding_saved_ = 0.0;
  double head_state_ = 0.0;
  double margin_ = 1.0;
};

}  // namespace brume::mist
