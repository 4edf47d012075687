/// @file The verb `generate`: answers to prompts, by the weights of a run or of a Hugging Face
/// model.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "all_ranks.hpp"
#include "answering.hpp"
#include "answers.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "engine/generator.hpp"
#include "io/appended_file.hpp"
#include "prompts.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Generates on all ranks of a job.
class Generation {
 public:
  Generation(const GenerateOptions& options, comm::Session& session, comm::Communicator& job)
      : options_(options), job_(job), leader_(job.rank() == 0), answering_(options, session, job) {}

  void run() {
    read_prompts();
    read_answers();
    choose_plan();
    answering_.with_generators([&](const PhaseGenerators& generators) { generate(generators); });
  }

 private:
  // --- what is asked ----------------------------------------------------------------------------

  /// Reads prompts as tokens.
  void read_prompts() {
    bool any_conversation = false;
    comm::together(job_, [&] {
      if (!options_.prompts_file.empty())
        prompts_ = app::read_prompts(options_.prompts_file, options_);
      for (const std::string& text : options_.prompts)
        prompts_.push_back({.settings = options_, .text = text});
      for (Prompt& prompt : prompts_) {
        if (options_.chat && !prompt.conversation)
          prompt.conversation = as_conversation(prompt.text);
        if (!prompt.conversation) continue;
        any_conversation = true;
        add_system(*prompt.conversation);
      }
      for (const auto& [option, text] :
           {std::pair("--system", &options_.system), {"--chat-template", &options_.chat_template}})
        require(text->empty() || any_conversation, Failure::input,
                "{}: no prompt is a conversation: add --chat", option);
    });
    const auto where_of = [&](const Prompt& prompt) {
      return prompt.line > 0 ? fmt::format("{}:{}", options_.prompts_file, prompt.line)
                             : std::string("--prompt");
    };
    tokens_ = tokens_of(prompts_, answering_.translator(), where_of, job_);
    answering_.identify();
    for (Prompt& prompt : prompts_)
      prompt.fingerprint = answering_.fingerprint(
          prompt.conversation ? dump(*prompt.conversation) : prompt.text, prompt.settings);
  }

  /// A message of a user, as the beginning of a conversation.
  static nlohmann::ordered_json as_conversation(const std::string& text) {
    nlohmann::ordered_json conversation;
    conversation["messages"].push_back(chat::message("user", text));
    return conversation;
  }

  /// Puts the system message that is given before a conversation without one.
  void add_system(nlohmann::ordered_json& conversation) const {
    nlohmann::ordered_json& messages = conversation["messages"];
    const bool has_one = messages.is_array() && !messages.empty() && messages[0].is_object() &&
                         messages[0].value("role", nlohmann::ordered_json()) == "system";
    if (options_.system.empty() || !messages.is_array() || has_one) return;
    messages.insert(messages.begin(), chat::message("system", options_.system));
  }

  /// Answers that the output file does not have yet. Those that cannot be made are errors.
  void read_answers() {
    std::string done;  // of rank 0, because another node may not see the same yet
    comm::together(job_, [&] {
      if (!leader_ || options_.output.empty()) return;
      output_.emplace(options_.output);
      const Answered found = read_answered(options_.output, prompts_, *output_);
      for (const bool error : {false, true})
        for (const auto& [prompt, sample] : error ? found.errors : found.answers)
          done += fmt::format("{} {} {} ", int(error), prompt, sample);
    });
    std::set<std::pair<std::int64_t, int>> answered, failed;
    std::istringstream words(comm::broadcast(job_, done, 0));
    std::pair<std::int64_t, int> one;
    for (int error = 0; words >> error >> one.first >> one.second;)
      (error != 0 ? failed : answered).insert(one);
    if (leader_ && !answered.empty())
      log::info("{}: has {} already", options_.output,
                counted(std::int64_t(answered.size()), "answer"));
    std::string errors;
    std::int64_t without = 0;
    for (std::int64_t i = 0; i < std::ssize(prompts_); ++i)
      for (int sample = 0; sample < prompts_[i].settings.samples; ++sample) {
        if (answered.contains({i, sample})) continue;
        const std::string refusal = refusal_of(i);
        if (refusal.empty()) {
          asked_.push_back({i, sample});
          continue;
        }
        ++without;
        if (failed.contains({i, sample})) continue;
        AnswerLine error = answer_line({i, sample}, "error");
        error.text = refusal;
        errors += json_line(error);
      }
    comm::together(job_, [&] {
      require(without == 0 || !streams(), Failure::input, "{}", refusal_of(0));
      write(errors);
    });
    if (leader_ && without > 0)
      log::warn("prompts without an answer: {}; each has a line that says why", without);
  }

