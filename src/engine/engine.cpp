/// @file Steps of an engine.
#include "engine/engine.hpp"

#include <chrono>
#include <cmath>
#include <set>

#include "base/text.hpp"
#include "device/memory.hpp"
#include "engine_impl.hpp"

namespace brume::engine {
namespace {

/// Seconds in which each channel worked, and of these, in which compute worked too.
void add_times(const Program& program, const std::vector<Span>& times, StepMetrics& metrics) {
  std::vector<Span> computing;
  for (std::size_t id = 0; id < times.size(); ++id)
    if (program.tasks[id].channel == Channel::compute && times[id].end_s > 0.0)
      computing.push_back(times[id]);
  for (std::size_t id = 0; id < times.size(); ++id) {
    const auto channel = std::size_t(program.tasks[id].channel);
    const Span& time = times[id];
    metrics.busy_s[channel] += time.end_s - time.start_s;
    if (program.tasks[id].channel == Channel::compute) continue;
    auto at = std::lower_bound(computing.begin(), computing.end(), time.start_s,
                               [](const Span& c, double start_s) { return c.end_s < start_s; });
    for (; at != computing.end() && at->start_s < time.end_s; ++at)
      metrics.hidden_s[channel] +=
          std::max(0.0, std::min(at->end_s, time.end_s) - std::max(at->start_s, time.start_s));
  }
}

}  // namespace

schedule::Arenas kept_bytes(const Program& train) {
  constexpr std::int64_t page_bytes = 4096;  // any kernel's alignment
  schedule::Arenas bytes = schedule::persistent_bytes(train);
  for (std::int64_t& of_tier : bytes) of_tier = round_up(of_tier, page_bytes);
  return bytes;
}

schedule::Arenas with_lent(const Program& train, const schedule::Arenas& lent_bytes) {
  schedule::Arenas bytes = kept_bytes(train);
  for (std::size_t tier = 0; tier < bytes.size(); ++tier)
    bytes[tier] = lent_bytes[tier] > 0 ? bytes[tier] + lent_bytes[tier] : 0;
  return schedule::largest(train.arena_bytes, bytes);
}

Engine::Engine(const plan::Plan& plan, const model::Config& model, const Settings& settings,
               comm::Communicator& world) {
  require(plan.devices() == world.size(), Failure::input,
          "the plan is for {} ranks, the job has {}", plan.devices(), world.size());
  impl_ = std::make_unique<Impl>(plan, model, settings, world);
}

Engine::~Engine() = default;

StepMetrics Engine::step(const data::Sampler& data) {
  Impl& e = *impl_;
  StepMetrics metrics;
  const auto begin = std::chrono::steady_clock::now();
  const Batch batch = e.batches.take(data, e.samples, e.plan.global_batch);
  metrics.data_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  e.load(batch);
  if (e.done + 1 < e.settings.steps)
    e.batches.read_ahead(data, e.samples + e.plan.global_batch, e.plan.global_batch);
  // The update of the last step is part of this one's first forward.
  StepScalars scalars = e.scalars(e.done - 1);
  const double scale = e.loss_scale();
  scalars.loss_scale = Impl::mean_of(batch.learned) * float(scale);
  scalars.sequence_scale = scale / e.plan.global_batch;
  const auto spend = [&](const Program& program) {
    double end_s = 0.0;
    for (const Span& time : e.times) end_s = std::max(end_s, time.end_s);
    metrics.iteration_s += end_s;
    add_times(program, e.times, metrics);
  };
  PreferenceResult preferred;
  if (e.model.pairs) {
    if (e.apply_update(e.times)) spend(e.train);
    preferred = e.prefer_batch(data, batch, scale, scalars);
    spend(e.evaluation);
  }
  const auto parts = e.update_pending ? Parts::both : Parts::train;
  e.compute->take_loads();  // of an evaluation
  e.executor.run(e.train, parts, scalars, e.guards ? &*e.guards : nullptr, e.times);
  spend(e.train);
  e.loads = e.compute->take_loads();
  metrics.expert_rounds = e.loads.mean_rounds();

  metrics.step = e.done;
  const auto [scaled_loss, squared_norm] = e.totals();
  metrics.loss_scale = scale;
  // The sign of a NaN means nothing, and would be shown.
  const auto shown = [](double value) { return std::isnan(value) ? std::abs(value) : value; };
  metrics.loss = shown(e.model.pairs ? preferred.loss : scaled_loss / scale);
  if (e.model.pairs) metrics.accuracy = preferred.accuracy, metrics.margin = preferred.margin;
  metrics.grad_norm = shown(std::sqrt(squared_norm) / scale);
  metrics.nothing_learned = batch.learned == 0;
  if (metrics.nothing_learned) metrics.loss = metrics.grad_norm = std::nan("");
  // All ranks hold the same sums, so all decide alike.
  metrics.skipped = !std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm);
  metrics.lr = learning_rate(e.settings.optimizer, e.done, e.settings.steps);
  // A loss that is not finite was so before it was scaled.
  if (e.scales() && std::isfinite(metrics.loss)) {
    e.scaling = after_step(e.scaling, !metrics.skipped);
    metrics.scaled_down = e.scaling.scale < scale;
  }
  if (e.balances && !metrics.skipped) e.balance();
  ++e.done;
  e.samples += e.plan.global_batch;
  e.update_pending = !metrics.skipped;
  e.updates += e.update_pending;
  e.pending_scale = scale;
  e.pending_squares = squared_norm;
  return metrics;
}

