/// @file What a run does about steps whose loss or gradient norm is not finite.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "deck/deck.hpp"
#include "engine/engine.hpp"
#include "io/checkpoint.hpp"
#include "model/model.hpp"
#include "saving.hpp"

namespace brume::app {

/// Skips, goes back or stops, as training.on_nonfinite says. Loss and norm are the same on all
/// ranks, so all decide alike.
class Recovery {
 public:
  /// All arguments must outlive the object.
  Recovery(const deck::Deck& deck, const model::Config& model, const std::string& data_text,
           comm::Communicator& world, engine::Engine& engine, Saving& saving)
      : deck_(deck),
        model_(model),
        data_text_(data_text),
        world_(world),
        engine_(engine),
        saving_(saving) {}

  /// Trains on the next batch, or leaves it out when the run went back because of it. Collective.
  engine::StepMetrics step(const data::Sampler& data);

  /// Judges the step just made. Collective.
  /// @return whether the engine went back to a checkpoint
  /// @throws AgreedError(input) when the run must stop
  bool went_back(const engine::StepMetrics& metrics);

  /// Whether the step just made has no update: then the weights may be spoilt, and a checkpoint of
  /// them must not push out a good one.
  bool in_doubt() const { return skipped_in_row_ > 0; }

 private:
  bool roll_back(std::int64_t bad_step);

  const deck::Deck& deck_;
  const model::Config& model_;
  const std::string& data_text_;
  comm::Communicator& world_;
  engine::Engine& engine_;
  Saving& saving_;
  int skipped_in_row_ = 0;
  std::map<std::int64_t, engine::StepMetrics> left_out_;  ///< by step
  std::optional<std::int64_t> gone_back_to_;              ///< checkpoint of the last time
  /// Checkpoints behind which training.max_skipped batches in a row were bad. The run goes back to
  /// none of them again, so it ends.
  std::set<std::int64_t> spoilt_;
};

}  // namespace brume::app
