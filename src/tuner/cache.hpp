/// @file Times, strategies and placements that a search leaves to the next one.
#pragma once

#include <string>

#include "rows.hpp"
#include "schedule/pack.hpp"
#include "search.hpp"
#include "tuner/tuner.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {

struct Cache::Known {
  /// @param machine_  before nodes are chosen
  Known(const model::Config& model_, hardware::Machine machine_, const hardware::Cluster& cluster,
        int threads)
      : model(model_),
        machine(std::move(machine_)),
        rows(cluster),
        workers(model, machine, budget.deadline(), threads) {}
  Known(const Known&) = delete;

  model::Config model;
  hardware::Machine machine;
  Budget budget{0.0, nullptr};
  AllRows rows;
  schedule::Packings packings;
  WorkerPool workers;
};

}  // namespace brume::tuner
