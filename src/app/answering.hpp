/// @file A model that answers texts: its weights, its tokenizer and its plan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "answers.hpp"
#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "deck/deck.hpp"
#include "engine/generator.hpp"
#include "generation_plan.hpp"
#include "interop/hugging_face.hpp"
#include "io/checkpoint.hpp"
#include "model/model.hpp"
#include "translator.hpp"
#include "verbs.hpp"

namespace brume::app {

/// Calls that are collective say so.
class Answering {
 public:
  /// Reads the deck of the weights, in the precision in which files hold the weights unless it is
  /// given, and the tokenizer. Collective. @throws AgreedError(input)
  Answering(const AnswerOptions& options, comm::Session& session, comm::Communicator& job);

  Translator& translator() { return *translator_; }
  const model::Config& model() const { return model_; }

  /// Notes weights, tokenizer and chat template for fingerprints. Collective.
  /// @throws AgreedError(input)
  void identify();
  /// A short text that differs where weights, tokenizer, prompt or settings do: all that decides an
  /// answer, but for the time that a chat template may ask for.
  /// @param question  the prompt, or its conversation
  std::string fingerprint(std::string_view question, const AnswerSettings& settings) const;

  /// Chooses the plan that is given, or copies of the model. Collective.
  /// @param tokens  of the longest prompt and its answer
  /// @param batch   sequences at once on a copy
  /// @throws AgreedError(input)
  void choose_plan(std::int64_t tokens, int batch, Copies copies = Copies::fewest_ranks);
  const GenerationPlan& plan() const { return plan_; }

  /// Loads the weights and calls `use`. Collective. @throws AgreedError(input)
  void with_generators(const std::function<void(const PhaseGenerators&)>& use);

 private:
  void read_deck();
  double memory_bytes();

  const AnswerOptions& options_;
  comm::Session& session_;
  comm::Communicator& job_;
  std::optional<io::CheckpointInfo> checkpoint_;
  std::unique_ptr<interop::PretrainedWeights> adapter_;  ///< null: none, or the weights' own
  deck::Deck deck_{};
  model::Config model_{};
  std::string identity_;  ///< differs where another model would answer; empty: not identified
  std::optional<Translator> translator_;  ///< always there
  GenerationPlan plan_{};
};

}  // namespace brume::app
