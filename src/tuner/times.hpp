/// @file Times of strategies, each priced once for all searches in the same memory.
#pragma once

#include <cstddef>
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

/// Values by key, found once and never moved. A few large blocks hold them and are freed whole: to
/// destroy millions of values one by one took a fortieth of a search.
template <class Key, class Value>
class Memo {
  static_assert(std::is_trivially_destructible_v<Key> && std::is_trivially_destructible_v<Value>);

 public:
  /// Value of each item's key. find(missing) returns the values of the items whose keys are new; an
  /// exception that it throws leaves these unknown.
  template <class Item, class KeyOf, class Find>
  std::vector<const Value*> of(std::span<Item> items, const KeyOf& key_of, const Find& find) {
    std::vector<const Value*> values;
    values.reserve(items.size());
    std::vector<std::remove_const_t<Item>> missing;
    std::vector<std::pair<const Key, Value>*> fresh;
    for (const Item& item : items) {
      const auto [entry, is_new] = map_.try_emplace(std::invoke(key_of, item));
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
  using Map = std::pmr::unordered_map<Key, Value, typename Key::Hash>;

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
  Memo<Strategy, StageTimes> known_;
};

/// A strategy, and one with a larger ratio along one axis.
struct Step {
  Strategy from, to;
  std::size_t axis;
  bool lacks_host = false;  ///< host memory is short, or counts

  /// Identifies a step: no other one leads there along this axis.
  struct Target {
    Strategy strategy;
    std::size_t axis;

    bool operator==(const Target&) const = default;
    struct Hash {
      std::size_t operator()(const Target& target) const {
        return Strategy::Hash()(target.strategy) + target.axis;
      }
    };
  };
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
  const std::vector<Point>& samples(Grid& grid, const StagePosition& position, Strategy row);

  Axes axes_;
  std::mutex mutex_;
  Memo<Strategy, StageTimes> least_;  ///< key: Strategy::row()
  /// Points that samples() priced; key: a row without layers.
  std::unordered_map<Strategy, std::vector<Point>, Strategy::Hash> samples_;
};

}  // namespace brume::tuner
