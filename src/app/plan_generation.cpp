/// @file The verb `plan --for generation`: copies of a model, and sequences at once on each.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/numbers.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "engine/generator.hpp"
#include "generation/forecast.hpp"
#include "generation_plan.hpp"
#include "given.hpp"
#include "plan/shapes.hpp"
#include "planning.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using generation::Forecast;

constexpr int most_sequences = 1024;
/// Requests of a copy that are simulated, and their tokens; the time of more is in proportion.
constexpr int most_simulated = 2048, most_simulated_tokens = 1 << 22;

/// A plan with so many sequences at once on each copy, and its prediction.
struct Candidate {
  GenerationPlan plan;
  int batch = 1;
  Forecast forecast;    ///< of the copy with most prompts, scaled to all of them
  double tokens = 0.0;  ///< of all answers
  double arena_bytes = 0.0;

  double tokens_per_s() const { return tokens / forecast.seconds; }
  double other_bytes() const { return arena_bytes - plan.cache_bytes(); }
  /// Hours of all devices for a million tokens of answers.
  double device_hours() const {
    return plan.plan.devices() * forecast.seconds / 3600.0 / (tokens / 1e6);
  }
};

/// The lengths that a deck plans for.
struct Lengths {
  explicit Lengths(const deck::Deck& deck)
      : prompt(deck.generation.prompt_tokens), answer(deck.generation.answer_tokens) {
    const int quarter = std::max(1, deck.model.seq_len / 4);
    if (prompt == 0) prompt = quarter;
    if (answer == 0) answer = quarter;
    require(longest() <= deck.model.seq_len, Failure::input,
            "generation: the longest prompt and answer have {} tokens, model.seq_len is {}: lower "
            "generation.prompt_tokens or answer_tokens, or raise model.seq_len",
            longest(), deck.model.seq_len);
  }

  /// Tokens of the longest prompt and answer.
  std::int64_t longest() const { return (3 * (std::int64_t{prompt} + answer) + 1) / 2; }
  int longest_answer() const { return (3 * answer + 1) / 2; }

  int prompt, answer;
};

class Search {
 public:
  explicit Search(const Given& given)
      : given_(given), keys_(given.deck.generation), lengths_(given.deck) {
    require(given.cluster.num_groups() == 1, Failure::input,
            "plan --for generation plans for nodes of one kind: give [cluster] one group");
  }

  /// The candidates that fit and keep the deck's limits, the fastest first.
  /// @throws Error(infeasible) if there is none
  std::vector<Candidate> run() {
    const hardware::NodeGroup& nodes = given_.cluster.groups[0];
    for (const int tp : copy_widths(nodes, given_.deck.search))
      for (int batch = 1; batch <= most_sequences && !out_of_time(); batch *= 2)
        if (!consider(tp, batch)) break;
    require(!found_.empty(), Failure::infeasible,
            "no number of ranks holds the model ({}): more memory, more devices or a smaller "
            "precision are needed",
            short_bytes_ > 0.0
                ? fmt::format("tp {} lacks {}", short_tp_, format_bytes(short_bytes_))
                : refused_);
    const auto first_s = [](const Candidate& one) { return one.forecast.first_token_s; };
    const auto next_s = [](const Candidate& one) { return one.forecast.token_s; };
    const double least_first_s = first_s(std::ranges::min(found_, {}, first_s)),
                 least_next_s = next_s(std::ranges::min(found_, {}, next_s));
    const auto beyond = [](double limit_s, double seconds) {
      return limit_s > 0.0 && seconds > limit_s;
    };
    std::erase_if(found_, [&](const Candidate& one) {
      return beyond(keys_.first_token_s, first_s(one)) || beyond(keys_.token_s, next_s(one));
    });
    require(!found_.empty(), Failure::infeasible,
            "no plan keeps the limits of [generation]: the shortest times are {} to the first "
            "token and {} from token to token",
            format_seconds(least_first_s), format_seconds(least_next_s));
    std::ranges::stable_sort(found_, std::greater<>{}, &Candidate::tokens_per_s);
    return std::move(found_);
  }

 private:
  /// @return whether a larger batch may be of use
  bool consider(int tp, int batch) {
    const hardware::NodeGroup& nodes = given_.cluster.groups[0];
    const int copies = nodes.devices() / tp;
    const auto of_copy = int(ceil_div(keys_.prompts, copies));
    GenerationNeeds needs{.tokens = lengths_.longest(),
                          .batch = std::min(batch, of_copy),
                          .memory_bytes = generation_share_of_memory * double(nodes.memory_bytes)};
    needs.tp = tp;
    needs.on_device = nodes.on_device;
    Candidate one;
    try {
      one.plan = choose_generation_plan(given_.model, needs, nodes.nodes, nodes.devices());
    } catch (const Error& error) {
      if (error.failure() != Failure::input) throw;
      refused_ = error.what();
      return false;
    }
    if (one.plan.needed_bytes > 0.0) {
      if (short_bytes_ == 0.0 || one.plan.needed_bytes < short_bytes_)
        short_bytes_ = one.plan.needed_bytes, short_tp_ = tp;
      return false;
    }
    one.batch = needs.batch;
    const int tokens = lengths_.prompt + lengths_.answer;
    const int simulated =
        std::min({of_copy, most_simulated, std::max(2 * batch, most_simulated_tokens / tokens)});
    const auto requests = generation::requests(simulated, lengths_.prompt, lengths_.answer);
    one.forecast = generation::forecast(requests, times(one.plan), one.plan.model);
    const double scale = double(of_copy) / simulated;
    one.tokens = double(one.forecast.tokens) / simulated * keys_.prompts;
    one.forecast.seconds *= scale;
    one.arena_bytes = double(engine::generator_bytes(one.plan.plan, one.plan.model,
                                                     0)[std::size_t(schedule::Tier::device)]);
    const bool preempts = one.forecast.preemptions > 0;
    found_.push_back(std::move(one));
    return batch < of_copy && !preempts;
  }

