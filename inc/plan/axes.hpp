/// @file The ranks of a stage as a mesh of axes: groups of ranks and their spread over nodes.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "model/axes.hpp"

namespace brume::plan {

using model::Axis;
using model::AxisSet;

/// Spread of a group's ranks: number of nodes, and ranks on each.
template <class N>
struct Spread {
  N nodes;
  N per_node;
};

/// Sizes of the axes of one stage. N is int or an expression.
///
/// Several meshes may map the same ranks: experts with degrees etp, ep and edp use the ranks that
/// attention uses with tp, cp and dp, if both products are equal.
template <class N>
class Mesh {
 public:
  struct Side {
    Axis axis;
    N size;
  };

  /// @param sides  ranks that differ along the first side only are neighbours
  Mesh(std::vector<Side> sides) : sides_(std::move(sides)) {}

  const std::vector<Side>& sides() const { return sides_; }

  /// Number of ranks of a group: product of the sizes of its axes.
  N size(AxisSet axes = model::all_axes) const {
    N ranks = 1;
    for (const Side& side : sides_)
      if (axes.contains(side.axis)) ranks = ranks * side.size;
    return ranks;
  }

  /// Number of neighbouring ranks from the first to the last of a group, and to the next group.
  N extent(AxisSet axes) const {
    N within = 1, found = 1;
    for (const Side& side : sides_) {
      within = within * side.size;
      if (axes.contains(side.axis)) found = within;
    }
    return found;
  }

  /// Spread of a group over nodes that the ranks fill in order.
  ///
  /// @param devices_per_node  divides a product of the first sizes, or is a multiple of it
  Spread<N> spread(AxisSet axes, const N& devices_per_node) const {
    using std::min;
    Spread<N> found{1, 1};
    N left = devices_per_node;
    for (const Side& side : sides_) {
      const N on_node = min(side.size, left);
      if (axes.contains(side.axis)) {
        found.nodes = found.nodes * (side.size / on_node);
        found.per_node = found.per_node * on_node;
      }
      left = left / on_node;
    }
    return found;
  }

 private:
  std::vector<Side> sides_;
};

/// The mesh by which the ranks of a stage divide its weights: layers by tp, experts by tp and ep,
/// and shards.
///
/// @param state_ranks  dp cp / expert_data_ranks
template <class N>
Mesh<N> weights_mesh(const N& tp, const N& expert_data_ranks, const N& state_ranks,
                     const N& replicas) {
  return Mesh<N>({{Axis::tp, tp},
                  {Axis::ep, expert_data_ranks},
                  {Axis::shard, state_ranks / replicas},
                  {Axis::replica, replicas}});
}

/// The mesh by which the same ranks divide sequences.
template <class N>
Mesh<N> sequences_mesh(const N& dp, const N& cp, const N& tp) {
  return Mesh<N>({{Axis::tp, tp}, {Axis::cp, cp}, {Axis::dp, dp}});
}

/// Position of a rank on each axis of its mesh; 0 on an axis that the mesh lacks.
class Coordinates {
 public:
  int operator[](Axis axis) const { return at_[std::size_t(axis)]; }
  int& operator[](Axis axis) { return at_[std::size_t(axis)]; }

  bool operator==(const Coordinates&) const = default;

 private:
  std::array<int, model::num_axes> at_{};
};

/// @param index  of a rank among those of the mesh
Coordinates coordinates(const Mesh<int>& mesh, int index);

/// Position of a rank among those of its group, in rank order.
int index(const Mesh<int>& mesh, const Coordinates& at, AxisSet axes = model::all_axes);

/// Ranks of a rank's group, in order, counted in the mesh.
std::vector<int> members(const Mesh<int>& mesh, const Coordinates& at, AxisSet axes);

}  // namespace brume::plan
