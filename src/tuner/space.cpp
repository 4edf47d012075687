#include "space.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "numbers.hpp"

namespace brume::tuner {
namespace {

constexpr int largest_microbatch = 32;

/// Whether a list of the deck allows a value; an empty list allows all.
bool allows(const std::vector<int>& list, int value) {
  return list.empty() || std::ranges::find(list, value) != list.end();
}

/// A mesh of so many devices, within a node or of whole nodes.
std::optional<Layout> mesh(int devices, const hardware::NodeGroup& group) {
  const int per_node = group.devices_per_node;
  if (devices > group.devices()) return std::nullopt;
  if (devices <= per_node) return Layout{.nodes = 1, .devices_per_node = devices};
  if (devices % per_node != 0) return std::nullopt;
  return Layout{.nodes = devices / per_node, .devices_per_node = per_node};
}

using Layouts = std::map<int, std::vector<Layout>>;

/// Adds the layouts of one group, by number of microbatches.
void add_layouts(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
                 int group, const deck::SearchKeys& search, Layouts& found) {
  const hardware::NodeGroup& nodes = cluster.groups[std::size_t(group)];
  for (int tp = 1; tp <= nodes.devices_per_node; ++tp) {
    if (!allows(search.tp, tp) || model.num_heads % tp != 0 || model.ffn_size % tp != 0) continue;
    for (int dp : divisors(global_batch)) {
      if (!allows(search.dp, dp) || dp > nodes.devices() / tp) continue;
      std::optional<Layout> layout = mesh(dp * tp, nodes);
      if (!layout || layout->devices_per_node % tp != 0) continue;
      layout->group = group;
      layout->disk = nodes.disk_bytes > 0;
      layout->dp = dp;
      layout->tp = tp;
      const int sequences = global_batch / dp;  // of one data-parallel rank, an iteration
      for (int b : divisors(sequences)) {
        if (!allows(search.microbatch, b)) continue;
        if (search.microbatch.empty() && b > largest_microbatch) continue;
        if (std::int64_t{b} * model.seq_len % tp != 0) continue;
        layout->microbatch = b;
        found[sequences / b].push_back(*layout);
      }
    }
  }
}

/// All layouts, by number of microbatches.
Layouts layouts(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
                const deck::SearchKeys& search) {
  Layouts found;
  for (int group = 0; group < cluster.num_groups(); ++group)
    add_layouts(model, global_batch, cluster, group, search, found);
  return found;
}

/// Adds the frame as it is, or one for each pair of groups at its ends.
void add_by_ends(const Frame& frame, const hardware::Cluster& cluster, bool by_ends,
                 std::vector<Frame>& found) {
  if (!by_ends) return found.push_back(frame);
  for (int first = 0; first < cluster.num_groups(); ++first)
    for (int last = 0; last < cluster.num_groups(); ++last) {
      found.push_back(frame);
      found.back().first_group = first;
      found.back().last_group = last;
    }
}

/// Adds the frame for each run-ahead that makes a difference: some stage but the last has more
/// than one other microbatch in flight.
void add_frames(Frame frame, const hardware::Cluster& cluster, bool by_ends,
                const deck::SearchKeys& search, std::vector<Frame>& found) {
  const bool matters = frame.num_stages > 1 && frame.microbatches > 2;
  for (int run_ahead : {1, 2}) {
    if (matters ? !allows(search.run_ahead, run_ahead) : run_ahead > 1) continue;
    frame.run_ahead = run_ahead;
    add_by_ends(frame, cluster, by_ends, found);
  }
}

}  // namespace

int Frame::in_flight(int after) const { return plan::in_flight(run_ahead, after, microbatches); }

bool Frame::allows(int group, int after) const {
  return (after + 1 != num_stages || first_group < 0 || group == first_group) &&
         (after != 0 || last_group < 0 || group == last_group);
}

bool may_begin(int first_device, int devices, int devices_per_node) {
  const int on_node = first_device % devices_per_node;
  return devices <= devices_per_node ? on_node + devices <= devices_per_node : on_node == 0;
}

std::vector<Frame> frames(const model::Config& model, int global_batch,
                          const hardware::Cluster& cluster, const deck::SearchKeys& search) {
  std::vector<Frame> found;
  const int devices = cluster.devices(), most = std::min(model.num_layers, devices);
  const bool grouped = cluster.num_groups() > 1, unequal = search.unequal_stages || grouped;
  for (const auto& [microbatches, all] : layouts(model, global_batch, cluster, search))
    for (int num_stages = 1; num_stages <= most; ++num_stages) {
      if (!allows(search.stages, num_stages)) continue;
      Frame frame{.num_stages = num_stages, .microbatches = microbatches, .layouts = {}};
      for (const Layout& layout : all) {
        const bool equal = std::int64_t{layout.devices()} * num_stages == devices;
        if (unequal ? layout.devices() > devices - num_stages + 1 : !equal) continue;
        frame.layouts.push_back(layout);
        if (unequal) continue;
        add_frames(frame, cluster, false, search, found);
        frame.layouts.clear();
      }
      if (!frame.layouts.empty())
        add_frames(frame, cluster, grouped && model.tied_head && num_stages > 1, search, found);
    }
  return found;
}

}  // namespace brume::tuner
