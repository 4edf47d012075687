#include "answers.hpp"

#include <algorithm>
#include <array>
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
  Rounds(engine::Generator& generator, const GenerationPlan& plan, const Questions& questions,
         const std::vector<Asked>& asked, const AnswerCalls& calls, comm::Communicator& job)
      : generator_(generator),
        seq_len_(plan.model.seq_len),
        copies_(plan.copies()),
        questions_(questions),
        asked_(asked),
        calls_(calls),
        job_(job),
        scheduler_(plan.model.generation, plan.model.blocks_per_sequence()) {}

  AnswerSums run() {
    for (;;) {
      const std::optional<std::int64_t> open = hand_out();
      if (!open || (*open == 0 && handed_out_ == std::ssize(asked_))) break;
      for (int pass = 0; pass < passes_of_round && scheduler_.open() > 0; ++pass) make_pass();
      const std::vector<std::string> texts = job_.gather_at(std::exchange(texts_, {}), 0);
      comm::together(job_, [&] {
        for (const std::string& some : texts) calls_.take(some);
      });
    }
    std::array<double, 4> sums{double(made_), double(computed_), double(scheduler_.preemptions()),
                               double(scheduler_.shared_tokens())};
    if (generator_.copy().rank() != 0) sums = {};
    job_.all_reduce(sums, comm::Reduction::sum);
    return {sums[0], sums[1], sums[2], sums[3]};
  }

 private:
  /// Gives copies prompts while they have room. Collective over the job.
  /// @return sequences that are open; none if any rank stops
  std::optional<std::int64_t> hand_out() {
    const int own = generator_.copy_index();
    std::vector<double> room(std::size_t(copies_) + 2);
    room[std::size_t(own)] = scheduler_.room();
    room[std::size_t(copies_)] = scheduler_.open();
    room.back() = calls_.stops && calls_.stops() ? 1.0 : 0.0;
    job_.all_reduce(room, comm::Reduction::max);
    if (room.back() > 0.0) return std::nullopt;
    std::int64_t open = std::int64_t(room[std::size_t(copies_)]);
    // One to each in turn, so that the last ones are spread evenly.
    for (bool any = true; any;) {
      any = false;
      for (int copy = 0; copy < copies_ && handed_out_ < std::ssize(asked_); ++copy) {
        if (room[std::size_t(copy)] < 1.0) continue;
        room[std::size_t(copy)] -= 1.0;
        any = true;
        ++open;
        if (copy == own) begin(handed_out_);
        ++handed_out_;
      }
    }
    return open;
  }

  const AnswerSettings& settings_of(const Asked& asked) const {
    return questions_.prompts[std::size_t(asked.prompt)].settings;
  }

  void begin(std::int64_t id) {
    const Asked& asked = asked_[std::size_t(id)];
    scheduler_.add(id, questions_.tokens[std::size_t(asked.prompt)]);
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
    const std::vector<generation::Choice> chosen =
        choose(generator_, pass, scheduler_, draw_of, questions_.tolerant);
    for (std::size_t i = 0; i < chosen.size(); ++i) go_on(pass.wanted[i], chosen[i]);
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
  int seq_len_;
  int copies_;
  const Questions& questions_;
  const std::vector<Asked>& asked_;
  const AnswerCalls& calls_;
  comm::Communicator& job_;
  generation::Scheduler scheduler_;
  std::map<std::int64_t, OpenAnswer> open_;  ///< by place in asked_
  std::int64_t handed_out_ = 0;
  std::string texts_;                     ///< that this copy has for rank 0
  std::int64_t made_ = 0, computed_ = 0;  ///< tokens
};

}  // namespace

std::vector<generation::Choice> choose(engine::Generator& generator,
                                       const generation::Scheduler::Pass& pass,
                                       const generation::Scheduler& scheduler,
                                       const std::function<Draw(std::int64_t id)>& draw_of,
                                       bool tolerant) {
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
  if (!chosen.empty())
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

AnswerSums answer(engine::Generator& generator, const GenerationPlan& plan,
                  const Questions& questions, const std::vector<Asked>& asked,
                  const AnswerCalls& calls, comm::Communicator& job) {
  return Rounds(generator, plan, questions, asked, calls, job).run();
}

}  // namespace brume::app
