#include "answers.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "comm/agree.hpp"

namespace brume::app {
namespace {

constexpr int passes_of_round = 16;  ///< after which ranks exchange answers and prompts

/// The rounds of one call of answer().
class Rounds {
 public:
  Rounds(const PhaseGenerators& generators, const GenerationPlan& plan, const Questions& questions,
         const std::vector<Asked>& asked, const AnswerCalls& calls, comm::Communicator& job)
      : generator_(generators.answers),
        prompts_(generators.prompts),
        seq_len_(plan.model.seq_len),
        copies_(plan.copies()),
        questions_(questions),
        asked_(asked),
        calls_(calls),
        job_(job),
        scheduler_(plan.model.generation, plan.model.blocks_per_sequence(),
                   prompts_ ? plan.prompt_model().generation.blocks : 0) {}

  AnswerSums run() {
    for (;;) {
      const std::optional<std::int64_t> open = hand_out();
      if (!open || (*open == 0 && handed_out_ == std::ssize(asked_))) break;
      // A round does not end within a phase of prompts, whose stages do not wait for each other.
      for (int pass = 0;
           (pass < passes_of_round || scheduler_.in_prompts()) && scheduler_.open() > 0; ++pass)
        make_pass();
      const std::vector<std::string> texts = job_.gather_at(std::exchange(texts_, {}), 0);
      comm::together(job_, [&] {
        for (const std::string& some : texts) calls_.take(some);
      });
    }
    std::array<double, 5> sums{double(made_), double(computed_), double(scheduler_.preemptions()),
                               double(scheduler_.shared_tokens()), double(changes_)};
    if (generator_.copy().rank() != 0) sums = {};
    job_.all_reduce(sums, comm::Reduction::sum);
    std::array<double, 1> most{changes_s_};
    job_.all_reduce(most, comm::Reduction::max);
    return {sums[0], sums[1], sums[2], sums[3], sums[4], most[0]};
  }

 private:
  /// Gives copies prompts while they have room. Collective over the job.
  /// @return sequences that are open; none if any rank stops
  std::optional<std::int64_t> hand_out() {
    const int own = generator_.copy_index();
    std::vector<double> room(std::size_t(copies_) + 3);
    room[own] = scheduler_.room();
    room[copies_] = scheduler_.open();
    room[copies_ + 1] = scheduler_.wants_prompts() ? 1.0 : 0.0;
    room.back() = calls_.stops && calls_.stops() ? 1.0 : 0.0;
    job_.all_reduce(room, comm::Reduction::max);
    if (room.back() > 0.0) return std::nullopt;
    std::int64_t open = std::int64_t(room[copies_]);
    // One to each in turn, so that the last ones are spread evenly.
    for (bool any = true; any;) {
      any = false;
      for (int copy = 0; copy < copies_ && handed_out_ < std::ssize(asked_); ++copy) {
        if (room[copy] < 1.0) continue;
        room[copy] -= 1.0;
        any = true;
        ++open;
        if (copy == own) begin(handed_out_);
        ++handed_out_;
      }
    }
    // Copies compute prompts at the same time, because they wait for each other after each round.
    if (room[copies_ + 1] > 0.0) scheduler_.begin_prompts();
    return open;
  }

  const AnswerSettings& settings_of(const Asked& asked) const {
    return questions_.prompts[asked.prompt].settings;
  }

  void begin(std::int64_t id) {
    const Asked& asked = asked_[id];
    scheduler_.add(id, questions_.tokens[asked.prompt]);
    open_.emplace(id, OpenAnswer{asked, generation::Answer(settings_of(asked).stops)});
  }

  /// A pass, and the tokens that follow from it. Collective over the copy.
  void make_pass() {
    const generation::Scheduler::Pass pass = scheduler_.next();
    computed_ += std::ssize(pass.tokens.tokens);
    const auto draw_of = [&](std::int64_t id) {
      const Asked& asked = open_.at(id).asked;
      return Draw{settings_of(asked).sampling,
                  (std::uint64_t(asked.prompt) << 32) + std::uint64_t(asked.sample)};
    };
    if (pass.prompts && pass.tokens.tokens.empty()) return end_prompts(pass.filled);
    const std::vector<generation::Choice> chosen =
        choose(pass.prompts ? *prompts_ : generator_, pass, scheduler_, draw_of,
               questions_.tolerant, pass.prompts);
    if (pass.prompts) {
      wanted_.insert(wanted_.end(), pass.wanted.begin(), pass.wanted.end());
      first_.insert(first_.end(), chosen.begin(), chosen.end());
      return;
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) go_on(pass.wanted[i], chosen[i]);
  }

