/// @file What verbs share that compute with trained weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/session.hpp"
#include "deck/deck.hpp"
#include "engine/engine.hpp"
#include "hardware/cluster.hpp"
#include "io/checkpoint.hpp"
#include "model/model.hpp"

namespace brume::app {

/// The deck of weights that are computed with as they are: the checkpoint's, or one for a Hugging
/// Face model, whose config.json may ask for dropout, which only trains.
/// @throws Error(input) for a directory that is neither
deck::Deck deck_of_weights(const std::string& weights,
                           const std::optional<io::CheckpointInfo>& checkpoint, int ranks,
                           std::vector<std::string> sets);

/// Settings of a deck that give its model the adapter in PEFT's files.
/// @throws Error(input) where the model has an adapter already, or the files none for it
std::vector<std::string> adapter_sets(const std::string& directory, const model::Config& model);

/// So many nodes that share so many ranks, with as much memory as can be had.
hardware::Cluster cluster_of(int nodes, int ranks);

engine::Settings inference_settings(const comm::Session& session, const deck::Deck& deck,
                                    int threads);

/// The tokenizer's file or folder: that which is given, or is kept with the weights; empty where
/// tokens are bytes. @throws Error(input) if none is known
///
/// @param folders  in which it may be, the nearest first
/// @param weights  their name, for the error
/// @param remedy   the sentence's end: "Name a tokenizer by --tokenizer."
std::filesystem::path tokenizer_path(const std::string& given,
                                     const std::vector<std::filesystem::path>& folders,
                                     const model::Config& model, const std::string& weights,
                                     const char* remedy = "Name a tokenizer by --tokenizer.");

}  // namespace brume::app