  const AnswerSettings& settings_of(const Asked& asked) const {
    return prompts_[asked.prompt].settings;
  }

  std::string refusal_of(std::int64_t prompt) const {
    const int seq_len = answering_.model().seq_len;
    return refusal(std::ssize(tokens_[prompt]), seq_len, seq_len);
  }

  /// The line of an answer without its text.
  AnswerLine answer_line(const Asked& asked, const char* finish) const {
    const Prompt& prompt = prompts_[asked.prompt];
    return {.prompt = asked.prompt,
            .sample = asked.sample,
            .question = &prompt,
            .finish = finish,
            .prompt_tokens = std::ssize(tokens_[asked.prompt])};
  }

  // --- plan -------------------------------------------------------------------------------------

  void choose_plan() {
    std::int64_t longest = 1;
    for (const Asked& asked : asked_)
      longest =
          std::max(longest, std::ssize(tokens_[asked.prompt]) + settings_of(asked).max_tokens);
    const int batch = int(std::clamp<std::int64_t>(std::ssize(asked_), 1, options_.batch));
    answering_.choose_plan(longest, batch);
    if (!leader_) return;
    const GenerationPlan& plan = answering_.plan();
    log::info("{} on {}: {}; up to {} sequences of {} tokens at once, {} of keys on each rank",
              counted(std::int64_t(asked_.size()), "answer"), counted(job_.size(), "rank"),
              plan.text(), batch, plan.model.seq_len, format_bytes(plan.cache_bytes()));
  }

  // --- answers ----------------------------------------------------------------------------------

  void generate(const PhaseGenerators& generators) {
    const auto start = Clock::now();
    Progress progress("answering", double(asked_.size()), leader_ && !streams());
    const AnswerSums sums = answer(
        generators, answering_.plan(), {prompts_, tokens_, answering_.translator()}, asked_,
        {.text_of = [&](const OpenAnswer& open, const char* finish) { return line(open, finish); },
         .take =
             [&](const std::string& lines) {
               write(lines);
               progress.add(double(std::ranges::count(lines, '\n')));
             },
         .grown = [&](const OpenAnswer& open, std::size_t before,
                      bool finished) { stream(open.answer, before, finished); }},
        job_);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (streams() && leader_ && !asked_.empty()) {
      fmt::print("\n");
      std::fflush(stdout);
    }
    if (!leader_ || asked_.empty()) return;
    log::info(
        "{} tokens of answers in {}: {:.1f} tokens/s; {} tokens were computed{}{}{}", sums.made,
        format_seconds(seconds), sums.made / seconds, sums.computed,
        sums.shared > 0.0 ? fmt::format(", {} were there already", sums.shared) : "",
        sums.preemptions > 0.0
            ? fmt::format(", some again because the key cache was full {} times", sums.preemptions)
            : "",
        sums.changes > 0.0 ? fmt::format("; keys changed plans {} times in {}", sums.changes,
                                         format_seconds(sums.changes_s))
                           : "");
  }

  /// Shows the one answer as it grows.
  void stream(const generation::Answer& answer, std::size_t before, bool finished) const {
    if (!streams() || !leader_) return;
    const std::string& text = answer.text();
    const std::size_t end = finished ? text.size() : answer.settled();
    if (end > before)
      fmt::print("{}", terminal::printable(std::string_view(text).substr(before, end - before)));
    std::fflush(stdout);
  }

  std::string line(const OpenAnswer& open, const char* finish) const {
    AnswerLine answer = answer_line(open.asked, finish);
    answer.text = open.answer.text();
    answer.tokens = open.tokens;
    if (settings_of(open.asked).sampling.log_probabilities)
      answer.log_probability = open.log_probability;
    return json_line(answer);
  }

  /// Whether the one answer is shown as it grows.
  bool streams() const {
    return options_.output.empty() && !options_.json && prompts_.size() == 1 &&
           prompts_.front().settings.samples == 1;
  }

  /// Appends lines to the output, on rank 0.
  void write(const std::string& lines) {
    if (!leader_ || lines.empty()) return;
    if (output_) return output_->append(lines);
    if (streams() && !asked_.empty()) return;
    fmt::print("{}", lines);
    std::fflush(stdout);
  }

  const GenerateOptions& options_;
  comm::Communicator& job_;
  bool leader_;
  Answering answering_;
  std::vector<Prompt> prompts_;
  std::vector<std::vector<std::int32_t>> tokens_;  ///< of prompts
  std::vector<Asked> asked_;                       ///< answers to be made
  std::optional<io::AppendedFile> output_;         ///< on rank 0
};

}  // namespace

int generate(const GenerateOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& job) {
    Generation(options, session, job).run();
    return 0;
  });
}

}  // namespace brume::app
