/// @file States and steps of the inter-stage dynamic program.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "point.hpp"
#include "prices.hpp"

namespace brume::tuner {

/// A way to place the last stages.
struct Label {
  double trip_s = 0.0;   ///< the fastest microbatch through them and back, with its messages
  double front_s = 0.0;  ///< the share of the first one in that
  double least_s = 0.0;  ///< no iteration of them alone is faster
  /// The longest that one of them works, were nothing to hide its updates, or the last one until
  /// the gradient of a tied table is home.
  double standalone_s = 0.0;
  int layout = -1;                ///< layout of the first one
  PerGroup<double> host_bytes{};  ///< host memory of each group's open node, if shared
  int next = -1;                  ///< label of the stages after
  const Point* point = nullptr;

  double bound_s() const { return std::max(least_s, standalone_s); }
  using Times = std::array<double, 4>;
  /// Times that decide dominance.
  Times times_s() const { return {trip_s, front_s, least_s, standalone_s}; }
};

/// A label of a state. Times alone decide most comparisons, so they are stored next to each other.
struct Entry {
  Label::Times times_s;
  int label;
};

/// Points of one number of layers under the threshold.
struct Arc {
  int layers;
  std::vector<const Point*> points;
};

/// Points of a stage on a mesh of this size, by rising layers.
struct Mesh {
  int group;
  int devices;
  std::vector<Arc> arcs;
};

/// Labels by devices and layers used.
class States {
 public:
  struct State {
    std::size_t use;
    int layers;
    std::vector<Entry> labels;
  };

  States(std::size_t usage, int layers)
      : width_(std::size_t(layers) + 1), places_(usage * width_, -1) {}

  /// Valid until another state is asked for.
  std::vector<Entry>& labels(std::size_t use, int layers) {
    int& at = place(use, layers);
    if (at < 0) {
      at = int(all_.size());
      all_.push_back({use, layers, {}});
    }
    return all_[at].labels;
  }

  /// Returns the states in rising order and forgets them.
  std::vector<State> take() {
    for (const State& state : all_) place(state.use, state.layers) = -1;
    std::ranges::sort(all_, {}, [](const State& s) { return std::pair{s.use, s.layers}; });
    return std::exchange(all_, {});
  }

 private:
  int& place(std::size_t use, int layers) { return places_[use * width_ + std::size_t(layers)]; }

  std::size_t width_;
  std::vector<int> places_;  ///< [use, layers]
  std::vector<State> all_;
};

}  // namespace brume::tuner
