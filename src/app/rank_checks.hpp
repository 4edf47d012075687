/// @file What ranks find out about each other while they train.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/stragglers.hpp"
#include "plan/plan.hpp"

namespace brume::app {

/// Names ranks that are slower than those that do the same work, and copies of a weight that
/// differ, as after an error of memory or of a processor that nobody noticed.
class RankChecks {
 public:
  /// All references must outlive the object.
  /// @param compare_every  steps between comparisons of weights; 0: none
  RankChecks(const plan::Plan& plan, int compare_every, engine::Engine& engine,
             comm::Communicator& crew)
      : plan_(plan),
        compare_every_(compare_every),
        engine_(engine),
        crew_(crew),
        stragglers_(plan) {}

  /// Judges the step just made. Collective.
  ///
  /// @param metrics  this rank's, with an iteration time on which all ranks agree
  /// @return what it said of stragglers, on rank 0
  /// @throws AgreedError(network)  where copies of a weight differ
  std::vector<std::string> after_step(const engine::StepMetrics& metrics);

 private:
  std::vector<std::string> name_stragglers(const engine::StepMetrics& metrics);
  void compare_replicas();

  const plan::Plan& plan_;
  int compare_every_;
  engine::Engine& engine_;
  comm::Communicator& crew_;
  engine::Stragglers stragglers_;
};

}  // namespace brume::app
