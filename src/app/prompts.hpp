/// @file Prompts in, answers out: lines of text or of JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/appended_file.hpp"
#include "verbs.hpp"

namespace brume::app {

struct Prompt {
  AnswerSettings settings;
  std::string text;           ///< of a conversation: that which the chat template makes of it
  std::string id = {};        ///< JSON, the file's own name of it; empty: none
  bool is_request = false;    ///< of a batch for servers, whose answers have their form
  std::string fingerprint{};  ///< of all that decides its answer
  std::optional<nlohmann::ordered_json> conversation = {};  ///< see chat::Writer
  std::int64_t line = 0;                                    ///< of its file; 0: of none
};

/// The prompts of a file, without fingerprints. If its first line begins with '{', each line is
/// JSON, with the prompt as "prompt" or a conversation as "messages", or with both in "body" as
/// OpenAI-compatible servers take batches; "id" or "custom_id" names it. Otherwise each line is a
/// prompt. Empty lines do not count. The texts of conversations are left empty. Keys of a "body"
/// that servers know, such as "max_tokens", win over `given`.
/// @throws Error(input) naming the line
std::vector<Prompt> read_prompts(const std::filesystem::path& file, const AnswerSettings& given);

/// One answer to a prompt.
struct AnswerLine {
  std::int64_t prompt;  ///< index
  int sample;           ///< among the answers to that prompt
  const Prompt* question = nullptr;
  std::string text = {};
  std::string finish;  ///< end, stop or length; error: `text` says what is wrong
  std::int64_t prompt_tokens = 0, tokens = 0;
  std::optional<double> log_probability = {};  ///< of all tokens of the answer [nats]
};
/// JSON on one line; a text's bytes that are no UTF-8 become U+FFFD.
std::string dump(const nlohmann::ordered_json& value);

/// A line of JSON, with the end of the line.
std::string json_line(const AnswerLine& answer);

/// Answers and errors that a file has, as prompts and samples.
struct Answered {
  std::set<std::pair<std::int64_t, int>> answers, errors;
};
/// Locks a file of answers for this process, reads it, and cuts off a last line that a kill left
/// unfinished.
/// @throws Error(input) for a file of anything else, of answers with another fingerprint, or that
/// another job writes; Error(storage)
Answered read_answered(const std::filesystem::path& file, const std::vector<Prompt>& prompts,
                       io::AppendedFile& output);

}  // namespace brume::app
