/// @file The orders in which a stage may work through an iteration, one source each.
#pragma once

#include <vector>

#include "schedule/compile.hpp"

namespace brume::schedule {

/// The unit of an order: one block's work on one microbatch, or its update.
struct Slot {
  enum class Kind { update, forward, backward };
  Kind kind;
  int microbatch;
  int block;

  bool operator==(const Slot&) const = default;
};

/// 1F1B over microbatches, blocks inside. A block's update stands before the forward of the block
/// before it, in the first microbatch, so what follows the update (all-gather, copies) has a
/// block's time to finish. Without overlap a stage waits for each of its messages to arrive, so
/// none may run further ahead than in 1F1B: two would wait for each other.
///
/// @source  Narayanan et al. 2021, "PipeDream-Flush"; how far stages run ahead: README.md
std::vector<Slot> one_f_one_b(const plan::Plan& plan, int stage, const Options& options);

}  // namespace brume::schedule
