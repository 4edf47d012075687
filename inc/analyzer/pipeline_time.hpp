/// @file Iteration time of a pipeline whose stages need not be equal.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "plan/order.hpp"

namespace brume::analyzer {

/// Times of one stage's passes: seconds, expressions of them, or the terms of their sums. Overlap
/// is already subtracted; messages between stages are not included.
template <class T>
struct PassTimesOf {
  T start_s{};     ///< updates that stand before its first forward
  T table_s{};     ///< first stage: time until a token table that leaves is updated
  T ahead_s{};     ///< time that the first forward saves after a long enough wait
  T first_s{};     ///< extra time of the first forward, with its updates
  T forward_s{};   ///< a middle microbatch's forward
  T backward_s{};  ///< a middle microbatch's backward
  T last_s{};      ///< extra time of the last backward, which reduces gradients
  T end_s{};       ///< work after the last backward
  // Of these, how long transfers that the stage waits for go on when its message has left:
  T first_tail_s{};     ///< tail of the first forward
  T forward_tail_s{};   ///< tail of another forward
  T backward_tail_s{};  ///< tail of a backward
  T last_tail_s{};      ///< tail of the last backward
  /// How long a stage's own ranks communicate in a middle microbatch. Another message slows
  /// nothing then.
  T communication_s{};
  /// Host-device copies of a middle forward or backward, alone, in the slower direction. Another
  /// stage's message slows them, too.
  T forward_copies_s{}, backward_copies_s{};
  /// The same of the first forward, and what its kernels and collectives take.
  T first_copies_s{}, first_kernels_s{};
  T head_s{};  ///< the head's share of a backward: a tied table's gradient leaves then
  /// Recomputation of a backward before it needs its gradient. It is the same of each recomputed
  /// layer.
  T recompute_ahead_s{};

  T stable_s() const { return forward_s + backward_s; }  ///< a middle microbatch
  /// Extra times of the first and the last microbatch.
  T delta_s() const { return start_s + first_s + last_s + end_s; }

  struct Part {
    const char* name;
    T PassTimesOf::*time;
  };
  static constexpr std::size_t num_parts = 19;
  /// Each of them, with its name.
  static constexpr std::array<Part, num_parts> parts() {
    using Of = PassTimesOf;
    return {{{"before", &Of::start_s},
             {"table's update", &Of::table_s},
             {"waiting", &Of::ahead_s},
             {"first", &Of::first_s},
             {"forward", &Of::forward_s},
             {"backward", &Of::backward_s},
             {"last", &Of::last_s},
             {"after", &Of::end_s},
             {"first's end", &Of::first_tail_s},
             {"forward's end", &Of::forward_tail_s},
             {"backward's end", &Of::backward_tail_s},
             {"last's end", &Of::last_tail_s},
             {"communication", &Of::communication_s},
             {"forward's copies", &Of::forward_copies_s},
             {"backward's copies", &Of::backward_copies_s},
             {"first's copies", &Of::first_copies_s},
             {"first's kernels", &Of::first_kernels_s},
             {"head's backward", &Of::head_s},
             {"recomputed ahead", &Of::recompute_ahead_s}}};
  }
};
using PassTimes = PassTimesOf<double>;

/// Seconds of the messages that a tied head on another stage asks for; 0 where there is none.
struct TiedTimes {
  double table_s = 0.0;  ///< the first stage's table to the last one, before its first head
  /// The gradient home: as much as may come beside the first stage's last backward, and what is
  /// left to do after both.
  double gradient_s = 0.0, rest_s = 0.0;
  /// The table is brought together for a slot: the first stage's layers wait until it has left,
  /// because its bytes are then used again.
  bool table_staged = false;
  /// How much of that time the busiest tensor-parallel group of either stage takes part.
  double first = 1.0, last = 1.0;
};

/// Mutual slowdown of a stage's passes and messages.
struct Beside {
  int layers = 1;       ///< layers of the stage
  int recomputed = 0;   ///< last layers with full recomputation
  double slowed = 0.0;  ///< extra time of a pass during a message, as a share
  double slows = 0.0;   ///< extra time of a message during a pass, as a share
  double copies = 0.0;  ///< extra time of copies during kernels and a message, as a share
  /// How much of a message's time the busiest of its tensor-parallel groups takes part in it, at
  /// the boundary to the stage before and to the stage after.
  double before = 1.0, after = 1.0;
};

/// Inputs of the step time.
struct Pipeline {
  std::vector<PassTimes> stages;   ///< first stage first, at least one
  std::vector<double> messages_s;  ///< [boundary] a microbatch's way to the next stage, or back
  TiedTimes tied;
  int microbatches = 1;             ///< an iteration
  plan::Order order = {};           ///< order of passes
  std::vector<Beside> beside = {};  ///< [stage]; where there is none, nothing slows anything
  /// [stage] Second part of backward_s, if backwards are split; otherwise none.
  std::vector<double> weights_s = {};
};

/// Time of one iteration [s]: each stage's passes in the order of the schedule, each waiting for
/// the messages it needs. A stage sends and receives one message at a time in each direction, and
/// makes room for one while it passes over the layer before it is needed; where stages run further
/// ahead, as soon as the pass before it in its direction is done.
///
/// Its steps grow as stages x microbatches, times the logarithm of the stages.
///
/// @throws Error(bug) when there is no stage or no microbatch
double iteration_time(const Pipeline& pipeline);

}  // namespace brume::analyzer
