#include "worker_pool.hpp"

#include "base/parallel.hpp"
#include "grid.hpp"

namespace brume::tuner {

WorkerPool::WorkerPool(const model::Config& model, const hardware::Machine& machine,
                       const Deadline& deadline, int threads)
    : model_(model), machine_(machine), deadline_(deadline), grids_(std::size_t(threads)) {}

WorkerPool::~WorkerPool() = default;

Grid& WorkerPool::of_thread(std::size_t thread) {
  std::unique_ptr<Grid>& grid = grids_[thread];
  if (!grid) grid = std::make_unique<Grid>(model_, machine_, deadline_);
  return *grid;
}

void WorkerPool::each(std::size_t count,
                      const std::function<void(std::size_t i, Grid& grid)>& body) {
  parallel_for(count, threads(),
               [&](std::size_t i, std::size_t thread) { body(i, of_thread(thread)); });
}

std::int64_t WorkerPool::evaluations() const {
  std::int64_t sum = 0;
  for (const auto& grid : grids_)
    if (grid) sum += grid->evaluations();
  return sum;
}

}  // namespace brume::tuner
