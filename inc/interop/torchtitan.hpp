/// @file A deck and a plan as a configuration for TorchTitan.
#pragma once

#include <string>

#include "deck/deck.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::interop {

/// The version whose names and value ranges hold here, as in its torchtitan/config/configs.py,
/// torchtitan/distributed/activation_checkpoint.py, torchtitan/components/optimizer/ and
/// torchtitan/models/llama3/ and qwen3/.
inline constexpr const char* torchtitan_version = "TorchTitan (b5bcd76)";
/// Tokens of the blocks that ranks which share a sequence have there.
inline constexpr int context_block = 128;

/// A Python module whose function `plan` returns the configuration that says the same plan and
/// optimizer, for a model of TorchTitan's own: MODULE=FILE CONFIG=plan ./run_train.sh. Data,
/// tokenizer and checkpoints are left to the user.
///
/// @throws Error(input) naming the knob or the key that TorchTitan has nothing like
std::string torchtitan_module(const deck::Deck& deck, const model::Config& model,
                              const plan::Plan& plan);

}  // namespace brume::interop
