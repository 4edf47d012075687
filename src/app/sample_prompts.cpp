#include "sample_prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "answers.hpp"
#include "base/error.hpp"
#include "comm/agree.hpp"
#include "inference.hpp"
#include "tokenizer/tokenizer.hpp"
#include "weights.hpp"

namespace brume::app {
namespace {

constexpr std::ptrdiff_t most_prompts = 100;

/// The deck's keys as the options of `generate`.
AnswerOptions options_of(const deck::SamplesKeys& keys) {
  AnswerOptions options;
  options.max_tokens = keys.max_tokens;
  options.sampling.temperature = keys.temperature;
  options.sampling.top_k = keys.top_k;
  options.sampling.top_p = keys.top_p;
  options.sampling.seed = std::uint64_t(keys.seed);
  options.tokenizer = keys.tokenizer;
  options.chat_template = keys.chat_template;
  return options;
}

/// Names the key in errors.
template <typename Body>
auto of_key(const char* key, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.failure(), "training.samples.{}: {}", key, error.what());
  }
}

std::vector<Prompt> checked_prompts(const deck::SamplesKeys& keys, const AnswerOptions& options) {
  std::vector<Prompt> prompts = read_prompts(keys.prompts, options);
  require(std::ssize(prompts) <= most_prompts, Failure::input,
          "{}: holds {} prompts: at most {} are answered while a model is trained", keys.prompts,
          prompts.size(), most_prompts);
  for (const Prompt& prompt : prompts) {
    require(tokenizer::is_utf8(prompt.text), Failure::input, "{}:{}: is not UTF-8", keys.prompts,
            prompt.line);
    require(prompt.settings.samples == 1, Failure::input,
            "{}:{}: asks for {} answers: one is given while a model is trained", keys.prompts,
            prompt.line, prompt.settings.samples);
  }
  return prompts;
}

}  // namespace

std::int64_t SamplePrompts::longest() const {
  std::int64_t most = 1;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    most = std::max(most, std::ssize(tokens[i]) + prompts[i].settings.max_tokens);
  return most;
}

std::unique_ptr<SamplePrompts> read_sample_prompts(const deck::Deck& deck,
                                                   const model::Config& model,
                                                   comm::Communicator& job) {
  const deck::SamplesKeys& keys = deck.training.samples;
  const AnswerOptions options = options_of(keys);
  std::unique_ptr<SamplePrompts> made;
  comm::together(job, [&] {
    std::vector<Prompt> prompts = of_key("prompts", [&] { return checked_prompts(keys, options); });
    made = of_key("tokenizer", [&] {
      const std::vector<std::filesystem::path> folders =
          model_folders(deck.output.directory, std::nullopt, deck);
      const std::filesystem::path tokenizer =
          tokenizer_path(keys.tokenizer, folders, model, keys.prompts, "Name a tokenizer here.");
      return std::make_unique<SamplePrompts>(
          SamplePrompts{Translator(tokenizer, folders, options, model.vocab_size), prompts});
    });
    if (std::ranges::any_of(made->prompts, [](const Prompt& one) { return !!one.conversation; }))
      of_key("chat_template", [&] { made->translator.read_conversations(); });
  });
  const auto where_of = [&](const Prompt& prompt) {
    return fmt::format("{}:{}", keys.prompts, prompt.line);
  };
  made->tokens = tokens_of(made->prompts, made->translator, where_of, job);
  comm::together(job, [&] {
    for (std::size_t i = 0; i < made->prompts.size(); ++i) {
      const std::int64_t count = std::ssize(made->tokens[i]);
      const std::string why =
          count == 0 ? "the prompt has no tokens" : refusal(count, model.seq_len, model.seq_len);
      require(why.empty(), Failure::input, "training.samples.prompts: {}: {}",
              where_of(made->prompts[i]), why);
    }
  });
  return made;
}

}  // namespace brume::app
