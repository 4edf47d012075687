/// @file Answers to the deck's prompts between two steps of a training.
#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "engine/engine.hpp"
#include "generation_plan.hpp"
#include "io/metrics_log.hpp"
#include "prepare.hpp"
#include "schedule/program.hpp"

namespace brume::app {

/// Generation on the ranks that train, in the memory that only steps use. It has a plan of its own,
/// chosen as `brume generate` chooses it; weights come to it in memory, with the values that a
/// checkpoint of the step would give. Nothing of it changes the training. One of each rank of the
/// plan; calls are collective.
class Samples {
 public:
  /// All of them must outlive the object. @param run  with prompts
  Samples(const Prepared& run, const comm::Session& session, comm::Communicator& crew);

  /// Chooses the plan, before memory is taken.
  /// @param programs  of training, on rank 0; their arenas become as large as answers need them
  /// @throws AgreedError(infeasible) where no plan fits in the memory of the deck's devices
  void choose_plan(std::vector<schedule::Program>& programs);

  /// Memory that this rank uses between steps.
  const schedule::Arenas& bytes() const { return bytes_; }

  /// Answers each prompt once.
  /// @param on_progress  called by channels' threads after each task, and as weights come
  /// @param stops        whether this rank leaves the rest unanswered
  /// @return             on rank 0 the answers in the order of the prompts
  std::vector<io::SampleRow> answer(engine::Engine& engine, int threads,
                                    const std::function<void()>& on_progress,
                                    const std::function<bool()>& stops);

 private:
  double room_bytes(const std::vector<schedule::Program>& programs);

  const Prepared& run_;
  const comm::Session& session_;
  comm::Communicator& crew_;
  GenerationPlan plan_;
  schedule::Arenas bytes_{};
};

}  // namespace brume::app
