/// @file The verb `generate`: answers to prompts, by the weights of a run or of a Hugging Face
/// model.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "all_ranks.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/progress.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/generator.hpp"
#include "generation/answer.hpp"
#include "generation/scheduler.hpp"
#include "inference.hpp"
#include "interop/hugging_face.hpp"
#include "io/appended_file.hpp"
#include "io/checkpoint.hpp"
#include "kernels/types.hpp"
#include "prepare.hpp"
#include "prompts.hpp"
#include "tokenizer/tokenizer.hpp"
#include "verbs.hpp"
#include "weights.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int host_pass_tokens = 256, device_pass_tokens = 2048;
constexpr int passes_of_round = 16;  ///< after which ranks exchange answers and prompts
constexpr double share_of_memory = 0.8;

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

/// Text for a terminal: no byte of an answer must act on it.
std::string printable(std::string_view text) {
  std::string shown;
  if (::isatty(STDOUT_FILENO) == 0) return shown.append(text);
  for (const char c : text)
    if (const auto byte = static_cast<unsigned char>(c);
        byte >= 0x20 ? byte != 0x7F : c == '\n' || c == '\t')
      shown += c;
  return shown;
}

/// Generates on all ranks of a job.
class Generation {
 public:
  Generation(const GenerateOptions& options, comm::Session& session, comm::Communicator& job)
      : options_(options), session_(session), job_(job), leader_(job.rank() == 0) {}

  void run() {
    read();
    read_answers();
    choose_plan();
    const int threads = device::threads_per_rank(session_.ranks_per_node());
    const kernels::Runtime runtime(threads);
    engine::Generator generator(plan_, sizes_, inference_settings(session_, deck_, threads), job_);
    load_weights({options_.weights, checkpoint_}, model_, generator.slabs(), job_);
    generate(generator);
  }

 private:
  // --- what is asked ----------------------------------------------------------------------------

  /// The weights' deck, in the precision in which files hold the weights unless it is given.
  void read() {
    checkpoint_ = find_weights(job_, options_.weights);
    comm::together(job_, [&] {
      const auto parse = [&](const std::vector<std::string>& sets) {
        deck_ = deck_of_weights(options_.weights, checkpoint_, job_.size(), sets);
        model_ = model::config(deck_.model, deck_.training.precision);
      };
      parse(options_.sets);
      const bool given = std::ranges::any_of(options_.sets, [](const std::string& set) {
        return set.starts_with("training.precision");
      });
      if (!checkpoint_ && !given) {
        const interop::Dtype dtype = interop::PretrainedWeights(options_.weights, model_).dtype();
        std::vector<std::string> sets{
            fmt::format("training.precision=\"{}\"", model::name(precision_of(dtype)))};
        sets.insert(sets.end(), options_.sets.begin(), options_.sets.end());
        parse(sets);
      }
      tokenize();
    });
    if (!checkpoint_) find_first_weights(options_.weights, model_, job_);
    session_.set_silence_limit(deck_.training.silence_limit_s);
    kernels::allow_tf32(deck_.training.tf32);
  }

  std::vector<fs::path> folders() const {
    return model_folders(options_.weights, checkpoint_, deck_);
  }

  std::int32_t token_of(const std::string& text, const char* option) const {
    const auto found = tokenizer_ ? tokenizer_->find(text) : std::nullopt;
    require(found.has_value(), Failure::input, "{} '{}': {}", option, text,
            tokenizer_ ? "the tokenizer has no such token" : "tokens are bytes");
    return *found;
  }

  /// Reads prompts as tokens, and finds the tokens by which texts begin and answers end.
  void tokenize() {
    prompts_ =
        options_.prompts_file.empty() ? std::vector<Prompt>() : read_prompts(options_.prompts_file);
    for (const std::string& text : options_.prompts) prompts_.push_back({text});
    const fs::path path =
        tokenizer_path(options_.tokenizer, options_.weights, checkpoint_, deck_, model_);
    std::optional<std::int32_t> begin;
    if (!path.empty()) tokenizer_.emplace(path);
    const std::string first = options_.begin  ? *options_.begin
                              : !path.empty() ? interop::begin_token(path)
                                              : std::string();
    if (!first.empty())
      begin = token_of(first, options_.begin ? "--begin" : "the post-processor's first token");
    for (const std::string& end : options_.ends) ends_.insert(token_of(end, "--end"));
    if (options_.ends.empty())
      for (const fs::path& folder : folders()) {
        const std::vector<std::int32_t> ends = interop::end_tokens(folder);
        ends_.insert(ends.begin(), ends.end());
        if (!ends_.empty()) break;
      }
    for (const Prompt& prompt : prompts_) {
      std::vector<std::int32_t>& tokens = tokens_.emplace_back();
      if (begin) tokens.push_back(*begin);
      if (tokenizer_)
        tokenizer_->encode(prompt.text, tokens);
      else
        for (const char c : prompt.text) tokens.push_back(static_cast<unsigned char>(c));
      for (const std::int32_t token : tokens)
        require(token < model_.vocab_size, Failure::input,
                "the tokenizer makes token {}, the model has a vocabulary of {}", token,
                model_.vocab_size);
    }
  }

