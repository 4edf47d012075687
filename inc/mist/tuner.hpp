/// @file Tuning as Mist counts, in Mist's search space or a wider one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "mist/case.hpp"

namespace brume::mist {

/// How many layers of a stage may be recomputed.
enum class Recompute { none, some, all };

/// Choices of a search. The defaults are Mist's own space, without tensor parallelism.
///
/// Stages share mesh, microbatch, dp and tp; each has its own layers, recomputed layers, ZeRO level
/// and offload ratios. Weights are offloaded with gradients only.
struct Space {
  std::vector<int> tp{1};
  std::vector<int> microbatch{1, 2, 4};
  std::vector<int> dp;            ///< empty: any
  std::vector<int> stages;        ///< empty: each number that divides the devices
  std::vector<int> microbatches;  ///< G; empty: each power of two that divides the batch
  std::vector<int> zero_levels{1, 2, 3};
  Recompute recompute = Recompute::some;
  bool recompute_all_but_one = false;  ///< Mist's memory falls short there
  bool ends_data_parallel = true;      ///< embedding and head: data alone over a stage's devices
  int uneven_layers = 2;               ///< most that a stage differs from the rounded mean
  std::vector<double> offload_weights{0.0, 0.25, 0.375, 0.5, 0.75, 1.0};
  std::vector<double> offload_grads{0.0, 0.25, 0.375, 0.5, 0.75, 1.0};
  std::vector<double> offload_optimizer{0.0, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0};
  std::vector<double> offload_saved{0.0, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0};
};

/// Times of a layer at (microbatch, tp); none where it was not measured: such plans are left out.
using LayerTimes = std::function<std::optional<LayerTime>(Layer, int microbatch, int tp)>;

struct Job {
  Model model;
  Hardware hardware;
  int num_layers = 1;
  int global_batch = 1;
  int nodes = 1;
  int ranks_per_node = 1;
  LayerTimes time;
};

/// How a search went.
struct Search {
  double seconds = 0.0;
  int shapes = 0;               ///< ways to cut devices and batch
  int searched = 0;             ///< searched ones that their bound did not exclude
  std::int64_t strategies = 0;  ///< strategies of stages that were priced
  std::int64_t candidates = 0;  ///< (strategy, layers, recomputed layers) that fit and may win
  std::int64_t programs = 0;    ///< dynamic programs over stages and layers
};

struct Tuned {
  Case plan;
  Prediction prediction;  ///< prediction of that plan by `predict`
  Search search;
};

/// The fastest plan of the space that fits, by `predict`; exact.
///
/// @throws Error(infeasible) when nothing fits, Error(input) for empty lists
Tuned tune(const Job& job, const Space& space);

}  // namespace brume::mist
