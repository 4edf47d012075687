#include "generation/forecast.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "generation/scheduler.hpp"
#include "price/price.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"

namespace brume::generation {
namespace {

/// A model whose passes have so many tokens, each of which sees so many.
model::Config of_pass(model::Config model, int tokens, int seen, int sequences) {
  model.generation.tokens = tokens;
  model.generation.sequences = sequences;
  model.seq_len = seen;
  return model;
}

/// Rounds to 16 values an octave, so that equal passes are priced once.
int rounded(double value) {
  if (value <= 32.0) return std::max(1, int(std::lround(value)));
  const double step = std::exp2(std::floor(std::log2(value)) - 4.0);
  return int(std::lround(value / step) * step);
}

}  // namespace

std::vector<Request> requests(int count, int prompt_tokens, int answer_tokens) {
  const auto drawn = [](int mean, double place) {
    return std::max(1, int(std::lround(mean * (0.5 + place))));
  };
  std::vector<Request> all;
  for (int i = 0; i < count; ++i) {
    constexpr double golden = 0.6180339887498949, silver = 0.4142135623730950;
    const double a = golden * (i + 1), b = silver * (i + 1);
    all.push_back(
        {drawn(prompt_tokens, a - std::floor(a)), drawn(answer_tokens, b - std::floor(b))});
  }
  return all;
}

PassTimes::PassTimes(const plan::Plan& plan, const model::Config& model,
                     const hardware::Machine& machine)
    : plan_(plan), model_(model), machine_(machine) {
  const int seen = model.generation.block_tokens;
  for (const int length : engine::pass_lengths(plan, model.generation.tokens)) {
    const int sequences = std::min(length, model.generation.sequences);
    const model::Config one = of_pass(model, length, seen, sequences);
    std::vector<schedule::Program> programs;
    for (int stage = 0; stage < plan.num_stages(); ++stage)
      programs.push_back(schedule::compile(plan, one, plan::first_rank(plan, stage),
                                           {.mode = schedule::Mode::generate, .tight = false}));
    program_s_.emplace(length, schedule::simulate(programs, plan, one, machine).iteration_s -
                                   attention_s(length, seen, double(sequences) * seen));
  }
}

double PassTimes::attention_s(int tokens, double seen, double read) const {
  const int width = rounded(seen), sequences = std::max(1, rounded(read / width));
  const auto [known, fresh] = attention_s_.try_emplace({tokens, width, sequences}, 0.0);
  if (!fresh) return known->second;
  const model::Config one = of_pass(model_, tokens, width, sequences);
  const plan::Stage& stage = plan_.stages.front();
  for (const auto& [layer, count] : model::layer_counts(one))
    known->second += count * price::cached_attention_s(
                                 one, machine_.profile(stage.group),
                                 model::segment_kinds(one, model::BlockKind::layer, layer).front(),
                                 stage.split());
  return known->second;
}

double PassTimes::seconds(const engine::GeneratorPass& pass) const {
  const auto count = std::int64_t(pass.tokens.size());
  double seen = 0.0;
  std::map<std::int32_t, std::int32_t> last;  // place by sequence
  for (const engine::GeneratorPass::Token& token : pass.tokens) {
    seen += token.place + 1.0;
    std::int32_t& place = last[token.sequence];
    place = std::max(place, token.place);
  }
  double read = 0.0;
  for (const auto& [sequence, place] : last) read += place + 1.0;
  const auto program = program_s_.lower_bound(int(count));
  require(count > 0 && program != program_s_.end(), Failure::bug, "a pass of {} tokens", count);
  const hardware::Profile& profile = machine_.profile(plan_.stages.back().group);
  const double logits_bytes = double(pass.wanted) * model_.vocab_size * sizeof(float);
  const double to_host_s =
      price::host_is_apart(profile) ? price::copy_out_s(profile, logits_bytes) : 0.0;
  return program->second + attention_s(int(count), seen / double(count), read) + to_host_s;
}

Forecast forecast(std::span<const Request> requests, const PassTimes& times,
                  const model::Config& model) {
  struct Open {
    double begin_s, first_s = 0.0;
    int made = 0;
  };
  Forecast found;
  Scheduler scheduler(model.generation, model.blocks_per_sequence());
  std::map<std::int64_t, Open> open;
  double first_s = 0.0, between_s = 0.0, prompts_s = 0.0, open_s = 0.0;
  std::int64_t between = 0, handed_out = 0;
  while (handed_out < std::ssize(requests) || scheduler.open() > 0) {
    for (; scheduler.room() > 0 && handed_out < std::ssize(requests); ++handed_out) {
      // No two prompts begin alike.
      const Request& request = requests[std::size_t(handed_out)];
      scheduler.add(handed_out, std::vector<std::int32_t>(std::size_t(request.prompt_tokens),
                                                          std::int32_t(handed_out)));
    }
    const Scheduler::Pass pass = scheduler.next();
    const double pass_s = times.seconds(pass.tokens);
    const bool prompts = pass.tokens.tokens.size() > pass.wanted.size();
    const double before_s = std::exchange(found.seconds, found.seconds + pass_s);
    if (prompts) prompts_s += pass_s;
    found.computed += std::ssize(pass.tokens.tokens);
    for (const engine::GeneratorPass::Token& token : pass.tokens.tokens)
      if (token.place == 0) open.try_emplace(token.token, Open{before_s});
    open_s += pass_s * double(open.size());
    for (const std::int64_t id : pass.wanted) {
      Open& one = open.at(id);
      ++found.tokens;
      if (one.made++ == 0) {
        one.first_s = found.seconds;
        first_s += found.seconds - one.begin_s;
      }
      if (one.made < requests[std::size_t(id)].answer_tokens) {
        scheduler.append(id, std::int32_t(id));
        continue;
      }
      between_s += found.seconds - one.first_s;
      between += one.made - 1;
      scheduler.end(id);
      open.erase(id);
    }
  }
  found.first_token_s = first_s / double(requests.size());
  found.token_s = between > 0 ? between_s / double(between) : 0.0;
  found.prompt_share = prompts_s / found.seconds;
  found.mean_open = open_s / found.seconds;
  found.preemptions = scheduler.preemptions();
  return found;
}

}  // namespace brume::generation