  /// Answers that the output file does not have yet. Those that cannot be made are errors.
  void read_answers() {
    std::string done;  // of rank 0, because another node may not see the same yet
    comm::together(job_, [&] {
      if (!leader_ || options_.output.empty()) return;
      output_.emplace(options_.output);
      const Answered found = read_answered(options_.output, prompts_, options_.samples, *output_);
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
      for (int sample = 0; sample < options_.samples; ++sample) {
        if (answered.contains({i, sample})) continue;
        const auto count = std::ssize(tokens_[std::size_t(i)]);
        if (count > 0 && count < model_.seq_len) {
          asked_.push_back({i, sample});
          continue;
        }
        ++without;
        if (failed.contains({i, sample})) continue;
        AnswerLine error = answer_line({i, sample}, "error");
        error.text = refusal(count);
        errors += json_line(error);
      }
    comm::together(job_, [&] {
      require(without == 0 || !streams(), Failure::input, "{}",
              refusal(std::ssize(tokens_.front())));
      write(errors);
    });
    if (leader_ && without > 0)
      log::warn("prompts without an answer: {}; each has a line that says why", without);
  }

  /// The reason why a prompt of so many tokens has no answer.
  std::string refusal(std::int64_t tokens) const {
    if (tokens == 0) return "the prompt has no tokens: give it some, or name one by --begin";
    return fmt::format("the prompt has {} tokens, of which fewer than model.seq_len = {} fit",
                       tokens, model_.seq_len);
  }

  /// The line of an answer without its text.
  AnswerLine answer_line(const Asked& asked, const char* finish) const {
    const Prompt& prompt = prompts_[std::size_t(asked.prompt)];
    return {.prompt = asked.prompt,
            .sample = asked.sample,
            .id = prompt.id,
            .question = prompt.text,
            .finish = finish,
            .prompt_tokens = std::ssize(tokens_[std::size_t(asked.prompt)])};
  }

  // --- plan -------------------------------------------------------------------------------------

  /// The longest sequence that is needed; learned positions keep their number.
  int needed_tokens() const {
    std::int64_t longest = 1;
    for (const Asked& asked : asked_)
      longest = std::max(longest, std::ssize(tokens_[std::size_t(asked.prompt)]));
    const std::int64_t needed = round_up(longest + options_.max_tokens, 64);
    return model_.rotary() ? int(std::min<std::int64_t>(needed, model_.seq_len)) : model_.seq_len;
  }

  /// Sequences at once.
  int batch() const { return int(std::clamp<std::int64_t>(std::ssize(asked_), 1, options_.batch)); }

  model::Config sized(int tp, int blocks) const {
    model::Config model = model_;
    model.seq_len = needed_tokens();
    const int longest = device::on_device() ? device_pass_tokens : host_pass_tokens;
    model::Generation sizes{.tokens = int(round_up(std::max(longest, batch()), tp)),
                            .sequences = batch()};
    model = model::generating(model, sizes);
    model.generation.blocks = blocks > 0 ? blocks : model.blocks_per_sequence() * batch();
    return model;
  }

  /// Memory that a rank may take, the least of all ranks' [bytes].
  double memory_bytes() {
    const device::Description device = device::describe_device();
    const std::int64_t left = device.memory_bytes > 0
                                  ? device.free_bytes
                                  : device::available_bytes() / session_.ranks_per_node();
    std::array<double, 1> bytes{left > 0 ? share_of_memory * double(left) : 1e18};
    job_.all_reduce(bytes, comm::Reduction::min);
    return bytes.front();
  }

  /// Bytes of all layers' key caches on a rank of a stage.
  static double cache_bytes(const plan::Stage& stage, const model::Config& model) {
    return stage.layers * model::cache_bytes(model).evaluate(stage.split().values());
  }

  /// Blocks of the cache that fit, with the model, into so much memory of a rank; 0: not even one
  /// sequence has room.
  int blocks_beside(const plan::Plan& plan, int tp, double memory_bytes) const {
    const model::Config all = sized(tp, 0), least = sized(tp, all.blocks_per_sequence());
    double bytes = memory_bytes, block_bytes = 0.0;
    for (const plan::Stage& stage : plan.stages)
      block_bytes = std::max(block_bytes, cache_bytes(stage, all) / all.generation.blocks);
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      const schedule::Arenas needed =
          engine::generator_bytes(plan, least, plan::first_rank(plan, stage));
      bytes = std::min(bytes, memory_bytes - double(needed[std::size_t(schedule::Tier::device)]));
    }
    if (bytes < 0.0) return 0;
    double blocks = least.generation.blocks + std::floor(bytes / block_bytes);
    if (options_.cache_gib > 0.0)
      blocks = std::min(blocks, std::floor(options_.cache_gib * 0x1p30 / block_bytes));
    blocks = std::min(blocks, double(all.generation.blocks));
    return std::max(int(blocks), least.generation.blocks);
  }

  plan::Plan plan_of(int tp) const {
    const int copies = job_.size() / tp;
    return plan::equal_stages(model_, copies, 1,
                              {.nodes = session_.num_nodes(),
                               .devices_per_node = job_.size() / session_.num_nodes(),
                               .microbatch = 1,
                               .dp = copies,
                               .tp = tp});
  }

  /// The plan that is given, or copies of the model on as few ranks each as it fits on.
  void choose_plan() {
    const double bytes = memory_bytes();
    comm::together(job_, [&] {
      const hardware::Cluster here = cluster_of(session_, job_);
      const auto use = [&](plan::Plan plan, int tp) {
        plan_ = engine::generating(std::move(plan));
        sizes_ = sized(tp, 0);
        plan::check(plan_, sizes_, here);
        const int blocks = blocks_beside(plan_, tp, bytes);
        if (blocks > 0) sizes_ = sized(tp, blocks);
        return blocks > 0;
      };
      if (!options_.plan.empty()) {
        const plan::Plan given = plan::load(options_.plan);
        require(given.devices() == job_.size(), Failure::input,
                "{} is for {} ranks, the job has {}", options_.plan, given.devices(), job_.size());
        int tp = 1;
        for (const plan::Stage& stage : given.stages) tp = std::lcm(tp, stage.tp);
        use(given, tp);
        return;
      }
      std::optional<Error> refused;
      for (int tp = options_.tp > 0 ? options_.tp : 1; tp <= job_.size(); ++tp) {
        if (options_.tp > 0 && tp > options_.tp) break;
        if (job_.size() % tp != 0) continue;
        try {
          if (use(plan_of(tp), tp)) return;
        } catch (const Error& error) {
          if (error.failure() != Failure::input) throw;
          refused = error;
        }
      }
      if (refused) throw Error(*refused);
      require(job_.size() % std::max(1, options_.tp) == 0, Failure::input,
              "--tp {} does not divide the job's {} ranks", options_.tp, job_.size());
    });
    if (!leader_) return;
    const plan::Stage& stage = plan_.stages.front();
    log::info(
        "{} on {}: {} of the model, tp {}{}; up to {} sequences of {} tokens at once, {} of "
        "keys on each rank",
        counted(std::int64_t(asked_.size()), "answer"), counted(job_.size(), "rank"),
        stage.data_ranks() == 1 ? "1 copy" : fmt::format("{} copies", stage.data_ranks()), stage.tp,
        plan_.num_stages() > 1 ? fmt::format(", {} stages", plan_.num_stages()) : "", batch(),
        sizes_.seq_len, format_bytes(cache_bytes(stage, sizes_)));
  }

  // --- answers ----------------------------------------------------------------------------------

  /// Rounds of passes, between which rank 0 writes answers and copies get more prompts.
  void generate(engine::Generator& generator) {
    generation::Scheduler scheduler(sizes_.generation, sizes_.blocks_per_sequence());
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
    std::array<double, 3> sums{double(made_), double(computed_), double(scheduler.preemptions())};
    if (generator.copy().rank() != 0) sums = {};
    job_.all_reduce(sums, comm::Reduction::sum);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (streams() && leader_ && !asked_.empty()) {
      fmt::print("\n");
      std::fflush(stdout);
    }
    if (!leader_ || asked_.empty()) return;
    log::info("{} tokens of answers in {}: {:.1f} tokens/s; {} tokens were computed{}", sums[0],
              format_seconds(seconds), sums[0] / seconds, sums[1],
              sums[2] > 0.0
                  ? fmt::format(", some again because the key cache was full {} times", sums[2])
                  : "");
  }

  /// Gives copies prompts while they have room. Collective over the job.
  /// @return sequences that are open
  std::int64_t hand_out(const engine::Generator& generator, generation::Scheduler& scheduler,
                        std::int64_t& handed_out) {
    const int copies = plan_.stages.front().data_ranks(), own = generator.copy_index();
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
    open_.emplace(id, Open{asked, generation::Answer(options_.stops)});
  }

  /// A pass, and the tokens that follow from it. Collective over the copy.
  void make_pass(engine::Generator& generator, generation::Scheduler& scheduler) {
    const generation::Scheduler::Pass pass = scheduler.next();
    const std::span<const float> logits = generator.run(pass.tokens);
    computed_ += std::ssize(pass.tokens.tokens);
    comm::Communicator& copy = generator.copy();
    std::vector<generation::Choice> chosen(pass.wanted.size());
    const auto vocab = std::size_t(model_.vocab_size);
    for (std::size_t i = 0; i < chosen.size() && copy.rank() == generator.sampler(); ++i) {
      const Asked& asked = open_.at(pass.wanted[i]).asked;
      chosen[i] = generation::choose(
          logits.subspan(i * vocab, vocab), options_.sampling, scheduler.history(pass.wanted[i]),
          (std::uint64_t(asked.prompt) << 32) + std::uint64_t(asked.sample));
    }
    if (!chosen.empty())
      copy.broadcast(std::as_writable_bytes(std::span(chosen)), generator.sampler());
    for (std::size_t i = 0; i < chosen.size(); ++i)
      go_on(scheduler, pass.wanted[i], chosen[i], copy.rank() == 0);
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
    if (ends_.contains(token))
      finish = "end";
    else if (open.answer.add(bytes_of(token)))
      finish = "stop";
    else if (open.tokens == options_.max_tokens ||
             std::ssize(scheduler.history(id).tokens) + 1 >= sizes_.seq_len)
      finish = "length";
    if (streams() && leader_) {
      const std::string& text = open.answer.text();
      const std::size_t end = finish != nullptr ? text.size() : open.answer.settled();
      if (end > before)
        fmt::print("{}", printable(std::string_view(text).substr(before, end - before)));
      std::fflush(stdout);
    }
    if (finish == nullptr) return scheduler.append(id, token);
    scheduler.end(id);
    if (speaks) lines_ += line(open, finish);
    open_.erase(id);
  }

  std::string bytes_of(std::int32_t token) const {
    if (!tokenizer_) return {char(token)};
    return std::string(tokenizer_->text_within(token));
  }

  std::string line(const Open& open, const char* finish) const {
    AnswerLine answer = answer_line(open.asked, finish);
    answer.text = open.answer.text();
    answer.tokens = open.tokens;
    if (options_.sampling.log_probabilities) answer.log_probability = open.log_probability;
    return json_line(answer);
  }

  /// Whether the one answer is shown as it grows.
  bool streams() const {
    return options_.output.empty() && !options_.json && prompts_.size() == 1 &&
           options_.samples == 1;
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
  comm::Session& session_;
  comm::Communicator& job_;
  bool leader_;
  std::optional<io::CheckpointInfo> checkpoint_;
  deck::Deck deck_{};
  model::Config model_{};
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::set<std::int32_t> ends_;
  std::vector<Prompt> prompts_;
  std::vector<std::vector<std::int32_t>> tokens_;  ///< of prompts
  std::vector<Asked> asked_;                       ///< answers to be made
  std::optional<io::AppendedFile> output_;         ///< on rank 0
  plan::Plan plan_{};
  model::Config sizes_{};                 ///< the model with the sizes of generation
  std::map<std::int64_t, Open> open_;     ///< by place in asked_
  std::string lines_;                     ///< that this copy has for rank 0
  std::int64_t made_ = 0, computed_ = 0;  ///< tokens
};

}  // namespace

int generate(const GenerateOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& job) {
    Generation(options, session, job).run();
    return 0;
  });
}

}  // namespace brume::app
