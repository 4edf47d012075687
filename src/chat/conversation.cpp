#include "chat/conversation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/json.hpp"

namespace brume::chat {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t largest_bytes = std::size_t{64} << 20;
constexpr std::size_t most_rendered_bytes = std::size_t{1} << 29;  ///< to find answers

/// The object that a file holds; an empty one where there is no file.
json object_in(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) return json::object();
  json file = deck::load_json(path.string(), largest_bytes);
  require(file.is_object(), Failure::input, "{}: must be an object", path.string());
  return file;
}

/// The text of a token, which may be an object that describes it; none: null.
json token_text(const json& token) {
  if (token.is_string()) return token;
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"];
  return nullptr;
}

/// Special tokens as variables of a template.
ordered_json special_tokens(const fs::path& folder) {
  constexpr std::array names{"bos_token", "eos_token", "unk_token", "sep_token",
                             "pad_token", "cls_token", "mask_token"};
  ordered_json tokens = ordered_json::object();
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const json given = object_in(folder / file);
    for (const char* name : names) {
      if (!given.contains(name) || tokens.contains(name)) continue;
      if (json text = token_text(given[name]); !text.is_null()) tokens[name] = text;
    }
    const char* more = "additional_special_tokens";
    if (!given.contains(more) || !given[more].is_array() || tokens.contains(more)) continue;
    for (const json& one : given[more])
      if (json text = token_text(one); !text.is_null()) tokens[more].push_back(ordered_json(text));
  }
  return tokens;
}

std::string template_in(const fs::path& file) {
  const auto largest = std::int64_t(largest_template_bytes);
  return std::string(as_text(read_file(file, Failure::input, largest, Links::follow)));
}

/// Templates of a folder by their names; "" for one without a name.
std::vector<std::pair<std::string, std::string>> sources_in(const fs::path& folder) {
  std::error_code none;
  const fs::path file = folder / "chat_template.jinja";
  if (fs::exists(file, none)) return {{"", template_in(file)}};
  const fs::path config = folder / "tokenizer_config.json";
  const json given = object_in(config).value("chat_template", json());
  if (given.is_string()) return {{"", given.get<std::string>()}};
  std::vector<std::pair<std::string, std::string>> sources;
  require(given.is_null() || given.is_array(), Failure::input,
          "{}: 'chat_template' must be a text or a list", config.string());
  for (const json& one : given) {
    const auto text = [&](const char* key) {
      require(one.is_object() && one.contains(key) && one[key].is_string(), Failure::input,
              "{}: a 'chat_template' has no '{}'", config.string(), key);
      return one[key].get<std::string>();
    };
    std::string name = text("name");
    sources.emplace_back(name == "default" ? "" : std::move(name), text("template"));
  }
  return sources;
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  auto count = std::size_t(std::ranges::mismatch(a, b).in1 - a.begin());
  while (count > 0 && count < b.size() && (b[count] & 0xc0) == 0x80) --count;
  return count;
}

}  // namespace

ordered_json message(const char* role, const std::string& content) {
  ordered_json made;
  made["role"] = role;
  made["content"] = content;
  return made;
}

Writer::Writer(const fs::path& folder, const fs::path& file) {
  tokens_ = folder.empty() ? ordered_json::object() : special_tokens(folder);
  std::vector<std::pair<std::string, std::string>> sources;
  if (!file.empty()) {
    sources.emplace_back("", template_in(file));
  } else if (!folder.empty()) {
    sources = sources_in(folder);
  }
  const std::string origin = (file.empty() ? folder / "chat_template" : file).string();
  require(!sources.empty(), Failure::input,
          "{}: has no chat template, neither in chat_template.jinja nor in tokenizer_config.json. "
          "Name a template: --chat-template, or in a deck chat_template.",
          folder.empty() ? "bytes without a tokenizer" : folder.string());
  for (const auto& [name, text] : sources) {
    templates_.emplace_back(name, Template(text, name.empty() ? origin : origin + " " + name));
    sources_ += name + "\n" + text + "\n";
  }
}

