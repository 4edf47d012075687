/// @file States and steps of the inter-stage dynamic program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "pipeline.hpp"

namespace brume::tuner {

/// A way to place the last stages.
struct Label {
  double sum_s;                   ///< sum of their stable times
  double least_s;                 ///< max over them of whole time + later stable times
  PerGroup<double> host_bytes{};  ///< on each group's node that has room for more, if shared
  int next = -1;                  ///< label of the stages after
  const Point* point = nullptr;
};

/// Points of one number of layers under the threshold.
struct Arc {
  int layers;
  std::vector<const Point*> points;
};

/// What a stage may take on a mesh of so many devices, by rising layers.
struct Mesh {
  int group;
  int devices;
  int next_turn;
  std::vector<Arc> arcs;
};

/// Labels by devices and layers used and the groups whose turn it is.
class States {
 public:
  struct State {
    std::size_t use;
    int turn;
    int layers;
    std::vector<int> labels;
  };

  States(std::size_t uses, int turns, int layers)
      : turns_(std::size_t(turns)),
        width_(std::size_t(layers) + 1),
        places_(uses * turns_ * width_, -1) {}

  /// Valid until another state is asked for.
  std::vector<int>& labels(std::size_t use, int turn, int layers) {
    int& at = place(use, turn, layers);
    if (at < 0) {
      at = int(all_.size());
      all_.push_back({use, turn, layers, {}});
    }
    return all_[std::size_t(at)].labels;
  }

  /// In rising order; forgets them.
  std::vector<State> take() {
    for (const State& state : all_) place(state.use, state.turn, state.layers) = -1;
    std::ranges::sort(all_, {}, [](const State& s) { return std::tuple{s.use, s.turn, s.layers}; });
    return std::exchange(all_, {});
  }

 private:
  int& place(std::size_t use, int turn, int layers) {
    return places_[(use * turns_ + std::size_t(turn)) * width_ + std::size_t(layers)];
  }

  std::size_t turns_, width_;
  std::vector<int> places_;  ///< [use, turn, layers]
  std::vector<State> all_;
};

}  // namespace brume::tuner
