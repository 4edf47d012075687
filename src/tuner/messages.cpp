#include "messages.hpp"

#include <algorithm>

#include "grid.hpp"
#include "numbers.hpp"

namespace brume::tuner {

MessageTable::MessageTable(Grid& grid, const PipelineConfig& config,
                           const hardware::Cluster& cluster)
    : count_(config.layouts.size()) {
  if (config.num_stages == 1) return;
  for (const Layout& from : config.layouts)
    for (const Layout& to : config.layouts) streams_s_.push_back(grid.stream_s(from, to));
  least_stream_s_ = *std::ranges::min_element(streams_s_);
  const int count = int(count_);
  for (int a = 0; a < count; ++a)
    for (int b = 0; b < count; ++b) {
      bool no_slower = true;
      for (int other = 0; other < count && no_slower; ++other)
        no_slower =
            stream_s(other, a) <= stream_s(other, b) && stream_s(a, other) <= stream_s(b, other);
      no_slower_.push_back(no_slower ? 1 : 0);
    }
  if (!grid.model().tied_head || !grid.model().trains_table()) return;
  // Stages stand in order and take all devices, unless there are several kinds of them.
  const auto on_one_node = [&](const Layout& first, const Layout& last) {
    if (cluster.num_groups() > 1) return true;
    const int of_node = grid.machine().profile(0).key.ranks_per_node;
    return (first.devices() - 1) / of_node == (cluster.devices() - last.devices()) / of_node;
  };
  for (const Layout& last : config.layouts) {
    double& least_s = tied_gradients_s_.emplace_back(infinity);
    for (const Layout& first : config.layouts)
      least_s = std::min(least_s, grid.tied_gradient_s(first, last, on_one_node(first, last)));
  }
}

}  // namespace brume::tuner
