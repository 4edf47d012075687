/// @file What packing looks up: bytes that parcels took, and the largest of numbers in a row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/pack.hpp"

namespace brume::schedule {

/// The bytes that parcels took, and when, by rising begin.
class Taken {
 public:
  void clear() {
    begin_.clear(), end_.clear();
    first_task_.clear(), last_task_.clear();
  }

  void add(std::int64_t offset, const Parcel& parcel) {
    const auto at = std::ranges::upper_bound(begin_, offset) - begin_.begin();
    begin_.insert(begin_.begin() + at, offset);
    end_.insert(end_.begin() + at, offset + parcel.bytes);
    first_task_.insert(first_task_.begin() + at, parcel.first_task);
    last_task_.insert(last_task_.begin() + at, parcel.last_task);
  }

  /// The lowest offset that is free during a parcel's whole life.
  std::int64_t first_free(const Parcel& parcel, std::int64_t& steps) const {
    constexpr std::size_t together = 16;  // where all of them begin low enough, side by side
    std::int64_t free = 0;
    const auto end_of = [&](std::size_t i) {
      const bool meets = first_task_[i] <= parcel.last_task && parcel.first_task <= last_task_[i];
      return meets ? end_[i] : 0;
    };
    std::size_t i = 0;
    for (; i + together <= begin_.size() && begin_[i + together - 1] < free + parcel.bytes;
         i += together) {
      std::int64_t top = 0;
      for (std::size_t k = 0; k < together; ++k) top = std::max(top, end_of(i + k));
      free = std::max(free, top);
    }
    for (; i < begin_.size() && begin_[i] < free + parcel.bytes; ++i)
      free = std::max(free, end_of(i));
    steps += std::int64_t(i);
    return free;
  }

 private:
  std::vector<std::int64_t> begin_, end_;
  std::vector<int> first_task_, last_task_;
};

/// The largest of numbers in a row, whose blocks it knows.
class Largest {
 public:
  explicit Largest(const std::vector<std::int64_t>& numbers) : numbers_(numbers) {
    for (std::size_t i = 0; i + block <= numbers.size(); i += block)
      of_blocks_.push_back(*std::max_element(numbers.begin() + std::ptrdiff_t(i),
                                             numbers.begin() + std::ptrdiff_t(i + block)));
  }
  std::int64_t within(int first, int last) const {
    std::int64_t found = numbers_[std::size_t(first)];
    const auto end = std::size_t(last) + 1;
    for (auto i = std::size_t(first); i < end;) {
      const bool whole = i % block == 0 && i + block <= end;
      found = std::max(found, whole ? of_blocks_[i / block] : numbers_[i]);
      i += whole ? block : 1;
    }
    return found;
  }

 private:
  static constexpr std::size_t block = 64;
  const std::vector<std::int64_t>& numbers_;
  std::vector<std::int64_t> of_blocks_;
};

}  // namespace brume::schedule
