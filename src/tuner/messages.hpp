/// @file Seconds of messages between the stages of a pipeline configuration, by their layouts.
#pragma once

#include <cstddef>
#include <vector>

#include "hardware/cluster.hpp"

namespace brume::tuner {

class Grid;
struct PipelineConfig;

/// Seconds of messages between any two layouts of a configuration that are neighbours, and
/// of those of a tied head. Meshes smaller than a node are taken to share one, so that no plan's
/// messages are faster.
class MessageTable {
 public:
  /// Messages that take no time.
  MessageTable() = default;
  MessageTable(Grid& grid, const PipelineConfig& config, const hardware::Cluster& cluster);

  // A layout may be -1, not known: then its messages are the fastest ones.

  /// A microbatch's stream from one layout to another, or its gradient back.
  double stream_s(int from, int to) const {
    return from < 0 || to < 0 || streams_s_.empty() ? least_stream_s_ : streams_s_[index(from, to)];
  }
  /// Least seconds of a tied head's table gradient from a last stage to the first one.
  double tied_gradient_s(int last) const {
    return tied_gradients_s_.empty() ? 0.0 : tied_gradients_s_[last];
  }
  /// The least of stream_s over all pairs.
  double least_stream_s() const { return least_stream_s_; }

  /// Whether messages to and from one layout take no longer than those of another, whatever stands
  /// beside it.
  bool no_slower(int layout, int other) const {
    return layout == other || layout < 0 || streams_s_.empty() ||
           (other >= 0 && no_slower_[index(layout, other)] != 0);
  }

 private:
  std::size_t index(int from, int to) const { return std::size_t(from) * count_ + std::size_t(to); }

  std::size_t count_ = 0;
  std::vector<double> streams_s_;         ///< [layout, layout]
  std::vector<double> tied_gradients_s_;  ///< [last], or none
  std::vector<char> no_slower_;           ///< [layout, layout]
  double least_stream_s_ = 0.0;
};

}  // namespace brume::tuner
