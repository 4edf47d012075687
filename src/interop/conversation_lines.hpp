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

}  // namespace brume::interop
