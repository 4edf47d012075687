#include "documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "conversation_lines.hpp"
#include "deck/json.hpp"

namespace brume::interop {
namespace {

/// Bytes of text around a cut that decide whether it is one.
constexpr std::size_t look_bytes = 1024;

bool is_space(char c) { return deck::json_spaces.find(c) != deck::json_spaces.npos; }

/// Of a letter or a digit, or of a character beyond ASCII.
bool ends_word(char c) {
  return (c & 0x80) != 0 || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

}  // namespace

Encoder::Encoder(const PackOptions& options)
    : field_(options.field.value_or("text")), options_(options) {
  if (!options.tokenizer.empty()) tokenizer_.emplace(options.tokenizer);
  const auto find = [&](const std::string& token, const char* what) -> std::optional<std::int32_t> {
    if (token.empty()) return std::nullopt;
    const auto found = tokenizer_ ? tokenizer_->find(token) : std::nullopt;
    require(found.has_value(), Failure::input,
            "{}: has no added token '{}' that could {} documents",
            tokenizer_ ? options.tokenizer.string() : "bytes without a tokenizer", token, what);
    return found;
  };
  begin_ = find(options.begin, "begin");
  end_ = find(options.end, "end");
}

bool Encoder::takes(std::string_view line, bool any_object) const try {
  const ordered_json object = deck::parse_ordered_json(line, "");
  return object.is_object() &&
         (any_object || text_in(object, field_) || is_conversation(object) || is_pair(object) ||
          (text_in(object, "prompt") && text_in(object, "completion")));
} catch (const Error&) {
  return false;
}

std::size_t Encoder::context_begin(std::string_view text, std::size_t cut) {
  std::size_t begin = cut - std::min(cut, look_bytes);
  while (begin < cut && (text[begin] & 0xc0) == 0x80) ++begin;
  return begin;
}

std::size_t Encoder::last_cut(std::string_view text, std::size_t from) {
  if (!tokenizer_) return text.size() - 1;
  int tries = 16;
  for (std::size_t at = text.size() - std::min(text.size(), look_bytes); at > from && tries > 0;
       --at) {
    if (!is_space(text[at]) || !ends_word(text[at - 1])) continue;
    --tries;
    const std::size_t begin = context_begin(text, at);
    std::vector<std::int32_t> before, both;
    append("", text.substr(begin, at - begin), before);
    append("", text.substr(begin, at - begin + look_bytes), both);
    if (both.size() > before.size() && std::equal(before.begin(), before.end(), both.begin()))
      return at;
  }
  return 0;
}

std::vector<TokenDocument> Encoder::encode(const TextPiece& piece) {
  if (!piece.lines) return {part(piece)};
  const std::string_view text = piece.text;
  std::vector<TokenDocument> documents;
  for (std::size_t at = 0, number = 0; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view found = text.substr(at, end - at);
    if (found.find_first_not_of(" \t\r") != found.npos) {
      try {
        line(found, "", documents);
      } catch (const Error&) {  // once more, with the number of the line
        const std::int64_t at_line = piece.first_line + std::int64_t(number);
        line(found,
             fmt::format("{}, {} {}", piece.path.string(), piece.of_list ? "entry" : "line",
                         at_line),
             documents);
      }
    }
    at = end + 1;
  }
  return documents;
}

/// What a piece adds to its document: its tokens behind those of the text before it.
TokenDocument Encoder::part(const TextPiece& piece) {
  const std::string_view text = piece.text;
  TokenDocument made{.begins = piece.begins};
  if (piece.begins && begin_) made.tokens.push_back(*begin_);
  made.given = std::ssize(made.tokens);
  std::vector<std::int32_t> before, both;
  append("", text.substr(0, piece.before), before);
  append("", text, both);
  require(std::ranges::equal(before, std::span(both).first(std::min(before.size(), both.size()))),
          Failure::bug, "{}: a text was cut within a token", piece.path.string());
  made.tokens.insert(made.tokens.end(), both.begin() + std::ssize(before), both.end());
  if (piece.ends && end_) made.tokens.push_back(*end_);
  made.bytes = made.answer_bytes = std::ssize(text) - std::int64_t(piece.before);
  made.replaced = tokenizer_ && !tokenizer::is_utf8(text);
  return made;
}

void Encoder::line(std::string_view line, const std::string& where,
                   std::vector<TokenDocument>& documents) {
  ordered_json object = deck::parse_ordered_json(line, where);
  const std::string* const whole = text_in(object, field_);
  const bool converses = is_conversation(object);
  if (is_pair(object) && !(whole && options_.field)) return pair(object, where, documents);
  if (whole && (options_.field || !converses)) return documents.push_back(document("", *whole));
  if (converses) {
    chat::Writer& writer = this->writer(where, whole != nullptr);
    bool follows = false;
    for (const chat::Conversation& one :
         writer.texts(as_messages(std::move(object), where), where)) {
      documents.push_back(conversation(one));
      documents.back().follows = std::exchange(follows, true);
    }
    return;
  }
  for (const auto& [field, first] :
       {std::pair("messages", "a 'role'"), std::pair("conversations", "a 'role', or a 'from'")})
    require(!object.contains(field) || object[field].is_null(), Failure::input,
            "{}: '{}' must be a list of messages, each with {}", where, field, first);
  require(!object.contains("chosen") && !object.contains("rejected"), Failure::input,
          "{}: 'chosen' and 'rejected' must be there together, both as texts or both as lists of "
          "messages, each with a 'role'",
          where);
  const std::string* const prompt = text_in(object, "prompt");
  const std::string* const completion = text_in(object, "completion");
  require(prompt && completion, Failure::input,
          "{}: has no text in the field '{}', no conversation, and no prompt with its completion: "
          "name another field with --field",
          where, field_);
  documents.push_back(document(*prompt, *completion));
  documents.back().whole = true;
}

chat::Writer& Encoder::writer(const std::string& where, bool has_text) {
  try {
    if (!chat_)
      chat_.emplace(conversation_writer(options_.tokenizer, tokenizer_ ? &*tokenizer_ : nullptr,
                                        options_.chat_template, options_.begin, options_.end));
  } catch (const Error& error) {
    throw Error(
        error.failure(), "{}: is a conversation. {}{}", where, error.what(),
        has_text ? fmt::format(" Or name the field with its text: --field {}", field_) : "");
  }
  return *chat_;
}

/// Two documents, or one that says that an answer is missing.
void Encoder::pair(const ordered_json& object, const std::string& where,
                   std::vector<TokenDocument>& documents) {
  const AnswerPair pair = as_pair(object, where);
  const auto answer = [&](const std::string& text, const ordered_json& line) {
    if (pair.given == 0) return document(pair.prompt, text);
    TokenDocument made = conversation(writer(where, false).answer(line, pair.given, where));
    made.tokens.resize(std::size_t(made.turns.empty() ? 0 : made.turns.front().end));
    made.turns.clear();
    return made;
  };
  std::vector<TokenDocument> both{answer(pair.chosen, pair.chosen_line),
                                  answer(pair.rejected, pair.rejected_line)};
  const bool whole = std::ranges::all_of(
      both, [](const TokenDocument& one) { return one.answer_bytes > 0 && one.learned() > 0; });
  if (!whole) return documents.push_back({.whole = true});
  for (TokenDocument& one : both) {
    one.whole = one.of_pair = true;
    one.follows = &one != &both.front();
    documents.push_back(std::move(one));
  }
}

TokenDocument Encoder::conversation(const chat::Conversation& conversation) {
  TokenDocument made{.bytes = std::ssize(conversation.text), .whole = true};
  std::vector<std::size_t> borders;
  for (const chat::Span& answer : conversation.answers)
    borders.insert(borders.end(), {answer.begin, answer.end});
  std::vector<std::int64_t> counts(borders.begin(), borders.end());
  if (tokenizer_)
    counts = tokenizer_->encode(conversation.text, borders, made.tokens);
  else
    append(conversation.text, "", made.tokens);
  // A turn goes on behind the token that ends its answer; white space there is the template's.
  const auto is_space_only = [&](std::int32_t token) {
    return tokenizer_->text_within(token).find_first_not_of(" \n\r\t") == std::string::npos &&
           !tokenizer_->is_special(token);
  };
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < counts.size(); i += 2) {
    const std::int64_t answer = counts[i];
    std::int64_t end = counts[i + 1], last = end;
    while (tokenizer_ && last > answer && is_space_only(made.tokens[std::size_t(last - 1)])) --last;
    if (tokenizer_ && last > answer && tokenizer_->is_special(made.tokens[std::size_t(last - 1)]))
      end = last;
    if (end <= answer) continue;
    made.turns.push_back({begin, answer, end});
    made.answer_bytes += std::int64_t(borders[i + 1] - borders[i]);
    begin = end;
  }
  const std::int64_t count = std::ssize(made.tokens);
  if (begin < count) made.turns.push_back({begin, count, count});
  if (!made.turns.empty()) made.given = made.turns.front().answer;
  return made;
}

TokenDocument Encoder::document(std::string_view prompt, std::string_view text) {
  TokenDocument made;
  if (begin_) made.tokens.push_back(*begin_);
  made.given = std::ssize(made.tokens);
  made.given += append(prompt, text, made.tokens);
  if (!text.empty() && end_) made.tokens.push_back(*end_);
  made.bytes = std::ssize(prompt) + std::ssize(text);
  made.answer_bytes = std::ssize(text);
  return made;
}

std::int64_t Encoder::append(std::string_view prompt, std::string_view text,
                             std::vector<std::int32_t>& tokens) {
  if (tokenizer_ && !prompt.empty()) return tokenizer_->encode(prompt, text, tokens);
  if (tokenizer_) return tokenizer_->encode(text, tokens), 0;
  tokens.reserve(tokens.size() + prompt.size() + text.size() + 1);
  for (const std::string_view part : {prompt, text})
    for (const char c : part) tokens.push_back(static_cast<unsigned char>(c));
  return std::ssize(prompt);
}

}  // namespace brume::interop
