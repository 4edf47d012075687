/// @file Loads of experts, and the corrections of their choice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace brume::engine {

/// Work of the experts of a rank's layers in forwards.
struct ExpertLoads {
  /// [layers with experts, E] copies of tokens that went to each expert of all ranks that divide
  /// them, counted on one of these; zeros for layers of other stages.
  std::vector<std::int64_t> copies = {};
  std::int64_t forwards = 0;  ///< a layer's of a microbatch each
  std::int64_t rounds = 0;    ///< more than forwards if copies exceeded their room

  double mean_rounds() const { return forwards > 0 ? double(rounds) / double(forwards) : 0.0; }
};

/// Mean over layers of the largest load of an expert over the mean load.
///
/// @param loads  [layers with experts, E] copies of tokens that went to each one, of all ranks
double load_factor(std::span<const double> loads, int num_experts);

/// Share of the experts of all layers that no token went to.
///
/// @param loads  as above
double idle_experts(std::span<const double> loads);

/// Moves the corrections of the choice of a layer's experts: that of an expert with less than the
/// mean load goes up by `rate`, with more it goes down.
///
/// @param loads        [E] copies of a step's tokens that went to each expert, of all ranks
/// @param first        the expert of the first correction
/// @source             DeepSeek-V3, section 2.1.2
void move_corrections(std::span<const double> loads, std::int64_t first, float rate,
                      std::span<float> corrections);

}  // namespace brume::engine
