/// @file The order of a stage's work in an iteration: 1F1B over microbatches, blocks inside.
#pragma once

#include <vector>

#include "schedule/compile.hpp"

namespace brume::schedule {

/// One block's work on one microbatch, or its update.
struct Slot {
  enum class Kind { update, forward, backward };
  Kind kind;
  int microbatch;
  int block;
};

/// Slots of a stage in order. A block's update stands before the forward of the block before it, in
/// the first microbatch, so what follows the update (all-gather, copies) has a block's time to
/// finish. Without overlap a stage waits for each of its messages to arrive, so none may run
/// further ahead than in 1F1B: two would wait for each other.
std::vector<Slot> slots(const plan::Plan& plan, int stage, const Options& options);

}  // namespace brume::schedule
