#include "analyzer/pipeline_time.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace brume::analyzer {

double iteration_time(std::span<const StageTime> stages, int num_microbatches) {
  require(!stages.empty(), Failure::bug, "a pipeline needs at least one stage");
  require(num_microbatches >= 1, Failure::bug, "an iteration needs at least one microbatch");

  double slowest_s = 0.0;  // max_i t_i
  double filled_s = 0.0;   // sum_{j<i} t_j: how long stage i waits for its first input
  double exposed_s = 0.0;  // max_i (d_i - sum_{j<i} t_j)
  for (const StageTime& stage : stages) {
    // A late stage idles while the pipeline fills; that part of its delta costs nothing.
    exposed_s = std::max(exposed_s, stage.delta_s - filled_s);
    slowest_s = std::max(slowest_s, stage.stable_s);
    filled_s += stage.stable_s;
  }
  return (num_microbatches - 1) * slowest_s + filled_s + exposed_s;
}

}  // namespace brume::analyzer
