/// @file Completions of prompts that `eval` scores, as sequences of tokens.
#include "completions.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "base/error.hpp"

namespace brume::app {

std::vector<interop::TokenDocument> read_completions(const std::string& file,
                                                     const interop::PackOptions& options,
                                                     const model::Config& model) {
  std::vector<interop::TokenDocument> documents = interop::read_documents(file, options);
  for (std::size_t i = 0; i < documents.size(); ++i) {
    interop::TokenDocument& document = documents[i];
    const std::int64_t excess = std::ssize(document.tokens) - (model.seq_len + 1);
    const std::string where = fmt::format("{}: completion {}", file, i + 1);
    require(document.turns.empty(), Failure::input,
            "{} is a conversation: give a prompt and a completion instead", where);
    require(document.given < std::ssize(document.tokens), Failure::input,
            "{} has no token of its own", where);
    require(document.given > 0, Failure::input,
            "{} has no token before it, so its first one has no likelihood: give it a prompt, or "
            "name a token by --begin",
            where);
    require(excess < document.given, Failure::input, "{} has {} tokens: at most seq_len = {} fit",
            where, std::ssize(document.tokens) - document.given, model.seq_len);
    if (excess <= 0) continue;
    document.tokens.erase(document.tokens.begin(), document.tokens.begin() + excess);
    document.given -= excess;
  }
  require(!documents.empty(), Failure::input, "{}: holds no completions", file);
  return documents;
}

data::Sampler sequences_of(const std::vector<interop::TokenDocument>& documents,
                           const std::string& file, const model::Config& model) {
  std::vector<std::int32_t> tokens;
  data::DocumentEnds ends;
  const auto end_here = [&](std::int64_t answer) {
    ends.ends.push_back(std::ssize(tokens));
    ends.answers.push_back(answer);
  };
  for (const interop::TokenDocument& document : documents) {
    const std::int64_t first = std::ssize(tokens);
    tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
    end_here(first + document.given);
    tokens.resize(std::size_t(first + model.seq_len + 1));
    end_here(std::ssize(tokens));
  }
  for (const std::int32_t token : tokens)
    require(token < model.vocab_size, Failure::input,
            "{}: its tokenizer makes token {}, the model has a vocabulary of {}", file, token,
            model.vocab_size);
  return data::sampler_of(tokens, model.vocab_size, ends, model.seq_len, model.isolated);
}

}  // namespace brume::app
