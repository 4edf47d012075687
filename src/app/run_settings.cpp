#include "run_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "model/model.hpp"
#include "outlook.hpp"

namespace brume::app {
namespace {

/// "2 nodes (n01, n02)", in the order of the ranks, of many the first and the last.
std::string nodes_of(const std::vector<std::string>& host_of_rank) {
  std::vector<std::string> hosts;
  for (const std::string& host : host_of_rank)
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  constexpr std::size_t most = 4;
  const std::string names = hosts.size() <= most
                                ? fmt::format("{}", fmt::join(hosts, ", "))
                                : fmt::format("{} to {}", hosts.front(), hosts.back());
  return fmt::format("{} ({})", counted(std::int64_t(hosts.size()), "node"), names);
}

}  // namespace

TimeLimit time_limit(double max_minutes, std::chrono::steady_clock::time_point start) {
  TimeLimit limit;
  if (max_minutes > 0.0) limit.s = 60.0 * max_minutes;
  const char* const end = std::getenv("SLURM_JOB_END_TIME");  // seconds since 1970
  const double end_s = end != nullptr ? std::strtod(end, nullptr) : 0.0;
  if (!(end_s > 0.0)) return limit;
  const double spent_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double now_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double slurms_s = spent_s + end_s - now_s;
  if (slurms_s <= 0.0) {
    if (log::leads())
      log::warn("SLURM_JOB_END_TIME = {} is before the job's start: it sets no limit", end);
  } else if (slurms_s < limit.s) {
    limit = {slurms_s, true};
  }
  return limit;
}

void require_groups_fit(const deck::Deck& deck, const model::Config& model) {
  std::vector<std::string> names;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters) names.push_back(parameter.name);
  for (const deck::ParameterGroupKeys& group : deck.training.optimizer.groups) {
    const auto fits = [&](const std::string& name) { return model::fits(group.pattern, name); };
    require(std::ranges::any_of(names, fits), Failure::input,
            "training.optimizer.groups: the pattern '{}' fits no parameter of the model, whose "
            "names go from {} to {}",
            group.pattern, names.front(), names.back());
  }
}

engine::Settings engine_settings(const deck::Deck& deck, std::int64_t steps, int threads,
                                 int first_core) {
  const deck::OptimizerKeys& o = deck.training.optimizer;
  engine::Settings s;
  s.steps = steps;
  s.optimizer = {.lr = o.lr,
                 .schedule = engine::lr_schedule(o.schedule),
                 .min_lr_ratio = o.min_lr_ratio,
                 .warmup_steps = o.warmup_steps,
                 .decay_steps = o.decay_steps,
                 .beta1 = o.beta1,
                 .beta2 = o.beta2,
                 .eps = o.eps,
                 .weight_decay = o.weight_decay,
                 .clip_norm = o.clip_norm,
                 .momentum = o.momentum,
                 .nesterov = o.nesterov,
                 .matrix_scale = engine::matrix_scale(o.matrix_scale)};
  for (const deck::ParameterGroupKeys& keys : o.groups) {
    engine::ParameterGroup& group = s.optimizer.groups.emplace_back();
    group = {.pattern = keys.pattern, .lr_scale = keys.lr_scale};
    if (keys.weight_decay >= 0.0) group.weight_decay = keys.weight_decay;
  }
  const deck::PreferenceKeys& preference = deck.training.preference;
  s.preference = {.beta = preference.beta,
                  .loss = engine::preference_loss(preference.loss),
                  .label_smoothing = preference.label_smoothing};
  s.loss_scale = deck.training.loss_scale;
  s.seed = std::uint64_t(deck.training.seed);
  s.threads = threads;
  s.first_core = first_core;
  return s;
}

std::string head(const RunOptions& options, const deck::Deck& deck,
                 const std::vector<std::string>& hosts, int threads, const std::string& transport) {
  return fmt::format("brume {}: {} on {} of {}, {} each, by {}, seed {}", BRUME_VERSION,
                     options.deck, counted(std::int64_t(hosts.size()), "rank"), nodes_of(hosts),
                     counted(threads, "thread"), transport, deck.training.seed);
}

io::Yardstick yardstick(const Prepared& run) {
  return {.devices = run.plan.devices(),
          .flops_per_token = model::flops_per_sequence(run.model) / double(run.model.seq_len),
          .peak_flops_per_s = peak_flops_per_s(run.plan, run.model, *run.machine)};
}

Expectation expectation(const Prepared& run, double iteration_s, const io::RankTimeline& rank_0,
                        int ranks_per_node) {
  const deck::GroupKeys group = run.deck.cluster.all_groups()[0];
  const std::string& named = group.profile.empty() ? group.machine : group.profile;
  Expectation expected{
      .iteration_s = iteration_s,
      .busy_s = {},
      .ranks_per_node = ranks_per_node,
      .cores = int(std::thread::hardware_concurrency()),
      .profile = named.empty() ? "measured by " + run.machine->profile(0).origin : named};
  for (int c = 0; c < schedule::num_channels; ++c)
    expected.busy_s[c] = io::busy_s(rank_0, schedule::Channel(c));
  return expected;
}

}  // namespace brume::app
