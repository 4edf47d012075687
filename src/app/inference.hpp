/// @file What verbs share that compute with trained weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "comm/session.hpp"
#include "deck/deck.hpp"
#include "engine/engine.hpp"
#include "hardware/cluster.hpp"
#include "io/checkpoint.hpp"
#include "model/model.hpp"

namespace brume::app {

/// The nodes and ranks of a job, with as much memory as can be had.
hardware::Cluster cluster_of(const comm::Session& session, const comm::Communicator& job);

engine::Settings inference_settings(const comm::Session& session, const deck::Deck& deck,
                                    int threads);

/// The tokenizer's file or folder: that which is given, or is kept with the weights; empty where
/// tokens are bytes. @throws Error(input) if none is known
std::filesystem::path tokenizer_path(const std::string& given, const std::string& weights,
                                     const std::optional<io::CheckpointInfo>& checkpoint,
                                     const deck::Deck& deck, const model::Config& model);

}  // namespace brume::app
