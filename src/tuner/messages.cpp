#include "messages.hpp"

#include <algorithm>

namespace brume::tuner {
MessageTable::MessageTable(Grid& grid, const Frame& frame, const hardware::Cluster& cluster)
    : count_(frame.layouts.size()) {
  if (frame.num_stages == 1) return;
  const bool tied = grid.model().tied_head && grid.model().trains_table();
  // The stages take all nodes, unless there are several kinds of them.
  const bool ends_on_one_node = cluster.num_groups() > 1 || cluster.groups[0].nodes == 1;
  for (const Layout& from : frame.layouts)
    for (const Layout& to : frame.layouts) {
      streams_s_.push_back(grid.stream_s(from, to));
      if (tied) tied_gradients_s_.push_back(grid.tied_gradient_s(from, to, ends_on_one_node));
    }
  least_stream_s_ = *std::ranges::min_element(streams_s_);
  const int count = int(count_);
  for (int a = 0; a < count; ++a)
    for (int b = 0; b < count; ++b) {
      bool streams = true, tables = true;
      for (int other = 0; other < count && (streams || tables); ++other) {
        streams = streams && stream_s(other, a) <= stream_s(other, b) &&
                  stream_s(a, other) <= stream_s(b, other);
        tables = tables && tied_gradient_s(other, a) <= tied_gradient_s(other, b);
      }
      no_slower_.push_back(streams ? 1 : 0);
      no_slower_as_last_.push_back(tables ? 1 : 0);
    }
}

}  // namespace brume::tuner
