#include "generation_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/numbers.hpp"
#include "base/text.hpp"
#include "engine/generator.hpp"
#include "plan/shapes.hpp"

namespace brume::app {
namespace {

using generation::Forecast;
using generation::PassTimes;

constexpr int most_sequences = 1024;
/// Requests of a copy that are simulated, and their tokens; the time of more is in proportion.
constexpr int most_simulated = 2048, most_simulated_tokens = 1 << 22;

/// A pass of so many tokens of sequences that have as many tokens each, from a place on.
engine::GeneratorPass pass_of(int tokens, int of_each, int place) {
  engine::GeneratorPass pass{.wanted = int(ceil_div(tokens, of_each))};
  for (int n = 0; n < tokens; ++n) pass.tokens.push_back({0, n / of_each, place + n % of_each});
  return pass;
}

}  // namespace

GenerationLengths::GenerationLengths(const deck::Deck& deck)
    : prompt(deck.generation.prompt_tokens), answer(deck.generation.answer_tokens) {
  const int quarter = std::max(1, deck.model.seq_len / 4);
  if (prompt == 0) prompt = quarter;
  if (answer == 0) answer = quarter;
  require(longest() <= deck.model.seq_len, Failure::input,
          "generation: the longest prompt and answer have {} tokens, model.seq_len is {}: lower "
          "generation.prompt_tokens or answer_tokens, or raise model.seq_len",
          longest(), deck.model.seq_len);
}

GenerationSearch::GenerationSearch(const Given& given)
    : given_(given),
      nodes_(given.cluster.groups[0]),
      keys_(given.deck.generation),
      lengths_(given.deck) {
  require(given.cluster.num_groups() == 1, Failure::input,
          "plan --for generation plans for nodes of one kind: give [cluster] one group");
}

std::vector<GenerationCandidate> GenerationSearch::run() {
  // More ranks per copy are of use until they cost half of the speed, or for limits of time.
  const bool limited = keys_.first_token_s > 0.0 || keys_.token_s > 0.0;
  const auto fastest = [](std::span<const GenerationCandidate> some) {
    double best = 0.0;
    for (const GenerationCandidate& one : some) best = std::max(best, one.tokens_per_s());
    return best;
  };
  for (const int ranks : divisors(nodes_.devices())) {
    const std::size_t before = found_.size();
    consider_copies_of(ranks);
    const double own = fastest(std::span(found_).subspan(before));
    if (!limited && own > 0.0 && own < 0.5 * fastest(found_)) break;
  }
  require(!found_.empty(), Failure::infeasible,
          "no number of ranks holds the model ({}): more memory, more devices or a smaller "
          "precision are needed",
          short_bytes_ > 0.0
              ? fmt::format("a copy on {} lacks {} on each", counted(short_ranks_, "rank"),
                            format_bytes(short_bytes_))
              : refused_);
  keep_limits();
  std::ranges::stable_sort(found_, std::greater<>{}, &GenerationCandidate::tokens_per_s);
  return std::move(found_);
}

/// Leaves out candidates beyond the deck's limits.
void GenerationSearch::keep_limits() {
  const auto first_s = [](const GenerationCandidate& one) { return one.forecast.first_token_s; };
  const auto next_s = [](const GenerationCandidate& one) { return one.forecast.token_s; };
  const double least_first_s = first_s(std::ranges::min(found_, {}, first_s)),
               least_next_s = next_s(std::ranges::min(found_, {}, next_s));
  const auto beyond = [](double limit_s, double seconds) {
    return limit_s > 0.0 && seconds > limit_s;
  };
  std::erase_if(found_, [&](const GenerationCandidate& one) {
    return beyond(keys_.first_token_s, first_s(one)) || beyond(keys_.token_s, next_s(one));
  });
  require(!found_.empty(), Failure::infeasible,
          "no plan keeps the limits of [generation]: the shortest times are {} to the first "
          "token and {} from token to token",
          format_seconds(least_first_s), format_seconds(least_next_s));
}

/// All shapes and batches of copies of so many ranks, and pairs of them.
void GenerationSearch::consider_copies_of(int ranks) {
  std::vector<Shape> shapes;
  for (const int tp : copy_widths(nodes_, given_.deck.search)) {
    const int stages = ranks / tp;
    if (ranks % tp == 0 && given_.model.num_layers % stages == 0 &&
        plan::allows(given_.deck.search.stages, stages))
      shapes.push_back({stages, tp});
  }
  const auto of_copy = int(ceil_div(keys_.prompts, nodes_.devices() / ranks));
  for (int batch = 1; !shapes.empty() && !out_of_time(); batch *= 2) {
    copies_.clear();
    consider_batch(shapes, std::min(batch, of_copy));
    if (batch >= std::min(of_copy, most_sequences)) return;
  }
}

/// Shapes that fit stay if a larger batch may be of use: not those that are slower than another one
/// in passes of prompts and of next tokens, unless a pair may need them. A pair has the best plan
/// of each phase; phases of prompts take as long as their slowest stage.
void GenerationSearch::consider_batch(std::vector<Shape>& shapes, int batch) {
  std::map<Shape, GenerationCandidate> fit;
  std::map<Shape, Speed> speeds;
  std::erase_if(shapes, [&](const Shape& shape) {
    std::optional<GenerationCandidate> one = fitting(shape, nullptr, batch);
    if (!one) return true;
    speeds.emplace(shape, speed_of(copy_of(shape, one->plan.model), batch));
    fit.emplace(shape, std::move(*one));
    return false;
  });
  if (speeds.empty()) return;
  const auto by = [](double Speed::*time) {
    return [time](const auto& one) { return one.second.*time; };
  };
  const Shape prompts = std::ranges::min_element(speeds, {}, by(&Speed::stage_s))->first,
              answers = std::ranges::min_element(speeds, {}, by(&Speed::token_s))->first;
  std::erase_if(shapes, [&](const Shape& shape) {
    const Speed& own = speeds.at(shape);
    const bool slower = std::ranges::any_of(speeds, [&](const auto& other) {
      return other.second.prompt_s < own.prompt_s && other.second.token_s < own.token_s;
    });
    if (slower) return shape != prompts;
    return predict(std::move(fit.at(shape)), shape, nullptr).preemptions > 0;
  });
  if (prompts == answers) return;
  std::optional<GenerationCandidate> pair = fitting(answers, &prompts, batch);
  if (pair) predict(std::move(*pair), answers, &prompts);
}

GenerationSearch::Speed GenerationSearch::speed_of(const Copy& copy, int batch) const {
  const std::vector<double> stages =
      copy.times.stages(pass_of(copy.longest_pass, lengths_.prompt, 0));
  return {.prompt_s = std::accumulate(stages.begin(), stages.end(), 0.0),
          .stage_s = std::ranges::max(stages),
          .token_s = copy.times.seconds(pass_of(batch, 1, lengths_.prompt + lengths_.answer / 2))};
}

/// @param prompts  of a plan of their own; null: none
/// @return none if it does not fit
std::optional<GenerationCandidate> GenerationSearch::fitting(const Shape& answers,
                                                             const Shape* prompts, int batch) {
  const int ranks = answers.stages * answers.tp, copies = nodes_.devices() / ranks;
  plan::PhasePlans plans{.answers = plan_of(answers, copies)};
  if (prompts) plans.prompts = plan_of(*prompts, copies);
  GenerationNeeds needs{.tokens = lengths_.longest(),
                        .batch = batch,
                        .memory_bytes = generation_share_of_memory * double(nodes_.memory_bytes)};
  needs.on_device = nodes_.on_device;
  needs.given = &plans;
  GenerationCandidate one;
  one.batch = batch;
  try {
    one.plan = choose_generation_plan(given_.model, needs, nodes_.nodes, nodes_.devices());
  } catch (const Error& error) {
    if (error.failure() != Failure::input) throw;
    refused_ = error.what();
    return std::nullopt;
  }
  if (one.plan.needed_bytes == 0.0) return one;
  if (!prompts && (short_bytes_ == 0.0 || one.plan.needed_bytes < short_bytes_))
    short_bytes_ = one.plan.needed_bytes, short_ranks_ = ranks;
  return std::nullopt;
}

/// Adds a candidate with its prediction.
const Forecast& GenerationSearch::predict(GenerationCandidate one, const Shape& answers,
                                          const Shape* prompts) {
  const auto of_copy = int(ceil_div(keys_.prompts, one.plan.copies()));
  const int tokens = lengths_.prompt + lengths_.answer;
  const int simulated =
      std::min({of_copy, most_simulated, std::max(2 * one.batch, most_simulated_tokens / tokens)});
  const auto requests = generation::requests(simulated, lengths_.prompt, lengths_.answer);
  const Copy& by = copy_of(answers, one.plan.model);
  std::optional<generation::PromptTimes> prompt_times;
  if (prompts) {
    const Copy& first = copy_of(*prompts, one.plan.model);
    prompt_times.emplace(first.times, one.plan.prompt_model().generation.blocks, first.plan,
                         by.plan, one.plan.model, given_.machine);
  }
  one.forecast = generation::forecast(requests, by.times, one.plan.model,
                                      prompt_times ? &*prompt_times : nullptr);
  one.tokens = double(one.forecast.tokens) / simulated * keys_.prompts;
  one.forecast.scale(double(of_copy) / simulated);
  const auto bytes = [](const plan::Plan& plan, const model::Config& model) {
    return double(engine::generator_bytes(plan, model, 0)[std::size_t(schedule::Tier::device)]);
  };
  one.arena_bytes = bytes(one.plan.plan, one.plan.model);
  if (prompts) one.arena_bytes += bytes(*one.plan.prompts, one.plan.prompt_model());
  return found_.emplace_back(std::move(one)).forecast;
}

/// Copies side by side, each stage on a part of a node or on whole ones.
plan::Plan GenerationSearch::plan_of(const Shape& shape, int copies) const {
  const int devices = copies * shape.tp;
  return plan::equal_stages(given_.model, copies, shape.stages,
                            {.nodes = std::max(1, devices / nodes_.devices_per_node),
                             .microbatch = 1,
                             .dp = copies,
                             .tp = shape.tp,
                             .ep = given_.model.adapter.is_of_experts() ? shape.tp : 1});
}

const GenerationSearch::Copy& GenerationSearch::copy_of(const Shape& shape,
                                                        const model::Config& model) {
  std::unique_ptr<Copy>& known = copies_[shape];
  if (!known || known->longest_pass < model.generation.tokens) {
    const plan::Plan plan = engine::generating(plan_of(shape, 1));
    known.reset(new Copy{plan, model.generation.tokens, {plan, model, given_.machine}});
  }
  return *known;
}

/// Whether the deck's limit ends the search. One candidate is looked at in any case.
bool GenerationSearch::out_of_time() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  return !found_.empty() && passed.count() > given_.deck.search.time_limit_s;
}

}  // namespace brume::app
