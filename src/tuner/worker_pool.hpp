/// @file Threads that search together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"

namespace brume::tuner {

class Grid;

/// Each thread has a grid of its own, which remembers what it was asked. What is found depends
/// neither on their number nor on which of them does what.
class WorkerPool {
 public:
  /// @param threads  at least 1; what else it is given must outlive it
  WorkerPool(const model::Config& model, const hardware::Machine& machine, const Deadline& deadline,
             int threads);
  ~WorkerPool();

  /// Calls `body` for each i in [0, count), as parallel_for does.
  void each(std::size_t count, const std::function<void(std::size_t i, Grid& grid)>& body);

  int threads() const { return int(grids_.size()); }
  /// Grid of the calling thread.
  Grid& grid() { return of_thread(0); }
  /// Sum over all grids.
  std::int64_t evaluations() const;

 private:
  Grid& of_thread(std::size_t thread);

  const model::Config& model_;
  const hardware::Machine& machine_;
  const Deadline& deadline_;
  std::vector<std::unique_ptr<Grid>> grids_;  ///< [thread] none before it is needed
};

}  // namespace brume::tuner
