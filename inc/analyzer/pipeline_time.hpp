/// @file Iteration time of a pipeline whose stages need not be equal.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace brume::analyzer {

/// Of one stage's passes: seconds, expressions of them, or the terms that they are sums of. Overlap
/// is already taken off, messages between stages are left out.
template <class T>
struct PassTimesOf {
  T start_s{};     ///< updates that stand before its first forward
  T table_s{};     ///< of the first stage, until a token table that leaves is updated
  T ahead_s{};     ///< by which the first forward is shorter after a long enough wait
  T first_s{};     ///< by which the first forward, with its updates, is longer than others
  T forward_s{};   ///< a middle microbatch's forward
  T backward_s{};  ///< a middle microbatch's backward
  T last_s{};      ///< by which the last backward is longer: gradients are reduced
  T end_s{};       ///< what follows the last backward
  // Of these, how long transfers that the stage waits for go on when its message has left:
  T first_tail_s{};     ///< of the first forward
  T forward_tail_s{};   ///< of another one
  T backward_tail_s{};  ///< of a backward
  T last_tail_s{};      ///< of the last one
  /// How long a stage's own ranks communicate in a middle microbatch. Another message slows
  /// nothing then.
  T communication_s{};
  /// What a middle forward or backward copies from or to the host, alone, in the direction that
  /// takes longer. Another stage's message slows that, too.
  T forward_copies_s{}, backward_copies_s{};
  /// The same of the first forward, and what its kernels and collectives take.
  T first_copies_s{}, first_kernels_s{};
  T head_s{};  ///< of a backward what the head takes: a tied table's gradient leaves then
  /// What a backward recomputes before it needs its gradient. It is the same of each recomputed
  /// layer.
  T recompute_ahead_s{};

  T stable_s() const { return forward_s + backward_s; }  ///< a middle microbatch
  /// What the first and the last microbatch add.
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

/// What passes and messages of a stage mean to each other.
struct Beside {
  int layers = 1;       ///< of the stage
  int recomputed = 0;   ///< of these, the last ones
  double slowed = 0.0;  ///< what a pass takes longer, as a share, while a message travels beside it
  double slows = 0.0;   ///< what a message takes longer while a pass runs beside it
  double copies = 0.0;  ///< what copies take longer while kernels and a message are beside them
  /// How much of a message's time the busiest of its tensor-parallel groups takes part in it, at
  /// the boundary to the stage before and to the stage after.
  double before = 1.0, after = 1.0;
};

/// What the time of an iteration follows from.
struct Pipeline {
  std::vector<PassTimes> stages;   ///< first stage first, at least one
  std::vector<double> messages_s;  ///< [boundary] a microbatch's way to the next stage, or back
  TiedTimes tied;
  int microbatches = 1;             ///< an iteration
  int run_ahead = 1;                ///< as in plan::Plan
  int chunks = 1;                   ///< as in plan::Plan
  std::vector<Beside> beside = {};  ///< [stage]; where there is none, nothing slows anything
  /// [stage] Of backward_s the second part, where backwards are in two; else none.
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
