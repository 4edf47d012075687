#include "crossings.hpp"

#include <algorithm>
#include <numeric>

namespace brume::tuner {

Crossings::Crossings(const Grid& grid, const Frame& frame)
    : frame_(frame), num_groups_(grid.machine().num_groups()) {
  if (num_groups_ == 1 || frame.num_stages == 1) return;
  for (const Layout& mesh : frame.layouts) {
    analyzer::StageRole role{.first = false, .last = false, .group = mesh.group};
    const auto messages_s = [&](int before, int after) {
      role.before = before;
      role.after = after;
      return analyzer::messages_s(grid.model(), grid.machine(), role)
          .evaluate({{"b", double(mesh.microbatch)},
                     {"tp", double(mesh.tp)},
                     {"r", double(frame.run_ahead)},
                     {"G", double(frame.microbatches)},
                     {"S", double(frame.num_stages)},
                     {"n", double(mesh.nodes)},
                     {"m", double(mesh.devices_per_node)}});
    };
    const double alone_s = messages_s(mesh.group, mesh.group);
    for (int before = 0; before < num_groups_; ++before)
      for (int after = 0; after < num_groups_; ++after)
        added_s_.push_back(messages_s(before, after) - alone_s);
  }
}

std::vector<int> Crossings::groups(int layout, bool at_end) const {
  if (at_end || added_s_.empty()) return {frame_.layouts[std::size_t(layout)].group};
  std::vector<int> all(static_cast<std::size_t>(num_groups_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> Crossings::before(int layout, int stages_after) const {
  return groups(layout, stages_after + 1 == frame_.num_stages);
}

std::vector<int> Crossings::after(int layout, int stages_after) const {
  return groups(layout, stages_after == 0);
}

double Crossings::added_s(int layout, int before, int after) const {
  return added_s_.empty()
             ? 0.0
             : added_s_[std::size_t((layout * num_groups_ + before) * num_groups_ + after)];
}

double Crossings::least_s(int layout, int stages_after) const {
  double least_s = 0.0;  // beside stages of its own group
  for (int before : this->before(layout, stages_after))
    for (int after : this->after(layout, stages_after))
      least_s = std::min(least_s, added_s(layout, before, after));
  return least_s;
}

void Crossings::add_cells(Pipeline& pipeline, int layout, int stages_after, int layers,
                          const std::vector<Point>& points) const {
  for (int before : this->before(layout, stages_after))
    for (int after : this->after(layout, stages_after)) {
      const double more_s = added_s(layout, before, after);
      const std::vector<Point>* own = &points;
      if (more_s != 0.0) {
        own = &pipeline.own.emplace_back(points);
        for (Point& point : pipeline.own.back()) point.stable_s += more_s;
      }
      pipeline.cells[std::size_t(stages_after)].push_back({layout, layers, *own, before, after});
    }
}

}  // namespace brume::tuner
