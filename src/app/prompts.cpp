/// @file Prompts read from lines, and answers as lines.
#include "prompts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "deck/json.hpp"
#include "io/appended_file.hpp"
#include "request_settings.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t most_lines_bytes = std::int64_t{1} << 32;

/// Calls each(line, number from 1) for lines that are not empty.
template <class Each>
void for_lines(std::string_view text, const Each& each) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != line.npos) each(line, number);
  }
}

std::string name_of(const ordered_json& object) {
  for (const char* key : {"custom_id", "id"})
    if (const auto found = object.find(key);
        found != object.end() && !found->is_null() && *found != "")
      return found->dump();
  return {};
}

Prompt prompt_of(std::string_view line, const std::string& where, const AnswerSettings& given,
                 std::set<std::string>& unknown) {
  const ordered_json object = deck::parse_ordered_json(line, where);
  require(object.is_object(), Failure::input, "{}: must be an object of JSON", where);
  const auto body = object.find("body");
  const bool has_body = body != object.end() && body->is_object();
  const ordered_json& from = has_body ? *body : object;
  Prompt made{.settings = given, .text = {}, .id = name_of(object), .is_request = has_body};
  if (has_body) take_settings(*body, where, made.settings, unknown);
  for (const auto& [name, value] : object.items())
    if (!has_body && is_setting(name))
      unknown.insert(fmt::format("{} (it counts within \"body\")", name));
  if (from.contains("messages") && !from["messages"].is_null()) {
    made.conversation.emplace(ordered_json::object());
    for (const char* key : {"messages", "tools", "documents", "chat_template_kwargs"})
      if (from.contains(key)) (*made.conversation)[key] = from[key];
    return made;
  }
  const auto prompt = from.find("prompt");
  require(prompt != from.end() && prompt->is_string(), Failure::input,
          "{}: needs a 'prompt' that is a string, or 'messages'", where);
  made.text = prompt->get<std::string>();
  return made;
}

/// The name of a request, as JSON.
std::string id_of(const Prompt& prompt) { return prompt.id.empty() ? "null" : prompt.id; }

/// The key and the value by which an answer's line keeps its prompt.
std::pair<const char*, ordered_json> question_of(const Prompt& prompt) {
  if (prompt.conversation) return {"messages", (*prompt.conversation)["messages"]};
  return {"prompt", prompt.text};
}

/// Whether an answer's line is to that prompt.
bool answers(const json& line, const Prompt& prompt) {
  if (prompt.is_request)
    return line.contains("custom_id") && line["custom_id"] == json::parse(id_of(prompt));
  const auto [key, value] = question_of(prompt);
  return line.contains(key) && line[key] == json::parse(dump(value));
}

/// Whether an answer's line says why there is none; nothing where it is no such line.
std::optional<bool> is_error(const json& line, const Prompt& prompt) {
  if (prompt.is_request) {
    if (!line.contains("response") || !line.contains("error")) return std::nullopt;
    return line["response"].is_null();
  }
  if (!line.contains("finish_reason")) return std::nullopt;
  const bool error = line["finish_reason"] == "error";
  return line.contains(error ? "error" : "text") ? std::optional(error) : std::nullopt;
}

