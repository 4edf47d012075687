/// @file Passes and slots of a rank in the order of a plan (plan::Order).
#pragma once

#include <vector>

#include "plan/order.hpp"
#include "schedule/compile.hpp"

namespace brume::schedule {

/// The unit of an order: one block's work on one microbatch, or its update. Where backwards are in
/// two parts, `backward` is the first one of a layer and all of a head's, `weights` the second one
/// of a layer and all of an embedding's, unless its stage has no layer: that has whole backwards.
struct Slot {
  enum class Kind { update, forward, backward, weights };
  Kind kind;
  int microbatch;
  int block;

  bool operator==(const Slot&) const = default;
};

/// Passes of the ranks of `first`, one of the first stages, in the plan's order. Without overlap a
/// stage waits for each of its messages to arrive, so none may run further ahead than in 1F1B: two
/// would wait for each other.
std::vector<plan::Pass> passes(const plan::Plan& plan, int first, const Options& options);

/// The blocks of these passes, and updates. A block's update stands before the forward of the block
/// before it, in the first microbatch, so that the transfers after the update (all-gather, copies)
/// have a block's time to finish.
///
/// @param all  blocks of the model: those that are trained, at least in part, have updates, and
///             these and those above the first of them have backwards
std::vector<Slot> slots(const plan::Plan& plan, int first, const std::vector<model::Block>& all,
                        const Options& options);

/// A stream that leaves with the slot that ends a pass, or comes for the one that begins it.
struct Exchange {
  Slot slot;
  bool sends;

  bool operator==(const Exchange&) const = default;
};

/// What ranks send and receive before their first pass and after each one, second parts of
/// backwards aside.
///
/// Messages of a pipeline with several chunks go round in a circle, so their order in a channel
/// must be one for all ranks: that of the ends of the passes that send them, if a forward takes one
/// unit of time, a backward two, or one a part, and messages none; those of the same moment in two
/// or three turns, in which each rank has one neighbour. A rank sends and receives what ends up to
/// the end of its next pass. So all that anything waits for comes before it in this time, and
/// nothing waits in a circle.
std::vector<std::vector<Exchange>> exchanges(const plan::Plan& plan, int first,
                                             const Options& options);

}  // namespace brume::schedule
