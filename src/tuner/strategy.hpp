/// @file Strategies of a stage, and the lists that a search chooses them from.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <vector>

#include "plan/knobs.hpp"

namespace brume::tuner {

struct Layout;

/// Shares that do not stay on the device, in the order of plan::shares; a part of another share is
/// relative to it.
using Ratios = std::array<double, plan::num_shares>;

/// How ranks with the same weights shard a stage's state.
struct Sharding {
  int zero_level = 0;
  int replicas = 1;  ///< copies of the sharded state

  auto operator<=>(const Sharding&) const = default;
};

/// The choices of a stage on its layout. Neighbours in their order have equal ratios, so that few
/// price functions are evaluated again.
struct Strategy {
  Sharding sharding{};
  Ratios ratios{};
  int layers = 0;
  /// Recomputation level: with level > 0 so many layers recompute in full, with level < 0 so many
  /// are stored, and the others recompute selectively. No stage does both: a stored layer saves
  /// less time per byte than a recomputed one costs.
  int level = 0;
  bool stores_rest = false;  ///< the others are stored, too; then no level is below 0

  auto operator<=>(const Strategy&) const = default;
  struct Hash {
    std::size_t operator()(const Strategy& strategy) const;
  };

  int ckpt_layers() const { return std::max(level, 0); }
  int stored_layers() const { return stores_rest ? layers - ckpt_layers() : std::max(-level, 0); }
  /// A share of everything of its kind, as a plan has it.
  double ratio(std::size_t share) const {
    const auto whole = plan::shares[share].whole;
    return whole ? ratios[*whole] * ratios[share] : ratios[share];
  }
  /// True if the parts of each share are within it together.
  bool parts_fit() const;
  /// True if it asks for a part of a share that is 0: it repeats the strategy without that part.
  bool repeats() const;
  /// Identifies strategies that differ in their level only.
  Strategy row() const { return at_level(0); }
  Strategy at_level(int other) const;
  /// Strategy of one of so many chunks of its layers; the first chunks may have one layer more.
  /// @param reversed  smaller chunks come first
  Strategy of_chunk(int chunk, int chunks, bool reversed = false) const;
  /// Sets these choices in a plan's stage.
  void apply_to(plan::Stage& stage) const;
};

/// A number of a plan's stage that strategies choose, besides shares.
struct StrategyNumber {
  int plan::Stage::*member;
  int (*of)(const Strategy& strategy);
  bool counts_layers = false;
};
inline constexpr StrategyNumber strategy_numbers[] = {
    {&plan::Stage::layers, [](const Strategy& s) { return s.layers; }, true},
    {&plan::Stage::ckpt_layers, [](const Strategy& s) { return s.ckpt_layers(); }, true},
    {&plan::Stage::stored_layers, [](const Strategy& s) { return s.stored_layers(); }, true},
    {&plan::Stage::zero_level, [](const Strategy& s) { return s.sharding.zero_level; }},
    {&plan::Stage::replicas, [](const Strategy& s) { return s.sharding.replicas; }}};

/// Least and highest recomputation level.
struct Levels {
  int least, most;
};

/// The strategies a search may choose from, each list in rising order.
struct Axes {
  Axes(const deck::SearchKeys& search);
  /// The same without a disk.
  Axes in_memory() const;
  /// The same for split backwards: gradients stay where they are accumulated, and between its two
  /// parts a recomputed layer would keep everything.
  Axes of_split_backwards() const;

  /// Ways to shard the state of a stage on this layout; the first one shards least.
  std::vector<Sharding> shardings(const Layout& mesh) const;
  /// Strategies that save least memory, one for each way to shard.
  std::vector<Strategy> lowest(const Layout& mesh, int layers) const;
  /// All ratios with all ways to shard, at level 0.
  std::vector<Strategy> rows(const Layout& mesh, int layers) const;

  std::vector<int> zero_levels;
  std::array<std::vector<double>, plan::num_shares> ratios;
  bool recompute, store, store_rest, shard_within_node;

  Levels levels(int layers) const { return {store ? -layers : 0, recompute ? layers : 0}; }
  /// Levels between which times are linear, except for a stage's first and last layer.
  std::vector<int> ends(int layers) const;
  /// The same; all levels of few layers.
  std::vector<int> turning_levels(int layers) const;
};

}  // namespace brume::tuner