void Engine::flush() {
  std::vector<Span> times;
  impl_->apply_update(times);
}

LentMemory Engine::lend() {
  flush();
  const Impl& e = *impl_;
  const LentMemory lent = e.arena.behind(kept_bytes(e.train));
  const auto clear = [&](std::byte* memory, schedule::Tier tier) {
    const std::int64_t bytes = e.settings.lent_bytes[std::size_t(tier)];
    if (bytes > 0) device::fill(memory, std::byte{0}, bytes);
  };
  clear(lent.device, schedule::Tier::device);
  clear(lent.host, schedule::Tier::host);
  device::finish();
  return lent;
}

void Engine::set_reference(std::vector<double> log_probabilities) {
  impl_->reference = std::move(log_probabilities);
}

Progress Engine::progress() const {
  const Impl& e = *impl_;
  return {e.done, e.samples, e.scaling, e.updates, e.missed};
}

std::int64_t Engine::steps_done() const { return impl_->done; }

void Engine::resume(const Progress& progress) {
  impl_->done = progress.steps;
  impl_->samples = progress.samples;
  impl_->scaling = progress.scaling;
  impl_->updates = progress.updates;
  impl_->missed = progress.missed;
  impl_->update_pending = false;
}

std::vector<Slab> Engine::slabs() { return impl_->slabs(); }

NonFinite Engine::nonfinite() {
  const Impl& e = *impl_;
  return {nonfinite_parameters(slabs()),
          nonfinite_parameters(gradients(e.train, e.plan, e.model, e.arena))};
}

const Program& Engine::program() const { return impl_->train; }
const std::vector<Span>& Engine::last_times() const { return impl_->times; }
const ExpertLoads& Engine::last_loads() const { return impl_->loads; }

std::string Engine::in_flight() const {
  std::string text;
  for (const schedule::Task& task : impl_->executor.in_flight())
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", schedule::name(task.channel),
                        schedule::label(task));
  if (text.empty() && impl_->batches.waits()) text = "reading its batch";
  return text;
}

std::vector<int> Engine::awaited() const {
  std::set<int> ranks;
  for (const schedule::Task& task : impl_->executor.in_flight())
    for (const int rank : partners(impl_->plan, impl_->train.rank, task)) ranks.insert(rank);
  return {ranks.begin(), ranks.end()};
}

}  // namespace brume::engine
