/// @file Packs parcels from the bottom up: always where the skyline of those placed is lowest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedule/pack.hpp"

namespace brume::schedule {

/// Which of the parcels that fit into a valley of the skyline is placed first: the one with the
/// highest score,
///
///   length log(sections) + bytes log(bytes) + aligned (ends that meet the valley's) + late
///   (end of its life, 0..1) + noise[parcel].
struct Taste {
  double length, bytes, aligned, late;
  std::vector<double> noise;
};

/// Time cut into sections, at whose ends lives begin and end.
class Skyline {
 public:
  explicit Skyline(std::span<const Parcel> parcels);

  /// @return offsets, or none when they would end above `most_end`
  std::optional<std::vector<std::int64_t>> build(const Taste& taste, std::int64_t most_end);
  std::int64_t steps() const { return steps_; }  ///< of work so far

 private:
  /// Sections [first, end).
  struct Sections {
    int first, end;
  };
  Sections valley(std::int64_t& floor) const;
  std::optional<int> choose(const Taste& taste, Sections valley);
  void raise(Sections valley);
  std::int64_t top(Sections part) const;

  std::span<const Parcel> parcels_;
  std::vector<Sections> life_;                  ///< [parcel]
  std::vector<double> log_length_, log_bytes_;  ///< [parcel] of the sections it lives, of its bytes
  std::vector<std::vector<int>> begins_;        ///< [section] parcels whose life begins there
  std::vector<std::int64_t> all_bytes_;         ///< [section] of all parcels
  std::vector<std::int64_t> floor_,
      to_come_;  ///< [section] top of what is placed; bytes that are not
  std::vector<char> placed_;
  std::int64_t steps_ = 0;
};

}  // namespace brume::schedule
