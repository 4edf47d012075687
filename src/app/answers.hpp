/// @file Answers to many prompts by all copies of a model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "engine/generator.hpp"
#include "generation/answer.hpp"
#include "generation/scheduler.hpp"
#include "generation_plan.hpp"
#include "prompts.hpp"
#include "translator.hpp"

namespace brume::app {

/// The generators of a rank.
struct PhaseGenerators {
  engine::Generator& answers;
  engine::Generator* prompts = nullptr;  ///< of passes that compute prompts; null: the same
};

/// How the next token of a sequence is drawn.
struct Draw {
  const generation::Sampling& how;
  std::uint64_t sequence;  ///< its number for the random numbers
};

/// Computes a pass, and the tokens that follow from it, in the order of `pass.wanted`. Collective
/// over the copy of the model.
///
/// @param ahead     leaves the tokens on the rank that draws them: no rank waits for another one
/// @param tolerant  a sequence whose logits are not finite gets a token below 0
/// @throws Error(input) for such logits otherwise
std::vector<generation::Choice> choose(engine::Generator& generator,
                                       const generation::Scheduler::Pass& pass,
                                       const generation::Scheduler& scheduler,
                                       const std::function<Draw(std::int64_t id)>& draw_of,
                                       bool tolerant = false, bool ahead = false);

/// The tokens of prompts. Texts of conversations are filled in. Collective.
/// @param where_of  names a prompt in errors
/// @throws AgreedError(input)
std::vector<std::vector<std::int32_t>> tokens_of(
    std::vector<Prompt>& prompts, Translator& translator,
    const std::function<std::string(const Prompt&)>& where_of, comm::Communicator& job);

/// An answer that is asked for.
struct Asked {
  std::int64_t prompt;  ///< index
  int sample;
};

/// Prompts as tokens, and how they become answers.
struct Questions {
  const std::vector<Prompt>& prompts;
  const std::vector<std::vector<std::int32_t>>& tokens;  ///< of each
  const Translator& translator;
  bool tolerant = false;  ///< logits that are not finite end their answer only
};

/// The answer as far as it has come.
struct OpenAnswer {
  Asked asked;
  generation::Answer answer;
  std::int64_t tokens = 0;
  double log_probability = 0.0;
};

/// Calls that tell of answers.
struct AnswerCalls {
  /// The text of a finished one, for rank 0. On a rank of the copy.
  std::function<std::string(const OpenAnswer&, const char* finish)> text_of;
  /// Texts of some finished ones, in any order. On rank 0. May be refused: together().
  std::function<void(const std::string& texts)> take;
  /// Whether to leave the rest unanswered, asked on all ranks between rounds; may be empty.
  std::function<bool()> stops = {};
  /// After each token, with the settled bytes before it; may be empty. On all ranks of the copy.
  std::function<void(const OpenAnswer&, std::size_t before, bool finished)> grown = {};
};

struct AnswerSums {
  double made = 0.0;      ///< tokens of answers
  double computed = 0.0;  ///< tokens
  double preemptions = 0.0;
  double shared = 0.0;     ///< tokens that were there already
  double changes = 0.0;    ///< phases of prompts of all copies
  double changes_s = 0.0;  ///< time in which their keys changed plans, of the slowest copy
};

/// Makes all answers in rounds of passes, between which copies get more prompts and rank 0 gets
/// answers. An answer is the same in any batch and on any ranks. Collective over `job`.
///
/// @param plan  the generators'
AnswerSums answer(const PhaseGenerators& generators, const GenerationPlan& plan,
                  const Questions& questions, const std::vector<Asked>& asked,
                  const AnswerCalls& calls, comm::Communicator& job);

}  // namespace brume::app
