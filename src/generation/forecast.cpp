#include "generation/forecast.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "engine/key_moves.hpp"
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

/// Layers of a stage by their kind.
std::map<model::LayerKind, int> layer_counts(const model::Config& model, const plan::Stage& stage) {
  std::map<model::LayerKind, int> counts;
  for (int layer = 0; layer < stage.layers; ++layer)
    ++counts[model.layer_kind(stage.first_layer + layer)];
  return counts;
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
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const auto alike = [&](int other) {
      const plan::Stage &own = plan.stages[stage], &first = plan.stages[other];
      return own.tp == first.tp && own.group == first.group &&
             layer_counts(model, own) == layer_counts(model, first);
    };
    int first = 0;
    while (!alike(first)) ++first;
    like_.push_back(first);
  }
  const int seen = model.generation.block_tokens;
  for (const int length : engine::pass_lengths(plan, model.generation.tokens)) {
    const int sequences = std::min(length, model.generation.sequences);
    const model::Config one = of_pass(model, length, seen, sequences);
    std::vector<schedule::Program> programs;
    for (int stage = 0; stage < plan.num_stages(); ++stage)
      programs.push_back(schedule::compile(plan, one, plan::first_rank(plan, stage),
                                           {.mode = schedule::Mode::generate, .tight = false}));
    const schedule::Simulation simulation = schedule::simulate(programs, plan, one, machine);
    std::vector<double>& stages = program_s_[length];
    double begin_s = 0.0;
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      double end_s = begin_s;
      for (const schedule::Span& span : simulation.spans[stage])
        end_s = std::max(end_s, span.end_s);
      stages.push_back(end_s - begin_s -
                       attention_s(like_[stage], length, seen, double(sequences) * seen));
      begin_s = end_s;
    }
  }
}

double PassTimes::attention_s(int number, int tokens, double seen, double read) const {
  const int width = rounded(seen), sequences = std::max(1, rounded(read / width));
  const auto [known, fresh] = attention_s_.try_emplace({number, tokens, width, sequences}, 0.0);
  if (!fresh) return known->second;
  const model::Config one = of_pass(model_, tokens, width, sequences);
  const plan::Stage& stage = plan_.stages[number];
  for (const auto& [layer, count] : layer_counts(one, stage))
    known->second += count * price::cached_attention_s(
                                 one, machine_.profile(stage.group),
                                 model::segment_kinds(one, model::BlockKind::layer, layer).front(),
                                 stage.split());
  return known->second;
}

std::vector<double> PassTimes::stages(const engine::GeneratorPass& pass) const {
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
  std::vector<double> seconds = program->second;
  std::vector<double> attention(seconds.size());
  for (std::size_t stage = 0; stage < seconds.size(); ++stage) {
    const auto like = std::size_t(like_[stage]);
    attention[stage] = like < stage
                           ? attention[like]
                           : attention_s(int(stage), int(count), seen / double(count), read);
    seconds[stage] += attention[stage];
  }
  const hardware::Profile& profile = machine_.profile(plan_.stages.back().group);
  const double logits_bytes = double(pass.wanted) * model_.vocab_size * sizeof(float);
  if (price::host_is_apart(profile)) seconds.back() += price::copy_out_s(profile, logits_bytes);
  return seconds;
}

