/// @file Times of strategies, each priced once for all searches in the same memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <mutex>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "point.hpp"

namespace brume::tuner {

class Grid;

/// Points in groups, in one block: they are priced at once and read group by group.
class PointGroups {
 public:
  void begin_group() { begins_.push_back(points_.size()); }
  /// Adds to the last group.
  Point& add(const Point& point) { return points_.emplace_back(point); }

  std::span<Point> all() { return points_; }
  std::span<const Point> operator[](std::size_t group) const {
    const std::size_t end = group + 1 < begins_.size() ? begins_[group + 1] : points_.size();
    return std::span(points_).subspan(begins_[group], end - begins_[group]);
  }

 private:
  std::vector<Point> points_;
  std::vector<std::size_t> begins_;  ///< [group] index in points_
};

/// A strategy, or the end of a step along an axis.
struct Target {
  Target(const Strategy& strategy, std::size_t axis = 0) : strategy(strategy), axis(axis) {}

  Strategy strategy;
  std::size_t axis;

  bool operator==(const Target&) const = default;
  struct Hash {
    std::size_t operator()(const Target& target) const {
      return Strategy::Hash()(target.strategy) + target.axis;
    }
  };
};

/// Values by strategy or target, found once and never moved. A few large blocks hold them and are
/// freed whole: to destroy millions of values one by one took a fortieth of a search.
template <class Value>
class Memo {
  static_assert(std::is_trivially_destructible_v<Value>);

 public:
  /// Value of each item's key, a strategy or a target. find(missing) returns the values of the
  /// items whose keys are new; an exception that it throws leaves these unknown.
  template <class Item, class KeyOf, class Find>
  std::vector<const Value*> of(std::span<Item> items, const KeyOf& key_of, const Find& find) {
    std::vector<const Value*> values;
    values.reserve(items.size());
    std::vector<std::remove_const_t<Item>> missing;
    std::vector<std::pair<const Key, Value>*> fresh;
    for (const Item& item : items) {
      const auto [entry, is_new] = map_.try_emplace(key(std::invoke(key_of, item)));
      values.push_back(&entry->second);
      if (!is_new) continue;
      missing.push_back(item);
      fresh.push_back(&*entry);
    }
    try {
      auto found = fresh.begin();
      for (const Value value : find(missing)) (*found++)->second = value;
    } catch (...) {
      for (const auto* entry : fresh) map_.erase(Key(entry->first));
      throw;
    }
    return values;
  }

 private:
  /// A target in few bytes.
  struct Key {
    std::uint32_t policy;  ///< number of all but layers and level
    int layers, level;

    bool operator==(const Key&) const = default;
    struct Hash {
      std::size_t operator()(const Key& key) const noexcept {
        const std::uint64_t sum =
            (std::uint64_t(key.policy) << 32 | std::uint32_t(key.layers)) * 0x9E3779B97F4A7C15u +
            std::uint32_t(key.level);
        return (sum ^ sum >> 32) * 0x9E3779B97F4A7C15u >> 16;
      }
    };
  };
  using Map = std::pmr::unordered_map<Key, Value, typename Key::Hash>;

  Key key(const Target& target) {
    Target policy = target;
    policy.strategy.layers = policy.strategy.level = 0;
    const auto number = std::uint32_t(policies_.size());
    return {policies_.try_emplace(policy, number).first->second, target.strategy.layers,
            target.strategy.level};
  }

  std::unordered_map<Target, std::uint32_t, Target::Hash> policies_;
  std::pmr::monotonic_buffer_resource memory_;
  Map& map_ = *std::pmr::polymorphic_allocator<>(&memory_).new_object<Map>();
};

/// Prices the time of each strategy of a role on a layout once, for all threads: it is the same
/// wherever in a pipeline the stage stands, however much memory that leaves.
class Times {
 public:
  /// Sets the points' times. The grid is the caller's, and may be out of time.
  void price(Grid& grid, const StagePosition& position, std::span<Point> points);

 private:
  std::mutex mutex_;
  Memo<StageTimes> known_;
};

/// A strategy, and one with a larger ratio along one axis.
struct Step {
  Strategy from, to;
  std::size_t axis;
  bool lacks_host = false;  ///< host memory is short, or counts

  /// Identifies a step: no other one leads there along this axis.
  Target target() const { return {to, axis}; }
};

/// How fast rows may be, at whichever level: for all threads. Rows of a role and a layout share it,
/// however much memory their stages have.
class RowTimes {
 public:
  explicit RowTimes(const Axes& axes) : axes_(axes) {}

  // The grid is the caller's, and may be out of time.

  /// The least that each time of each row is at any level.
  std::vector<StageTimes> least(Grid& grid, const StagePosition& position,
                                std::span<const Strategy> rows);
  /// Whether a step makes a stage faster, of whichever number of layers.
  bool gains(Grid& grid, const StagePosition& position, const Step& step);

 private:
  const std::vector<StageTimes>& samples(Grid& grid, const StagePosition& position, Strategy row);

  Axes axes_;
  std::mutex mutex_;
  Memo<StageTimes> least_;  ///< key: Strategy::row()
  /// Times that samples() priced; key: a row without layers.
  std::unordered_map<Strategy, std::vector<StageTimes>, Strategy::Hash> samples_;
};

}  // namespace brume::tuner
