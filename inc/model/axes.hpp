/// @file Names of the axes along which ranks differ.
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>

namespace brume::model {

enum class Axis : std::uint8_t {
  tp,       ///< tensor parallelism
  cp,       ///< context parallelism
  ep,       ///< data-parallel ranks that divide a layer's experts, of size ep / tp
  shard,    ///< ranks that shard one replica of a stage's state
  replica,  ///< replicas of a stage's state
  dp,       ///< ranks, or groups of cp ranks, with sequences of their own
  stage,    ///< pipeline stages
};
inline constexpr int num_axes = 7;

/// Names a group of ranks: they differ along these axes only.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(bit(axis)) {}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ = std::uint8_t(bits_ | bit(axis));
  }

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool meets(AxisSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr AxisSet with(AxisSet other) const { return of_bits(bits_ | other.bits_); }
  constexpr AxisSet without(AxisSet other) const { return of_bits(bits_ & ~other.bits_); }

  auto operator<=>(const AxisSet&) const = default;

 private:
  static constexpr AxisSet of_bits(int bits) {
    AxisSet set;
    set.bits_ = std::uint8_t(bits);
    return set;
  }
  static constexpr std::uint8_t bit(Axis axis) { return std::uint8_t(1 << int(axis)); }

  std::uint8_t bits_ = 0;
};

/// Ranks that compute with different tokens: dp and cp together.
inline constexpr AxisSet data_axes{Axis::ep, Axis::shard, Axis::replica};

/// Ranks of data_axes that hold the same weights, experts included.
inline constexpr AxisSet state_axes{Axis::shard, Axis::replica};

/// Ranks that divide a layer's experts.
inline constexpr AxisSet expert_axes{Axis::tp, Axis::ep};

/// All ranks of a job.
inline constexpr AxisSet all_axes{Axis::tp,      Axis::cp, Axis::ep,   Axis::shard,
                                  Axis::replica, Axis::dp, Axis::stage};

}  // namespace brume::model
