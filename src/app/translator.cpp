#include "translator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/error.hpp"
#include "interop/hugging_face.hpp"
#include "interop/tokens.hpp"

namespace brume::app {

namespace fs = std::filesystem;

Translator::Translator(fs::path tokenizer, const std::vector<fs::path>& folders,
                       const AnswerOptions& options, int vocab_size)
    : path_(std::move(tokenizer)),
      template_file_(options.chat_template),
      ends_given_(!options.ends.empty()),
      vocab_size_(vocab_size) {
  if (!path_.empty()) tokenizer_.emplace(path_);
  const std::string first = options.begin    ? *options.begin
                            : !path_.empty() ? interop::begin_token(path_)
                                             : std::string();
  if (!first.empty())
    begin_ = token_of(first, options.begin ? "--begin" : "the post-processor's first token");
  for (const std::string& end : options.ends) ends_.insert(token_of(end, "--end"));
  if (ends_given_) return;
  for (const fs::path& folder : folders) {
    const std::vector<std::int32_t> ends = interop::end_tokens(folder);
    ends_.insert(ends.begin(), ends.end());
    if (!ends_.empty()) break;
  }
}

std::int32_t Translator::token_of(const std::string& text, const char* option) const {
  const auto found = tokenizer_ ? tokenizer_->find(text) : std::nullopt;
  require(found.has_value(), Failure::input, "{} '{}': {}", option, text,
          tokenizer_ ? "the tokenizer has no such token" : "tokens are bytes");
  return *found;
}

void Translator::read_conversations() {
  if (chat_) return;
  chat_.emplace(interop::conversation_writer(path_, tokenizer_ ? &*tokenizer_ : nullptr,
                                             template_file_, "", ""));
  // Models that learned to chat end their answers by the token that ends texts of the tokenizer.
  if (ends_given_ || !tokenizer_ || chat_->end_token().empty()) return;
  if (const auto end = tokenizer_->find(chat_->end_token())) ends_.insert(*end);
}

std::vector<std::int32_t> Translator::encode(std::string_view text, bool conversation) {
  std::vector<std::int32_t> tokens;
  if (begin_ && !conversation) tokens.push_back(*begin_);
  if (tokenizer_)
    tokenizer_->encode(text, tokens);
  else
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  for (const std::int32_t token : tokens)
    require(token < vocab_size_, Failure::input,
            "the tokenizer makes token {}, the model has a vocabulary of {}", token, vocab_size_);
  return tokens;
}

std::string Translator::bytes_of(std::int32_t token) const {
  if (!tokenizer_) return {char(token)};
  return std::string(tokenizer_->text_within(token));
}

void Translator::add_to(Fnv1a& hash) const {
  for (int token = 0; tokenizer_ && token < tokenizer_->vocab_size(); ++token)
    hash.add(tokenizer_->text_within(token));
  hash.add(chat_ ? chat_->identity() : "");
  hash.add(fmt::format("{} {}", begin_.value_or(-1), fmt::join(ends_, " ")));
}

std::string refusal(std::int64_t tokens, std::int64_t room, int seq_len) {
  if (tokens == 0) return "the prompt has no tokens: give it some, or name one by --begin";
  if (tokens < room) return {};
  return fmt::format(
      "the prompt has {} tokens, of which fewer than {} fit", tokens,
      room < seq_len ? fmt::format("{}", room) : fmt::format("model.seq_len = {}", room));
}

}  // namespace brume::app
