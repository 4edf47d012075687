/// @file The verb `generate`: answers to prompts, by the weights of a run or of a Hugging Face
/// model.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
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
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "engine/generator.hpp"
#include "generation/answer.hpp"
#include "generation/scheduler.hpp"
#include "io/appended_file.hpp"
#include "prompts.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int passes_of_round = 16;  ///< after which ranks exchange answers and prompts

/// An answer that is asked for.
struct Asked {
  std::int64_t prompt;
  int sample;
};

/// An answer in the making.
struct Open {
  Asked asked;
  generation::Answer answer;
  std::int64_t tokens = 0;
  double log_probability = 0.0;
};

/// Generates on all ranks of a job.
class Generation {
 public:
  Generation(const GenerateOptions& options, comm::Session& session, comm::Communicator& job)
      : options_(options), job_(job), leader_(job.rank() == 0), answering_(options, session, job) {}

  void run() {
    read_prompts();
    read_answers();
    choose_plan();
    answering_.with_generator([&](engine::Generator& generator) { generate(generator); });
  }

 private:
  // --- what is asked ----------------------------------------------------------------------------

  /// Reads prompts as tokens.
  void read_prompts() {
    nlohmann::ordered_json texts = nlohmann::ordered_json::array();  // of conversations
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
        answering_.read_conversations();
        const std::string where = prompt.line > 0
                                      ? fmt::format("{}:{}", options_.prompts_file, prompt.line)
                                      : std::string("--prompt");
        if (leader_)
          texts.push_back(answering_.conversations().prompt(*prompt.conversation, where));
      }
      for (const auto& [option, text] :
           {std::pair("--system", &options_.system), {"--chat-template", &options_.chat_template}})
        require(text->empty() || any_conversation, Failure::input,
                "{}: no prompt is a conversation: add --chat", option);
    });
    // Templates may ask for the time, which is another one on each rank.
    texts = nlohmann::ordered_json::parse(comm::broadcast(job_, dump(texts), 0));
    answering_.identify();
    comm::together(job_, [&] {
      std::size_t next = 0;
      for (Prompt& prompt : prompts_) {
        const bool conversation = prompt.conversation.has_value();
        if (conversation) prompt.text = texts.at(next++).get<std::string>();
        tokens_.push_back(answering_.encode(prompt.text, conversation));
        prompt.fingerprint = answering_.fingerprint(
            conversation ? dump(*prompt.conversation) : prompt.text, prompt.settings);
      }
    });
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
      for (int sample = 0; sample < prompts_[std::size_t(i)].settings.samples; ++sample) {
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
    return prompts_[std::size_t(asked.prompt)].settings;
  }

  std::string refusal_of(std::int64_t prompt) const {
    return answering_.refusal(std::ssize(tokens_[std::size_t(prompt)]), answering_.model().seq_len);
  }

  /// The line of an answer without its text.
  AnswerLine answer_line(const Asked& asked, const char* finish) const {
    const Prompt& prompt = prompts_[std::size_t(asked.prompt)];
    return {.prompt = asked.prompt,
            .sample = asked.sample,
            .question = &prompt,
            .finish = finish,
            .prompt_tokens = std::ssize(tokens_[std::size_t(asked.prompt)])};
  }

  // --- plan -------------------------------------------------------------------------------------

  void choose_plan() {
    std::int64_t longest = 1;
    for (const Asked& asked : asked_)
      longest = std::max(
          longest, std::ssize(tokens_[std::size_t(asked.prompt)]) + settings_of(asked).max_tokens);
    const int batch = int(std::clamp<std::int64_t>(std::ssize(asked_), 1, options_.batch));
    answering_.choose_plan(longest, batch);
    if (!leader_) return;
    const plan::Plan& plan = answering_.plan();
    const plan::Stage& stage = plan.stages.front();
    log::info(
        "{} on {}: {} of the model, tp {}{}; up to {} sequences of {} tokens at once, {} of "
        "keys on each rank",
        counted(std::int64_t(asked_.size()), "answer"), counted(job_.size(), "rank"),
        stage.data_ranks() == 1 ? "1 copy" : fmt::format("{} copies", stage.data_ranks()), stage.tp,
        plan.num_stages() > 1 ? fmt::format(", {} stages", plan.num_stages()) : "", batch,
        answering_.sizes().seq_len, format_bytes(answering_.cache_bytes()));
  }

  // --- answers ----------------------------------------------------------------------------------

  /// Rounds of passes, between which rank 0 writes answers and copies get more prompts.
  void generate(engine::Generator& generator) {
    const model::Config& sizes = answering_.sizes();
    generation::Scheduler scheduler(sizes.generation, sizes.blocks_per_sequence());
    const auto start = Clock::now();
    Progress progress("answering", double(asked_.size()), leader_ && !streams());
    std::int64_t handed_out = 0;
    for (;;) {
      const std::int64_t open = hand_out(generator, scheduler, handed_out);
      if (open == 0 && handed_out == std::ssize(asked_)) break;
      for (int pass = 0; pass < passes_of_round && scheduler.open() > 0; ++pass)
        make_pass(generator, scheduler);
      const std::vector<std::string> lines = job_.gather_at(std::exchange(lines_, {}), 0);
      comm::together(job_, [&] {
        for (const std::string& some : lines) {
          write(some);
          progress.add(double(std::ranges::count(some, '\n')));
        }
      });
    }
    std::array<double, 4> sums{double(made_), double(computed_), double(scheduler.preemptions()),
                               double(scheduler.shared_tokens())};
    if (generator.copy().rank() != 0) sums = {};
    job_.all_reduce(sums, comm::Reduction::sum);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (streams() && leader_ && !asked_.empty()) {
      fmt::print("\n");
      std::fflush(stdout);
    }
    if (!leader_ || asked_.empty()) return;
    log::info("{} tokens of answers in {}: {:.1f} tokens/s; {} tokens were computed{}{}", sums[0],
              format_seconds(seconds), sums[0] / seconds, sums[1],
              sums[3] > 0.0 ? fmt::format(", {} were there already", sums[3]) : "",
              sums[2] > 0.0
                  ? fmt::format(", some again because the key cache was full {} times", sums[2])
                  : "");
  }

  /// Gives copies prompts while they have room. Collective over the job.
  /// @return sequences that are open
  std::int64_t hand_out(const engine::Generator& generator, generation::Scheduler& scheduler,
                        std::int64_t& handed_out) {
    const int copies = answering_.plan().stages.front().data_ranks(), own = generator.copy_index();
    std::vector<double> room(std::size_t(copies) + 1);
    room[std::size_t(own)] = scheduler.room();
    room.back() = scheduler.open();
    job_.all_reduce(room, comm::Reduction::max);
    std::int64_t open = std::int64_t(room.back());
    // One to each in turn, so that the last ones are spread evenly.
    for (bool any = true; any;) {
      any = false;
      for (int copy = 0; copy < copies && handed_out < std::ssize(asked_); ++copy) {
        if (room[std::size_t(copy)] < 1.0) continue;
        room[std::size_t(copy)] -= 1.0;
        any = true;
        ++open;
        if (copy == own) begin(scheduler, handed_out);
        ++handed_out;
      }
    }
    return open;
  }

  void begin(generation::Scheduler& scheduler, std::int64_t id) {
    const Asked& asked = asked_[std::size_t(id)];
    scheduler.add(id, tokens_[std::size_t(asked.prompt)]);
    open_.emplace(id, Open{asked, generation::Answer(settings_of(asked).stops)});
  }

  /// A pass, and the tokens that follow from it. Collective over the copy.
  void make_pass(engine::Generator& generator, generation::Scheduler& scheduler) {
    const generation::Scheduler::Pass pass = scheduler.next();
    computed_ += std::ssize(pass.tokens.tokens);
    const std::vector<generation::Choice> chosen =
        answering_.choose(generator, pass, scheduler, [&](std::int64_t id) {
          const Asked& asked = open_.at(id).asked;
          return Answering::Draw{settings_of(asked).sampling,
                                 (std::uint64_t(asked.prompt) << 32) + std::uint64_t(asked.sample)};
        });
    for (std::size_t i = 0; i < chosen.size(); ++i)
      go_on(scheduler, pass.wanted[i], chosen[i], generator.copy().rank() == 0);
  }

  /// Adds a token to its answer, which may end by it.
  void go_on(generation::Scheduler& scheduler, std::int64_t id, const generation::Choice& chosen,
             bool speaks) {
    Open& open = open_.at(id);
    const std::int32_t token = chosen.token;
    ++open.tokens, ++made_;
    open.log_probability += chosen.log_probability;
    const std::size_t before = open.answer.settled();
    const char* finish = nullptr;
    if (answering_.ends(token))
      finish = "end";
    else if (open.answer.add(answering_.bytes_of(token)))
      finish = "stop";
    else if (open.tokens == settings_of(open.asked).max_tokens ||
             std::ssize(scheduler.history(id).tokens) + 1 >= answering_.sizes().seq_len)
      finish = "length";
    if (streams() && leader_) {
      const std::string& text = open.answer.text();
      const std::size_t end = finish != nullptr ? text.size() : open.answer.settled();
      if (end > before)
        fmt::print("{}", terminal::printable(std::string_view(text).substr(before, end - before)));
      std::fflush(stdout);
    }
    if (finish == nullptr) return scheduler.append(id, token);
    scheduler.end(id);
    if (speaks) lines_ += line(open, finish);
    open_.erase(id);
  }

  std::string line(const Open& open, const char* finish) const {
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
  std::map<std::int64_t, Open> open_;              ///< by place in asked_
  std::string lines_;                              ///< that this copy has for rank 0
  std::int64_t made_ = 0, computed_ = 0;           ///< tokens
};

}  // namespace

int generate(const GenerateOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& job) {
    Generation(options, session, job).run();
    return 0;
  });
}

}  // namespace brume::app
