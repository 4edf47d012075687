/// @file Inputs of a search, and plans that follow from them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/deadline.hpp"
#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::schedule {
class Packings;
}

namespace brume::tuner {

class AllRows;
struct PipelineConfig;
struct Point;
struct Progress;
class StateKeeper;

/// Inputs of a search, and how long it may take.
struct SearchInput {
  const model::Config& model;
  int global_batch;
  hardware::Cluster cluster;
  const hardware::Machine& machine;
  deck::SearchKeys keys;
  std::size_t most_labels;  ///< labels per state of the dynamic program before some are merged
  const Deadline& deadline;
  AllRows* rows;                           ///< known to all searches in this memory
  schedule::Packings* packings = nullptr;  ///< known to all searches: plans share stages
  Progress* progress = nullptr;
  StateKeeper* keeper = nullptr;
  std::function<plan::Plan(plan::Plan)> conform = {};  ///< see tuner::Options
  bool roughly = false;                                ///< the best of each configuration will do
};

/// All configurations of 1F1B.
std::vector<PipelineConfig> configs(const SearchInput& input);

/// The plan of an assignment: one point per stage, first stage first.
plan::Plan plan_of(const SearchInput& input, const PipelineConfig& config,
                   const std::vector<Point>& stages);

}  // namespace brume::tuner
