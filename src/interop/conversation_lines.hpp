/// @file Conversations in the forms that data sets have them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace brume::interop {

using nlohmann::ordered_json;

/// The text of a field; null where there is none.
const std::string* text_in(const ordered_json& object, const std::string& field);

/// Whether a line is a conversation, as far as its fields and first messages tell:
///
///   {"messages": [{"role", "content"}, ...]}               OpenAI, Transformers
///   {"conversations": [{"from", "value"}, ...]}            ShareGPT; or as "messages"
///   {"prompt": [messages], "completion": [messages]}       TRL
///   {"instruction", "input", "output", "history"}          Alpaca, the second and last may be
///   missing
bool is_conversation(const ordered_json& line);

/// A line that is a conversation, in the first form, see chat::Writer. Answers within a TRL prompt
/// have a "weight" of 0. "system" is a message before the others, unless they begin with one.
///
/// @throws Error(input) for a part that is malformed, or a speaker that is not known
ordered_json as_messages(ordered_json line, const std::string& where);

/// Whether a line is a pair of answers, as TRL's DPOTrainer reads them:
///
///   {"prompt": text, "chosen": text, "rejected": text}
///   {"prompt": [messages], "chosen": [messages], "rejected": [messages]}
///   {"chosen", "rejected"}    as above; what both begin with is the prompt
bool is_pair(const ordered_json& line);

/// A pair of answers. Of conversations, a line in the form of as_messages() for each answer, whose
/// first `given` messages are the prompt; `given` is 0 of texts.
struct AnswerPair {
  std::string prompt = {}, chosen = {}, rejected = {};
  ordered_json chosen_line = {}, rejected_line = {};
  std::size_t given = 0;
};

/// @throws Error(input) for a part that is malformed, or a prompt or an answer without messages
AnswerPair as_pair(const ordered_json& line, const std::string& where);

}  // namespace brume::interop