/// The answer as a server of OpenAI's interface gives it.
ordered_json response(const AnswerLine& answer) {
  const bool chat = answer.question->conversation.has_value();
  ordered_json choice;
  choice["index"] = answer.sample;
  if (chat) {
    choice["message"]["role"] = "assistant";
    choice["message"]["content"] = answer.text;
  } else {
    choice["text"] = answer.text;
  }
  choice["finish_reason"] = answer.finish == "length" ? "length" : "stop";
  if (answer.log_probability) choice["log_probability"] = *answer.log_probability;
  ordered_json made;
  made["status_code"] = 200;
  ordered_json& body = made["body"];
  body["object"] = chat ? "chat.completion" : "text_completion";
  body["choices"] = ordered_json::array({choice});
  body["usage"]["prompt_tokens"] = answer.prompt_tokens;
  body["usage"]["completion_tokens"] = answer.tokens;
  body["usage"]["total_tokens"] = answer.prompt_tokens + answer.tokens;
  return made;
}

}  // namespace

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::vector<Prompt> read_prompts(const fs::path& file, const AnswerSettings& given) {
  const Bytes bytes = read_file(file, Failure::input, most_lines_bytes, Links::follow);
  std::vector<Prompt> prompts;
  std::optional<bool> lines_of_json;
  std::set<std::string> unknown;
  for_lines(deck::without_mark(as_text(bytes)), [&](std::string_view line, std::int64_t number) {
    if (!lines_of_json) lines_of_json = line.substr(line.find_first_not_of(" \t")).starts_with('{');
    const std::string where = fmt::format("{}:{}", file.string(), number);
    prompts.push_back(*lines_of_json ? prompt_of(line, where, given, unknown)
                                     : Prompt{.settings = given, .text = std::string(line)});
    prompts.back().line = number;
  });
  require(!prompts.empty(), Failure::input, "{}: holds no prompts", file.string());
  if (!unknown.empty() && log::leads())
    log::warn("{}: keys that have no effect: {}", file.string(), fmt::join(unknown, ", "));
  return prompts;
}

std::string json_line(const AnswerLine& answer) {
  ordered_json line{{"index", answer.prompt}};
  if (answer.sample > 0) line["sample"] = answer.sample;
  const Prompt& prompt = *answer.question;
  const bool error = answer.finish == "error";
  if (prompt.is_request) {
    line["custom_id"] = ordered_json::parse(id_of(prompt));
    line["response"] = error ? ordered_json() : response(answer);
    line["error"] = nullptr;
    if (error) line["error"] = ordered_json{{"message", answer.text}};
  } else {
    if (!prompt.id.empty()) line["id"] = ordered_json::parse(prompt.id);
    auto [key, question] = question_of(prompt);
    line[key] = std::move(question);
    line[error ? "error" : "text"] = answer.text;
    line["finish_reason"] = answer.finish;
    line["prompt_tokens"] = answer.prompt_tokens;
    line["tokens"] = answer.tokens;
    if (answer.log_probability) line["log_probability"] = *answer.log_probability;
  }
  line["fingerprint"] = prompt.fingerprint;
  return dump(line) + "\n";
}

Answered read_answered(const fs::path& file, const std::vector<Prompt>& prompts,
                       io::AppendedFile& output) {
  require(output.lock(), Failure::input, "{}: another job writes its answers there", file.string());
  Answered answered;
  const Bytes bytes = read_file(file, Failure::storage, most_lines_bytes, Links::follow);
  const std::string_view all = as_text(bytes), text = all.substr(0, all.rfind('\n') + 1),
                         rest = all.substr(text.size());
  const auto require_answer = [&](bool is_one, std::int64_t number) {
    require(is_one, Failure::input,
            "{}:{}: is no answer to these prompts. Name another file, or remove this one.",
            file.string(), number);
  };
  for_lines(text, [&](std::string_view line, std::int64_t number) {
    const json object = json::parse(line, nullptr, false);
    const auto whole_number = [&](const char* key, std::int64_t otherwise) {
      if (!object.is_object() || !object.contains(key)) return otherwise;
      return object[key].is_number_unsigned() ? object[key].get<std::int64_t>() : -1;
    };
    const std::int64_t index = whole_number("index", -1), sample = whole_number("sample", 0);
    require_answer(index >= 0 && index < std::ssize(prompts) && sample >= 0, number);
    const Prompt& prompt = prompts[index];
    const std::optional<bool> error = is_error(object, prompt);
    require_answer(sample < prompt.settings.samples && error && answers(object, prompt), number);
    const bool same = object.value("fingerprint", json()) == prompt.fingerprint;
    require(*error || same, Failure::input,
            "{}:{}: was answered by other weights, with other options or to another prompt. Name "
            "another file, or remove this one.",
            file.string(), number);
    if (same) (*error ? answered.errors : answered.answers).emplace(index, int(sample));
  });
  if (rest.empty()) return answered;
  constexpr std::string_view begin = R"({"index":)";
  require_answer(rest.starts_with(begin.substr(0, rest.size())),
                 1 + std::ranges::count(text, '\n'));
  output.cut(std::int64_t(text.size()));
  return answered;
}

}  // namespace brume::app
