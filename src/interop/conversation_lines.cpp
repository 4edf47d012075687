#include "conversation_lines.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "chat/conversation.hpp"
#include "deck/json.hpp"

namespace brume::interop {
namespace {

using chat::message;

/// Speakers of ShareGPT's messages, by the role of a chat template.
struct Speaker {
  std::string_view name;
  const char* role;
};
constexpr Speaker speakers[] = {
    {"system", "system"},    {"human", "user"},        {"user", "user"},
    {"gpt", "assistant"},    {"chatgpt", "assistant"}, {"assistant", "assistant"},
    {"model", "assistant"},  {"bing", "assistant"},    {"bard", "assistant"},
    {"observation", "tool"}, {"tool", "tool"},         {"function_response", "tool"},
};

/// Whether a field is a list of messages, as far as the first one tells.
bool has_messages(const ordered_json& line, const char* field, const char* speaker) {
  const auto found = line.is_object() ? line.find(field) : line.end();
  return found != line.end() && found->is_array() && !found->empty() &&
         text_in(found->front(), speaker);
}

/// ShareGPT's message in OpenAI's form.
ordered_json spoken(const ordered_json& said, const std::string& where) {
  const std::string* const from = text_in(said, "from");
  const std::string* const value = text_in(said, "value");
  require(from && value, Failure::input,
          "{}: each message of 'conversations' must have the texts 'from' and 'value'", where);
  const auto speaker = std::ranges::find(speakers, std::string_view(*from), &Speaker::name);
  require(
      speaker != std::end(speakers), Failure::input,
      "{}: a message is from {}: write 'human', 'gpt', 'system' or 'tool', or give messages with "
      "a 'role'",
      where, deck::describe_json(*from));
  ordered_json made = message(speaker->role, *value);
  if (said.contains("weight")) made["weight"] = said["weight"];
  return made;
}

/// Messages of a prompt, whose answers are not to be learned, and of its completion.
ordered_json joined(const ordered_json& prompt, const ordered_json& completion) {
  ordered_json messages = ordered_json::array();
  for (ordered_json one : prompt) {
    if (one.is_object()) one["weight"] = 0;
    messages.push_back(std::move(one));
  }
  for (const ordered_json& one : completion) messages.push_back(one);
  return messages;
}

/// The text of a field that may be missing.
std::string optional_text(const ordered_json& line, const char* field, const std::string& where) {
  const auto found = line.find(field);
  if (found == line.end() || found->is_null()) return "";
  require(found->is_string(), Failure::input, "{}: '{}' must be a text", where, field);
  return found->get<std::string>();
}

/// Alpaca's question: the instruction and its input.
std::string question(const ordered_json& line, const std::string& where) {
  const std::string instruction = optional_text(line, "instruction", where),
                    input = optional_text(line, "input", where);
  return instruction + (instruction.empty() || input.empty() ? "" : "\n") + input;
}

ordered_json instructed(const ordered_json& line, const std::string& where) {
  ordered_json messages = ordered_json::array();
  const auto history = line.find("history");
  if (history != line.end() && !history->is_null()) {
    require(history->is_array(), Failure::input, "{}: 'history' must be a list", where);
    for (const ordered_json& pair : *history) {
      require(pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string(),
              Failure::input, "{}: 'history' must have pairs of a question and an answer", where);
      messages.push_back(message("user", pair[0].get<std::string>()));
      messages.push_back(message("assistant", pair[1].get<std::string>()));
    }
  }
  messages.push_back(message("user", question(line, where)));
  messages.push_back(message("assistant", *text_in(line, "output")));
  return messages;
}

enum class Form { none, messages, conversations, share_gpt, prompt, instruction };

Form form_of(const ordered_json& line) {
  if (has_messages(line, "messages", "role")) return Form::messages;
  if (has_messages(line, "conversations", "role")) return Form::conversations;
  if (has_messages(line, "conversations", "from")) return Form::share_gpt;
  if (has_messages(line, "prompt", "role") && has_messages(line, "completion", "role"))
    return Form::prompt;
  return text_in(line, "instruction") && text_in(line, "output") ? Form::instruction : Form::none;
}

ordered_json messages_of(const ordered_json& line, const std::string& where) {
  ordered_json messages = ordered_json::array();
  switch (form_of(line)) {
    case Form::messages: return line["messages"];
    case Form::conversations: return line["conversations"];
    case Form::prompt: return joined(line["prompt"], line["completion"]);
    case Form::instruction: return instructed(line, where);
    case Form::share_gpt:
      for (const ordered_json& said : line["conversations"])
        messages.push_back(spoken(said, where));
      return messages;
    case Form::none: break;
  }
  throw Error(Failure::bug, "{}: is no conversation", where);
}

}  // namespace

const std::string* text_in(const ordered_json& object, const std::string& field) {
  const auto found = object.is_object() ? object.find(field) : object.end();
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

bool is_conversation(const ordered_json& line) { return form_of(line) != Form::none; }

ordered_json as_messages(ordered_json line, const std::string& where) {
  ordered_json messages = messages_of(line, where);
  const std::string system = optional_text(line, "system", where);
  const std::string* const first = text_in(messages.front(), "role");
  if (!system.empty() && (!first || *first != "system"))
    messages.insert(messages.begin(), message("system", system));
  line["messages"] = std::move(messages);
  // Data sets whose rows have one type each keep lists of objects as texts.
  if (const std::string* const tools = text_in(line, "tools"))
    line["tools"] =
        tools->empty() ? ordered_json() : deck::parse_ordered_json(*tools, where + ": 'tools'");
  return line;
}

bool is_pair(const ordered_json& line) {
  const auto both = [&](const auto& has) { return has("chosen") && has("rejected"); };
  return both([&](const char* field) { return text_in(line, field) != nullptr; }) ||
         both([&](const char* field) { return has_messages(line, field, "role"); });
}

namespace {

/// A pair of texts without a prompt: what both begin with, a last space excepted, is the prompt.
void split_prompt(AnswerPair& pair) {
  std::size_t most = std::min(pair.chosen.size(), pair.rejected.size());
  most -= most > 0 ? 1 : 0;
  std::size_t end = 0;
  while (end < most && pair.chosen[end] == pair.rejected[end]) ++end;
  while (end > 0 && (pair.chosen[end] & 0xc0) == 0x80) --end;
  if (end > 0 && pair.chosen[end - 1] == ' ') --end;
  pair.prompt = pair.chosen.substr(0, end);
  pair.chosen.erase(0, end);
  pair.rejected.erase(0, end);
}

/// Messages that both conversations begin with; an answer is left of each.
ordered_json common_messages(const ordered_json& chosen, const ordered_json& rejected) {
  ordered_json common = ordered_json::array();
  for (std::size_t i = 0; i + 1 < std::min(chosen.size(), rejected.size()); ++i) {
    if (chosen[i] != rejected[i]) break;
    common.push_back(chosen[i]);
  }
  return common;
}

}  // namespace

AnswerPair as_pair(const ordered_json& line, const std::string& where) {
  AnswerPair pair;
  const std::string* const prompt = text_in(line, "prompt");
  if (const std::string* const chosen = text_in(line, "chosen")) {
    const auto found = line.find("prompt");
    require(prompt || found == line.end() || found->is_null(), Failure::input,
            "{}: 'prompt' must be a text, as 'chosen' and 'rejected' are", where);
    pair.chosen = *chosen, pair.rejected = *text_in(line, "rejected");
    if (prompt)
      pair.prompt = *prompt;
    else
      split_prompt(pair);
    return pair;
  }
  // Some data sets repeat the last question as a text.
  const ordered_json &chosen = line["chosen"], &rejected = line["rejected"];
  const bool given = has_messages(line, "prompt", "role");
  const ordered_json before = given ? line["prompt"] : common_messages(chosen, rejected);
  require(!before.empty(), Failure::input,
          "{}: 'chosen' and 'rejected' must begin with the same messages, or 'prompt' must be a "
          "list of messages",
          where);
  const auto whole = [&](const ordered_json& answer) {
    ordered_json messages = before;
    for (std::size_t i = given ? 0 : before.size(); i < answer.size(); ++i)
      messages.push_back(answer[i]);
    ordered_json made = line;
    made["messages"] = std::move(messages);
    return as_messages(std::move(made), where);
  };
  pair.chosen_line = whole(chosen), pair.rejected_line = whole(rejected);
  const std::size_t answer = chosen.size() - (given ? 0 : before.size());
  pair.given = pair.chosen_line["messages"].size() - answer;
  return pair;
}

}  // namespace brume::interop
