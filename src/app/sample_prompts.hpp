/// @file The prompts that a training answers (training.samples).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "model/model.hpp"
#include "prompts.hpp"
#include "translator.hpp"

namespace brume::app {

/// Prompts that the model has room for, and how it answers them.
struct SamplePrompts {
  Translator translator;
  std::vector<Prompt> prompts;
  std::vector<std::vector<std::int32_t>> tokens = {};  ///< of each

  std::int64_t longest() const;  ///< prompt with its answer [tokens]
};

/// Reads the file that the deck names, before long work. Collective. @throws AgreedError(input)
std::unique_ptr<SamplePrompts> read_sample_prompts(const deck::Deck& deck,
                                                   const model::Config& model,
                                                   comm::Communicator& job);

}  // namespace brume::app
