/// @file Token files of a training, opened and checked.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "data/token_file.hpp"
#include "deck/deck.hpp"
#include "model/model.hpp"

namespace brume::app {

/// The model with the share of attention that isolated documents leave in the deck's data, where
/// these can be read.
model::Config isolated(model::Config model, const deck::Deck& deck);

/// A token file, and the key of the deck or command line that names it, for errors.
struct NamedTokens {
  const char* key;
  std::string path;
};

/// Reads all token files through to check them: each on one rank, and those that an earlier job of
/// this user read, and that are as they were then, on none. Collective over `job`.
/// @throws AgreedError(input)
data::TokenChecks check_tokens(const std::vector<NamedTokens>& files, const deck::Deck& deck,
                               const model::Config& model, comm::Communicator& job);

/// The windows of data.train, in the order that the deck asks for. Files that are not known are
/// read through. @throws Error(input)
data::Sampler open_training(const deck::Deck& deck, const model::Config& model,
                            const data::TokenChecks& known);

/// The windows of a token file that weights are judged by: the first ones of an order that is the
/// same for all trainings, so that their losses can be compared, and is spread over the file.
/// @param key  of the deck or command line, for errors  @throws Error(input)
data::Sampler open_validation(const std::string& path, const char* key, const deck::Deck& deck,
                              const model::Config& model, const data::TokenChecks& known);

}  // namespace brume::app
