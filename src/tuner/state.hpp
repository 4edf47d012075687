/// @file Points as numbers of a state; when a state is kept.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "budget.hpp"
#include "point.hpp"
#include "tuner/state.hpp"

namespace brume::tuner {

std::vector<double> numbers_of(const std::vector<Point>& points);
/// Points of some stages of a configuration, without times and bytes.
/// @throws Error(input) if the configuration has no such points
std::vector<Point> points_from(const std::vector<double>& numbers, const PipelineConfig& config,
                               int num_stages);

/// Hands states of a search to the caller, who keeps them.
class StateKeeper {
 public:
  using Keep = std::function<void(const State&)>;

  /// @param keep     may be empty
  /// @param every_s  least seconds between two states
  StateKeeper(Keep keep, double every_s) : keep_(std::move(keep)), every_s_(every_s) {}

  void collect_by(std::function<State()> collect) { collect_ = std::move(collect); }
  /// Hands over a state if the last one is old enough.
  void offer() {
    if (watch_.seconds() >= kept_s_ + every_s_) keep();
  }
  void keep() {
    if (keep_ && collect_) keep_(collect_());
    kept_s_ = watch_.seconds();
  }

 private:
  Keep keep_;
  double every_s_;
  std::function<State()> collect_;
  Stopwatch watch_;
  double kept_s_ = 0.0;
};

}  // namespace brume::tuner
