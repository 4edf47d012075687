/// @file How long each task of a Program takes by itself: which price is whose.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "price/price.hpp"
#include "schedule/program.hpp"

namespace brume::schedule {

/// Times of tasks, looked up where an equal one was seen before: most are.
class TaskTimes {
 public:
  TaskTimes(const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine)
      : plan_(plan),
        model_(model),
        machine_(machine),
        blocks_(model::blocks(model)),
        layers_alike_(model::are_layers_alike(model)) {}

  /// Seconds of a task of this rank's Program, by itself.
  double of(const Task& task, int rank);

 private:
  /// All that the time of a task depends on.
  struct Key {
    int stage;
    Operation operation;
    model::SegmentKind segment;
    int run;
    std::int64_t amount;  ///< bytes; of a recompute, whether its output is made
    int block;            ///< of an update; 1 for all layers that are alike
    price::Ranks ranks;   ///< of a collective
    price::Ends ends;     ///< of a message

    auto operator<=>(const Key&) const = default;
  };
  Key key(const Task& task, int rank);
  double times_as_long(int rank, model::AxisSet group);
  double work_s(const Key& key) const;
  double expected_bytes(const Key& key) const;

  const plan::Plan& plan_;
  const model::Config& model_;
  const hardware::Machine& machine_;
  std::vector<model::Block> blocks_;
  bool layers_alike_;
  std::map<Key, double> known_s_;
  std::map<std::pair<int, model::AxisSet>, double> times_as_long_;  ///< by rank and group
};

}  // namespace brume::schedule