  /// One copy's passes.
  generation::PassTimes times(const GenerationPlan& plan) const {
    const plan::Stage& like = plan.plan.stages.front();
    const int per_node = std::min(like.tp, given_.cluster.groups[0].devices_per_node);
    return {
        engine::generating(plan::equal_stages(
            plan.model, 1, 1,
            {.nodes = like.tp / per_node, .microbatch = 1, .dp = 1, .tp = like.tp, .ep = like.ep})),
        plan.model, given_.machine};
  }

  /// Whether the deck's limit ends the search. One candidate is looked at in any case.
  bool out_of_time() const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    return !found_.empty() && passed.count() > given_.deck.search.time_limit_s;
  }

  const Given& given_;
  const deck::GenerationKeys& keys_;
  Lengths lengths_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<Candidate> found_;
  std::string refused_;       ///< why the last refused one cannot be
  double short_bytes_ = 0.0;  ///< least that a rank lacks; 0: nothing lacks memory
  int short_tp_ = 0;
};

std::vector<std::string> row(const Candidate& one) {
  const Forecast& f = one.forecast;
  return {fmt::format("{}", one.plan.copies()),
          fmt::format("{}", one.plan.plan.stages.front().tp),
          fmt::format("{}", one.batch),
          fmt::format("{:.1f}", one.tokens_per_s()),
          format_seconds(f.first_token_s),
          format_seconds(f.token_s),
          fmt::format("{:.0f} %", 100.0 * f.prompt_share),
          format_bytes(one.plan.cache_bytes()),
          format_bytes(one.other_bytes()),
          fmt::format("{:.3g}", one.device_hours())};
}

nlohmann::ordered_json described(const Candidate& one) {
  return {{"copies", one.plan.copies()},
          {"tp", one.plan.plan.stages.front().tp},
          {"batch", one.batch},
          {"tokens_per_s", one.tokens_per_s()},
          {"seconds", one.forecast.seconds},
          {"first_token_s", one.forecast.first_token_s},
          {"token_s", one.forecast.token_s},
          {"prompt_share", one.forecast.prompt_share},
          {"key_bytes", one.plan.cache_bytes()},
          {"other_bytes", one.other_bytes()},
          {"device_hours_per_million_tokens", one.device_hours()}};
}

}  // namespace

int plan_generation(const PlanOptions& options) {
  for (const auto& [option, value] : {std::pair("--html", &options.html),
                                      {"--svg", &options.svg},
                                      {"--against", &options.against},
                                      {"--sweep", &options.sweep}})
    require(value->empty(), Failure::input, "{} shows plans for training: leave it out", option);
  require(!options.explain, Failure::input, "--explain shows plans for training: leave it out");
  if (!options.output.empty()) check_writable(options.output);
  const Given given(options);
  refuse_mist(given.deck, "plan --for generation");
  const std::vector<Candidate> found = Search(given).run();
  const Candidate& best = found.front();
  Table table({"copies", "tp", "batch", "tokens/s", "first token", "next token", "prompts", "keys",
               "other", "hours / 1M"});
  for (std::size_t i = 0; i < std::min(found.size(), std::size_t(options.top) + 1); ++i)
    table.add(row(found[i]));
  const std::size_t columns = terminal::columns(STDERR_FILENO);
  log::info(
      "{}",
      wrapped(fmt::format("{}, {} at once on each: {:.1f} tokens/s predicted, all answers in "
                          "{}\n{}",
                          best.plan.text(), counted(best.batch, "sequence"), best.tokens_per_s(),
                          format_seconds(best.forecast.seconds), table.text(columns)),
              columns));
  const std::string text = plan::text(best.plan.plan);
  if (!options.output.empty()) {
    write_file(options.output, text);
    log::info("run: brume generate RUN --prompts FILE --plan {} --batch {} --max-tokens {}",
              options.output, best.batch, Lengths(given.deck).longest_answer());
  }
  if (options.json) {
    nlohmann::ordered_json object = described(best);
    object["others"] = nlohmann::ordered_json::array();
    for (const Candidate& one : found)
      if (&one != &best) object["others"].push_back(described(one));
    print(object.dump(2) + "\n");
  } else if (options.output.empty()) {
    print(text);
  }
  return 0;
}

}  // namespace brume::app
