/// @file A bound on what all stages take together: devices and layers at a price.
#pragma once

#include <array>
#include <vector>

#include "base/deadline.hpp"
#include "deck/deck.hpp"

namespace brume::tuner {

/// Something of each group of a cluster.
template <typename T>
using PerGroup = std::array<T, deck::most_groups>;

/// A mesh that a stage may take, its layers, and the time of its first and last pass.
struct Option {
  int group;
  int devices;
  int layers;
  double fill_s;
};

/// Stages that choose from the same options.
struct StageClass {
  int stages;
  std::vector<Option> options;
};

/// Prices under which each stage may choose on its own:
///
///   sum_i t_i >= sum_i min (t + device_s devices - layer_s layers)
///                - sum_groups device_s all devices + layer_s all layers
///
/// for every assignment that uses no more devices and holds all layers, whatever the prices.
struct Prices {
  PerGroup<double> device_s{};
  double layer_s = 0.0;
  double sum_s = 0.0;  ///< the bound
};

/// Prices, 0 or higher, whose bound is high: by bisection and golden sections, because it is
/// concave; of several groups' devices one price after the other.
/// @param devices   by group
/// @throws OutOfTime
Prices best_prices(const std::vector<StageClass>& stages, int num_layers,
                   const std::vector<int>& devices, const Deadline& deadline);

}  // namespace brume::tuner