  /// Moves the keys of a phase of prompts to the plan of answers, and adds the tokens that follow
  /// from them. Collective over the copy.
  void end_prompts(const std::vector<std::int32_t>& blocks) {
    prompts_->copy().broadcast(std::as_writable_bytes(std::span(first_)), prompts_->sampler());
    const auto start = std::chrono::steady_clock::now();
    prompts_->give_keys(generator_, blocks);
    changes_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++changes_;
    for (std::size_t i = 0; i < first_.size(); ++i) go_on(wanted_[i], first_[i]);
    wanted_.clear(), first_.clear();
  }

  /// Adds a token to its answer, which may end by it.
  void go_on(std::int64_t id, const generation::Choice& chosen) {
    OpenAnswer& open = open_.at(id);
    const std::int32_t token = chosen.token;
    const std::size_t before = open.answer.settled();
    const char* finish = nullptr;
    if (token < 0) {
      finish = "error";
    } else {
      ++open.tokens, ++made_;
      open.log_probability += chosen.log_probability;
      if (questions_.translator.ends(token))
        finish = "end";
      else if (open.answer.add(questions_.translator.bytes_of(token)))
        finish = "stop";
      else if (open.tokens == settings_of(open.asked).max_tokens ||
               std::ssize(scheduler_.history(id).tokens) + 1 >= seq_len_)
        finish = "length";
    }
    if (calls_.grown) calls_.grown(open, before, finish != nullptr);
    if (finish == nullptr) return scheduler_.append(id, token);
    scheduler_.end(id);
    if (generator_.copy().rank() == 0) texts_ += calls_.text_of(open, finish);
    open_.erase(id);
  }

  engine::Generator& generator_;
  engine::Generator* prompts_;  ///< null: passes compute prompts and next tokens
  int seq_len_;
  int copies_;
  const Questions& questions_;
  const std::vector<Asked>& asked_;
  const AnswerCalls& calls_;
  comm::Communicator& job_;
  generation::Scheduler scheduler_;
  std::map<std::int64_t, OpenAnswer> open_;  ///< by place in asked_
  std::int64_t handed_out_ = 0;
  std::string texts_;                      ///< that this copy has for rank 0
  std::vector<std::int64_t> wanted_;       ///< sequences of this phase of prompts, by their ids
  std::vector<generation::Choice> first_;  ///< their tokens, which one rank has before its end
  std::int64_t made_ = 0, computed_ = 0;   ///< tokens
  std::int64_t changes_ = 0;
  double changes_s_ = 0.0;
};

}  // namespace

std::vector<generation::Choice> choose(engine::Generator& generator,
                                       const generation::Scheduler::Pass& pass,
                                       const generation::Scheduler& scheduler,
                                       const std::function<Draw(std::int64_t id)>& draw_of,
                                       bool tolerant, bool ahead) {
  const std::span<const float> logits = generator.run(pass.tokens);
  comm::Communicator& copy = generator.copy();
  std::vector<generation::Choice> chosen(pass.wanted.size());
  const std::size_t vocab = logits.size() / std::max<std::size_t>(1, chosen.size());
  for (std::size_t i = 0; i < chosen.size() && copy.rank() == generator.sampler(); ++i) {
    const Draw draw = draw_of(pass.wanted[i]);
    try {
      chosen[i] = generation::choose(logits.subspan(i * vocab, vocab), draw.how,
                                     scheduler.history(pass.wanted[i]), draw.sequence);
    } catch (const Error& error) {
      if (!tolerant || error.failure() != Failure::input) throw;
      chosen[i].token = -1;
    }
  }
  if (!chosen.empty() && !ahead)
    copy.broadcast(std::as_writable_bytes(std::span(chosen)), generator.sampler());
  return chosen;
}

std::vector<std::vector<std::int32_t>> tokens_of(
    std::vector<Prompt>& prompts, Translator& translator,
    const std::function<std::string(const Prompt&)>& where_of, comm::Communicator& job) {
  nlohmann::ordered_json texts = nlohmann::ordered_json::array();  // of conversations
  comm::together(job, [&] {
    for (const Prompt& prompt : prompts) {
      if (!prompt.conversation) continue;
      translator.read_conversations();
      if (job.rank() == 0)
        texts.push_back(translator.conversations().prompt(*prompt.conversation, where_of(prompt)));
    }
  });
  // Templates may ask for the time, which is another one on each rank.
  texts = nlohmann::ordered_json::parse(comm::broadcast(job, dump(texts), 0));
  std::vector<std::vector<std::int32_t>> tokens;
  comm::together(job, [&] {
    std::size_t next = 0;
    for (Prompt& prompt : prompts) {
      const bool conversation = prompt.conversation.has_value();
      if (conversation) prompt.text = texts.at(next++).get<std::string>();
      tokens.push_back(translator.encode(prompt.text, conversation));
    }
  });
  return tokens;
}

AnswerSums answer(const PhaseGenerators& generators, const GenerationPlan& plan,
                  const Questions& questions, const std::vector<Asked>& asked,
                  const AnswerCalls& calls, comm::Communicator& job) {
  return Rounds(generators, plan, questions, asked, calls, job).run();
}

}  // namespace brume::app
