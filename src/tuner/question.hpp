/// @file What a search is about.
#pragma once

#include <cstddef>
#include <functional>

#include "base/deadline.hpp"
#include "schedule/pack.hpp"
#include "tuner/tuner.hpp"

namespace brume::tuner {

class AllRows;

/// What a search is about, and how long it may take.
struct Question {
  const model::Config& model;
  int global_batch;
  hardware::Cluster cluster;
  const hardware::Machine& machine;
  deck::SearchKeys keys;
  std::size_t most_labels;  ///< of a state of the dynamic program before some are merged
  const Deadline& deadline;
  AllRows* rows;                           ///< known to all searches in this memory
  schedule::Packings* packings = nullptr;  ///< known to all searches: plans share stages
  Progress* progress = nullptr;
  std::function<plan::Plan(plan::Plan)> conform = {};  ///< as tuner::Options has it
  bool roughly = false;                                ///< the best of each frame will do
};

}  // namespace brume::tuner