std::string Writer::identity() const {
  return sources_ + tokens_.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Rendered Writer::render(const ordered_json& conversation, std::size_t messages, bool asks,
                        const std::string& where) const {
  ordered_json values = tokens_;
  values["messages"] = ordered_json::array();
  for (std::size_t i = 0; i < messages; ++i)
    values["messages"].push_back(conversation["messages"][i]);
  for (const char* key : {"tools", "documents"})
    values[key] = conversation.contains(key) ? conversation[key] : ordered_json();
  values["add_generation_prompt"] = asks;
  if (conversation.contains("chat_template_kwargs"))
    for (const auto& [key, value] : conversation["chat_template_kwargs"].items())
      values[key] = value;
  const char* wanted = values["tools"].is_null() ? "" : "tool_use";
  auto found = std::ranges::find(templates_, wanted, [](const auto& one) { return one.first; });
  if (found == templates_.end())
    found = std::ranges::find(templates_, "", [](const auto& one) { return one.first; });
  require(found != templates_.end(), Failure::input, "{}: the model has no template named default",
          where);
  try {
    return found->second.render(values);
  } catch (const Error& error) {
    throw Error(error.failure(), "{}: {}", where, error.what());
  }
}

namespace {

/// Whether a message is to be learned: one of the model that has no "weight" of 0.
bool is_learned(const ordered_json& message) {
  if (message["role"] != "assistant") return false;
  const auto weight = message.find("weight");
  return weight == message.end() || *weight != 0;
}

const ordered_json& messages_of(const ordered_json& conversation, const std::string& where) {
  const auto found = conversation.find("messages");
  require(found != conversation.end() && found->is_array() && !found->empty(), Failure::input,
          "{}: 'messages' must be a list that is not empty", where);
  for (const ordered_json& message : *found) {
    require(message.is_object() && message.contains("role") && message["role"].is_string(),
            Failure::input, "{}: each message must be an object with a 'role'", where);
    const ordered_json weight = message.value("weight", ordered_json());
    require(weight.is_null() || weight == 0 || weight == 1, Failure::input,
            "{}: the 'weight' of a message must be 0 or 1", where);
  }
  for (const auto& [key, kind] : {std::pair("tools", ordered_json::value_t::array),
                                  std::pair("documents", ordered_json::value_t::array),
                                  std::pair("chat_template_kwargs", ordered_json::value_t::object)})
    require(!conversation.contains(key) || conversation[key].is_null() ||
                conversation[key].type() == kind,
            Failure::input, "{}: '{}' must be {}", where, key,
            kind == ordered_json::value_t::array ? "a list" : "an object");
  return *found;
}

}  // namespace

std::string Writer::prompt(const ordered_json& conversation, const std::string& where) const {
  return render(conversation, messages_of(conversation, where).size(), true, where).text;
}

Conversation Writer::answer(const ordered_json& conversation, std::size_t first,
                            const std::string& where) const {
  const std::size_t count = messages_of(conversation, where).size();
  const std::string before = render(conversation, first, true, where).text;
  std::string text = render(conversation, count, false, where).text;
  const Span span{common_prefix(before, text), text.size()};
  require(span.begin == before.size() ||
              span.begin >= render(conversation, first, false, where).text.size(),
          Failure::input,
          "{}: the template writes the prompt otherwise when an answer follows it: name another "
          "template by --chat-template",
          where);
  return {std::move(text), {span}};
}

/// The answers to be learned, of all that `generation` blocks mark.
std::vector<Span> Writer::learned(const ordered_json& conversation,
                                  const std::vector<Span>& generated,
                                  const std::string& where) const {
  const ordered_json& messages = conversation["messages"];
  const auto given = [](const ordered_json& message) {
    return message["role"] == "assistant" && !is_learned(message);
  };
  if (std::ranges::none_of(messages, given)) return generated;
  const auto require_one_each = [&](bool one_each) {
    require(one_each, Failure::input,
            "{}: has answers that are not to be learned, but the template's generation blocks are "
            "not one for each answer",
            where);
  };
  std::vector<Span> kept;
  std::size_t answers = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] != "assistant") continue;
    ++answers;
    // Blocks of other numbers could belong to other answers.
    require_one_each(answers <= generated.size() &&
                     render(conversation, i + 1, false, where).generated.size() == answers);
    if (is_learned(messages[i])) kept.push_back(generated[answers - 1]);
  }
  require_one_each(answers == generated.size());
  return kept;
}

std::vector<Conversation> Writer::texts(const ordered_json& conversation,
                                        const std::string& where) const {
  const ordered_json& messages = messages_of(conversation, where);
  Rendered whole = render(conversation, messages.size(), false, where);
  if (!whole.generated.empty())
    return {{std::move(whole.text), learned(conversation, whole.generated, where)}};
  const auto through = [&](std::size_t answer) {
    return answer + 1 == messages.size() ? whole.text
                                         : render(conversation, answer + 1, false, where).text;
  };
  struct Answer {
    std::size_t message;
    Span span;  ///< in the text of the messages up to it
  };
  std::vector<Answer> answers;
  bool together = true;  // the texts up to all answers begin the whole one
  std::size_t rendered_bytes = 0;
  for (std::size_t i = 1; i < messages.size(); ++i) {
    if (!is_learned(messages[i])) continue;
    const std::string before = render(conversation, i, true, where).text, text = through(i);
    rendered_bytes += before.size() + text.size();
    require(rendered_bytes <= most_rendered_bytes, Failure::input,
            "{}: has too many answers for a template without generation blocks", where);
    const Span span{common_prefix(before, text), text.size()};
    // The answer may change the last words of the prompt, which invite it, but nothing before them.
    require(span.begin == before.size() ||
                span.begin >= render(conversation, i, false, where).text.size(),
            Failure::input,
            "{}: the template writes the messages before an answer otherwise when it is there: "
            "mark answers in it by generation blocks",
            where);
    if (span.begin == span.end) continue;
    together = together && whole.text.starts_with(text) &&
               (answers.empty() || span.begin >= answers.back().span.end);
    answers.push_back({i, span});
  }
  std::vector<Conversation> made;
  if (together) {
    made.push_back({std::move(whole.text), {}});
    for (const Answer& one : answers) made.front().answers.push_back(one.span);
  } else {
    for (const Answer& one : answers) made.push_back({through(one.message), {one.span}});
  }
  return made;
}

}  // namespace brume::chat
