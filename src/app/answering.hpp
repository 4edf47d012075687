/// @file A model that answers texts: its weights, its tokenizer and its plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/conversation.hpp"
#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "deck/deck.hpp"
#include "engine/generator.hpp"
#include "generation/scheduler.hpp"
#include "interop/hugging_face.hpp"
#include "io/checkpoint.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "tokenizer/tokenizer.hpp"
#include "verbs.hpp"

namespace brume::app {

/// How many ranks share a copy of the model where nobody says it.
enum class Copies {
  fewest_ranks,  ///< for many answers at once
  widest         ///< as many as the model can be cut over: for one answer at once
};

/// Calls that are collective say so.
class Answering {
 public:
  /// Reads the deck of the weights, in the precision in which files hold the weights unless it is
  /// given, and the tokenizer. Collective. @throws AgreedError(input)
  Answering(const AnswerOptions& options, comm::Session& session, comm::Communicator& job);

  /// Learns to read conversations. @throws Error(input) where the model has no chat template
  void read_conversations();
  const chat::Writer& conversations() const { return *chat_; }

  const model::Config& model() const { return model_; }

  /// The tokens of a prompt, with the token by which texts begin unless the text is that of a
  /// conversation, which has its own. @throws Error(input) for one beyond the model's vocabulary
  std::vector<std::int32_t> encode(std::string_view text, bool conversation);
  std::string bytes_of(std::int32_t token) const;
  bool ends(std::int32_t token) const { return ends_.contains(token); }

  /// Notes weights, tokenizer and chat template for fingerprints. Collective.
  /// @throws AgreedError(input)
  void identify();
  /// A short text that differs where weights, tokenizer, prompt or settings do: all that decides an
  /// answer, but for the time that a chat template may ask for.
  /// @param question  the prompt, or its conversation
  std::string fingerprint(std::string_view question, const AnswerSettings& settings) const;

  /// The reason why a prompt of so many tokens cannot be answered; empty: it can.
  std::string refusal(std::int64_t tokens, std::int64_t room) const;

  /// Chooses the plan that is given, or copies of the model. Collective.
  /// @param tokens  of the longest prompt and its answer
  /// @param batch   sequences at once on a copy
  /// @throws AgreedError(input)
  void choose_plan(std::int64_t tokens, int batch, Copies copies = Copies::fewest_ranks);
  const plan::Plan& plan() const { return plan_; }
  const model::Config& sizes() const { return sizes_; }  ///< the model as it generates
  double cache_bytes() const;                            ///< of a rank of the first stage

  /// Loads the weights and calls `use`. Collective. @throws AgreedError(input)
  void with_generator(const std::function<void(engine::Generator&)>& use);

  /// How the next token of a sequence is drawn.
  struct Draw {
    const generation::Sampling& how;
    std::uint64_t sequence;  ///< its number for the random numbers
  };

  /// Computes a pass, and the tokens that follow from it, in the order of `pass.wanted`. Collective
  /// over the copy of the model.
  std::vector<generation::Choice> choose(engine::Generator& generator,
                                         const generation::Scheduler::Pass& pass,
                                         const generation::Scheduler& scheduler,
                                         const std::function<Draw(std::int64_t id)>& draw_of) const;

 private:
  void read_deck();
  void read_tokenizer();
  std::int32_t token_of(const std::string& text, const char* option) const;
  model::Config sized(int tp, int blocks) const;
  double memory_bytes();
  int blocks_beside(const plan::Plan& plan, int tp, double memory_bytes) const;
  plan::Plan plan_of(int tp) const;

  const AnswerOptions& options_;
  comm::Session& session_;
  comm::Communicator& job_;
  std::optional<io::CheckpointInfo> checkpoint_;
  std::unique_ptr<interop::PretrainedWeights> adapter_;  ///< null: none, or the weights' own
  deck::Deck deck_{};
  model::Config model_{};
  std::string identity_;  ///< differs where another model would answer; empty: not identified
  std::filesystem::path tokenizer_path_;
  std::optional<tokenizer::Tokenizer> tokenizer_;  ///< none: tokens are bytes
  std::optional<std::int32_t> begin_;
  std::set<std::int32_t> ends_;
  std::optional<chat::Writer> chat_;
  int needed_tokens_ = 0, batch_ = 1;
  plan::Plan plan_{};
  model::Config sizes_{};
};

}  // namespace brume::app
