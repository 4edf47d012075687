/// @file A deck and a plan as arguments for Megatron-LM, and such arguments as a deck and a plan.
#pragma once

#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::interop {

/// The version whose names and value ranges hold here, as in its
/// megatron/training/arguments.py, megatron/training/config/*.py and
/// megatron/core/transformer/transformer_config.py.
inline constexpr const char* megatron_version = "Megatron-LM, core 0.20.0 (d98e8a6)";

/// An argument, with its value where it has one.
struct MegatronArgument {
  std::string name;  ///< name with its dashes
  std::string value = {};
};

/// The arguments for pretrain_gpt.py that say the same model, plan and optimizer. Data, tokenizer
/// and checkpoints are left to the user.
///
/// @throws Error(input) naming the knob or the key that Megatron-LM has nothing like
std::vector<MegatronArgument> megatron_arguments(const deck::Deck& deck, const model::Config& model,
                                                 const plan::Plan& plan);

/// A script for each of the plan's nodes that starts pretrain_gpt.py with these arguments, and with
/// those that the script is given behind them.
std::string megatron_script(const deck::Deck& deck, const model::Config& model,
                            const plan::Plan& plan);

/// A training by Megatron-LM as this program would do it.
struct MegatronJob {
  deck::Deck deck;
  plan::Plan plan;
  std::vector<std::string> notes;  ///< differences, and arguments that were not read
};

/// Reads the arguments of pretrain_gpt.py, and those of torchrun, wherever they stand in a script
/// or in a file with nothing else.
///
/// @param sets  keys of the deck as after --set, for what arguments do not say: the machine, above
///              all
/// @throws Error(input) naming the argument that is missing or wrong, or that changes model or plan
/// into something that this program has nothing like
MegatronJob read_megatron(const std::string& path, const std::vector<std::string>& sets);

}  // namespace brume::interop