double PassTimes::seconds(const engine::GeneratorPass& pass) const {
  const std::vector<double> all = stages(pass);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

void Forecast::scale(double factor) {
  for (double* sum : {&seconds, &prompts_s, &changes_s, &changes, &moved_bytes}) *sum *= factor;
}

PromptTimes::PromptTimes(const PassTimes& prompts, int blocks, const plan::Plan& from,
                         const plan::Plan& to, const model::Config& model,
                         const hardware::Machine& machine)
    : prompts_(prompts),
      blocks_(blocks),
      profile_(machine.profile(from.stages.front().group)),
      ranks_(from.devices()),
      block_bytes_(engine::moved_block_bytes(from, to, model)) {}

double PromptTimes::change_s(std::size_t blocks) const {
  const double bytes = block_bytes_ * double(blocks);
  const double copies_s = price::host_is_apart(profile_) ? price::copy_out_s(profile_, bytes) +
                                                               price::copy_in_s(profile_, bytes)
                                                         : 2.0 * price::copy_s(profile_, bytes);
  // In an all-to-all of a buffer a rank sends all of it but its own part.
  return copies_s + price::collective_s(profile_, price::Collective::all_to_all,
                                        price::world_ranks(profile_, ranks_),
                                        bytes * ranks_ / std::max(1, ranks_ - 1));
}

namespace {

/// The walk of a scheduler through its passes.
class Walk {
 public:
  Walk(std::span<const Request> requests, const PassTimes& times, const model::Config& model,
       const PromptTimes* prompts)
      : requests_(requests),
        times_(times),
        prompts_(prompts),
        scheduler_(model.generation, model.blocks_per_sequence(), prompts ? prompts->blocks() : 0),
        free_s_(prompts ? std::size_t(prompts->passes().num_stages()) : 0) {}

  Forecast run() {
    while (handed_out_ < std::ssize(requests_) || scheduler_.open() > 0) {
      for (; scheduler_.room() > 0 && handed_out_ < std::ssize(requests_); ++handed_out_) {
        // No two prompts begin alike.
        const Request& request = requests_[handed_out_];
        scheduler_.add(handed_out_, std::vector<std::int32_t>(std::size_t(request.prompt_tokens),
                                                              std::int32_t(handed_out_)));
      }
      if (scheduler_.wants_prompts()) scheduler_.begin_prompts();
      const Scheduler::Pass pass = scheduler_.next();
      if (pass.prompts)
        add_prompts(pass);
      else
        add(pass);
    }
    found_.first_token_s = first_s_ / double(requests_.size());
    found_.token_s = between_ > 0 ? between_s_ / double(between_) : 0.0;
    found_.prompt_share = (in_prompts_s_ + found_.prompts_s) / found_.seconds;
    found_.mean_open = open_s_ / found_.seconds;
    found_.preemptions = scheduler_.preemptions();
    return found_;
  }

 private:
  struct Open {
    double begin_s, first_s = 0.0;
    int made = 0;
  };

  void add(const Scheduler::Pass& pass) {
    const double pass_s = times_.seconds(pass.tokens);
    begin(pass);
    if (pass.tokens.tokens.size() > pass.wanted.size()) in_prompts_s_ += pass_s;
    advance(pass_s);
    go_on(pass.wanted);
  }

  /// A pass of a phase of prompts, or the end of the phase.
  void add_prompts(const Scheduler::Pass& pass) {
    if (!pass.tokens.tokens.empty()) {
      begin(pass);
      wanted_.insert(wanted_.end(), pass.wanted.begin(), pass.wanted.end());
      const std::vector<double> seconds = prompts_->passes().stages(pass.tokens);
      double ready_s = 0.0;  // since the phase began
      for (std::size_t stage = 0; stage < seconds.size(); ++stage) {
        ready_s = std::max(ready_s, free_s_[stage]);
        if (stage > 0) free_s_[stage - 1] = ready_s;
        ready_s += seconds[stage];
      }
      free_s_.back() = ready_s;
      return;
    }
    const double change_s = prompts_->change_s(pass.filled.size());
    ++found_.changes;
    found_.prompts_s += free_s_.back();
    found_.changes_s += change_s;
    found_.moved_bytes += prompts_->block_bytes() * double(pass.filled.size());
    advance(free_s_.back() + change_s);
    std::ranges::fill(free_s_, 0.0);
    go_on(std::exchange(wanted_, {}));
  }

  /// Notes sequences that begin with a pass.
  void begin(const Scheduler::Pass& pass) {
    found_.computed += std::ssize(pass.tokens.tokens);
    const double phase_s = free_s_.empty() ? 0.0 : free_s_.front();
    for (const engine::GeneratorPass::Token& token : pass.tokens.tokens)
      if (token.place == 0) open_.try_emplace(token.token, Open{found_.seconds + phase_s});
  }

  void advance(double seconds) {
    found_.seconds += seconds;
    open_s_ += seconds * double(open_.size());
  }

  /// Gives sequences a token each.
  void go_on(const std::vector<std::int64_t>& wanted) {
    for (const std::int64_t id : wanted) {
      Open& one = open_.at(id);
      ++found_.tokens;
      if (one.made++ == 0) {
        one.first_s = found_.seconds;
        first_s_ += found_.seconds - one.begin_s;
      }
      if (one.made < requests_[id].answer_tokens) {
        scheduler_.append(id, std::int32_t(id));
        continue;
      }
      between_s_ += found_.seconds - one.first_s;
      between_ += one.made - 1;
      scheduler_.end(id);
      open_.erase(id);
    }
  }

  std::span<const Request> requests_;
  const PassTimes& times_;
  const PromptTimes* prompts_;
  Scheduler scheduler_;
  Forecast found_;
  std::map<std::int64_t, Open> open_;
  std::vector<std::int64_t> wanted_;  ///< of this phase of prompts
  std::vector<double> free_s_;        ///< when each stage is free, since the phase began
  double first_s_ = 0.0, between_s_ = 0.0, in_prompts_s_ = 0.0, open_s_ = 0.0;
  std::int64_t between_ = 0, handed_out_ = 0;
};

}  // namespace

Forecast forecast(std::span<const Request> requests, const PassTimes& times,
                  const model::Config& model, const PromptTimes* prompts) {
  return Walk(requests, times, model, prompts).run();
}

}  // namespace brume::generation
