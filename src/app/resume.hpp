/// @file Which checkpoint a run goes on from, and where in its data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "deck/deck.hpp"
#include "engine/engine.hpp"
#include "io/checkpoint.hpp"
#include "verbs.hpp"

namespace brume::app {

/// What the samples of a training are and in which order they come, as a checkpoint stores it.
std::string data_text(const data::Sampler& data, const deck::Deck& deck);

/// The checkpoint that `options` ask for; nothing for a new training. Where keys of [training] are
/// others than its job's, the log says so. Collective.
/// @throws AgreedError(storage) when it is damaged
/// @throws AgreedError(input)   when it is of another model or, without --new-data, of other data
///                              (a length of sequences is another model's unless it is of step 0);
///                              when no step is left until `last_step` for another optimizer
std::optional<io::CheckpointInfo> find_resume(comm::Communicator& world, const RunOptions& options,
                                              const std::string& run_directory,
                                              const model::Config& model,
                                              const std::string& data_text,
                                              const std::string& deck_text, std::int64_t last_step);

/// Fills the engine from a checkpoint; of other data than `data_text` it goes on with the first
/// sample. Collective. @throws AgreedError(storage)
void load(const io::CheckpointInfo& checkpoint, const std::string& data_text,
          const model::Config& model, engine::Engine& engine, comm::Communicator& world);

}  // namespace brume::app
