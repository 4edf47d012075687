#include "engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "batches.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "executor.hpp"
#include "job.hpp"
#include "schedule/compile.hpp"
#include "schedule/place.hpp"
#include "state.hpp"

namespace brume::engine {

using schedule::Buffer;
using schedule::Channel;
using schedule::Program;
using schedule::Span;

LrSchedule lr_schedule(std::string_view name) {
  if (name == "cosine") return LrSchedule::cosine;
  if (name == "linear") return LrSchedule::linear;
  if (name == "constant") return LrSchedule::constant;
  require(name == "wsd", Failure::input, "'{}' is no schedule of the learning rate", name);
  return LrSchedule::wsd;
}

MatrixScale matrix_scale(std::string_view name) {
  if (name == "moonshot") return MatrixScale::moonshot;
  if (name == "spectral") return MatrixScale::spectral;
  if (name == "jordan") return MatrixScale::jordan;
  require(name == "rms", Failure::input, "'{}' is no scale of steps of matrices", name);
  return MatrixScale::rms;
}

double step_scale(MatrixScale scale, std::int64_t rows, std::int64_t columns) {
  const double ratio = double(rows) / double(columns);
  switch (scale) {
    case MatrixScale::moonshot: return 0.2 * std::sqrt(double(std::max(rows, columns)));
    case MatrixScale::spectral: return std::sqrt(double(std::max(rows, columns)));
    case MatrixScale::jordan: return std::sqrt(std::max(1.0, ratio));
    case MatrixScale::rms: break;
  }
  return std::sqrt(ratio);
}

double learning_rate(const Optimizer& optimizer, std::int64_t step, std::int64_t steps) {
  if (step < optimizer.warmup_steps)
    return optimizer.lr * double(step + 1) / optimizer.warmup_steps;
  std::int64_t first = optimizer.warmup_steps;  // of the decay
  if (optimizer.schedule == LrSchedule::wsd)
    first = steps - 1 - (optimizer.decay_steps > 0 ? optimizer.decay_steps : (steps + 9) / 10);
  const std::int64_t decay_steps = std::max<std::int64_t>(1, steps - 1 - first);
  const double progress = std::clamp(double(step - first) / double(decay_steps), 0.0, 1.0);
  const auto left = [&] {
    switch (optimizer.schedule) {
      case LrSchedule::cosine: return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      case LrSchedule::constant: return 1.0;
      case LrSchedule::linear:
      case LrSchedule::wsd: break;
    }
    return 1.0 - progress;
  };
  return optimizer.lr * (optimizer.min_lr_ratio + (1.0 - optimizer.min_lr_ratio) * left());
}

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

const Buffer* named(const Program& program, std::string_view name) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent && buffer.name == name) return &buffer;
  return nullptr;
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

struct Engine::Impl {
  Impl(const plan::Plan& plan, const model::Config& model, const Settings& settings,
       comm::Communicator& world)
      : plan(plan),
        model(model),
        settings(settings),
        place(plan::place(plan, world.rank())),
        train(schedule::compile(plan, model, world.rank(), options(settings))),
        evaluation(schedule::compile(plan, model, world.rank(),
                                     options(settings, schedule::Mode::evaluate))),
        arena(reserve(
            schedule::largest(with_lent(train, settings.lent_bytes), evaluation.arena_bytes),
            settings, world)),
        exact(reserve_exact(world)),
        compute(make_compute(this->plan, this->model, world.rank(), settings.optimizer, arena)),
        groups(this->plan, train, world),
        world(world),
        batches(this->plan, this->model, world.rank()),
        executor(arena, *compute, groups, settings, model.precision,
                 [this, &world](const std::exception_ptr& failure) {
                   leave(world, fmt::format("step {}", done + 1), failure);
                 }) {
    if (device::on_device())
      for (const Program* program : {&train, &evaluation}) executor.connect(*program);
    if (settings.check_memory) {
      guards.emplace(train, arena);
      evaluation_guards.emplace(evaluation, arena);
    }
    std::vector<Slab> state = slabs();
    initialise(state, model, settings.seed, settings.threads);
    find_balanced(state);
  }

  static schedule::Options options(const Settings& settings,
                                   schedule::Mode mode = schedule::Mode::train) {
    return {.mode = mode,
            .overlap = settings.overlap,
            .one_collective = settings.one_collective || comm::one_collective_at_a_time()};
  }

  /// Takes disk for weights that are kept as they came, on all ranks or on none.
  device::ScratchFile reserve_exact(comm::Communicator& world) const {
    std::vector<Slab> state = engine::slabs(train, plan, model, &arena);
    const std::int64_t bytes = keep_exactly(state, settings.exact, nullptr);
    std::optional<device::ScratchFile> file;
    comm::together(world, [&] { file.emplace(settings.scratch, bytes); });
    return std::move(*file);
  }

  std::vector<Slab> slabs() {
    std::vector<Slab> all = engine::slabs(train, plan, model, &arena);
    keep_exactly(all, settings.exact, &exact);
    return all;
  }

  void find_balanced(const std::vector<Slab>& state) {
    std::map<std::string, int> layers;  // by parameter
    for (const model::Block& block : model::blocks(model))
      for (const model::Parameter& one : block.parameters)
        if (one.balanced) layers.emplace(one.name, block.layer - model.first_dense_layers);
    balances = !layers.empty();
    for (const Slab& slab : state)
      if (const auto found = layers.find(slab.name); found != layers.end() && slab.kind == "weight")
        balanced.push_back({slab, found->second});
  }

  /// Moves corrections of the choice of experts by the loads of the last step. All copies of a
  /// correction move alike.
  void balance() {
    std::vector<double> all(loads.copies.begin(), loads.copies.end());
    world.all_reduce(all, comm::Reduction::sum);
    const auto experts = std::size_t(model.num_experts);
    for (const auto& [slab, layer] : balanced) {
      const auto of_layer = std::span(all).subspan(std::size_t(layer) * experts, experts);
      std::vector<float> corrections = values(slab);
      move_corrections(of_layer, slab.first, float(model.balance_rate), corrections);
      set_values(slab, 0, corrections);
    }
  }

  /// Puts a batch where tasks look for it.
  void load(const Batch& batch) {
    const auto copy_to = [&](const char* buffer, const std::vector<std::int32_t>& values) {
      if (const Buffer* const found = named(train, buffer))
        device::copy_now(arena.at(*found), values.data(),
                         std::int64_t(values.size() * sizeof(std::int32_t)));
    };
    copy_to("inputs", batch.inputs);
    copy_to("targets", batch.targets);
    copy_to("documents", batch.begins);
  }

  /// Makes a sum over so many targets a mean; over none there is nothing to sum.
  static float mean_of(std::int64_t targets) {
    return float(1.0 / double(std::max<std::int64_t>(1, targets)));
  }

  /// Constants of the update that step `i` asked for, the last one so far.
  StepScalars scalars(std::int64_t i) const {
    const Optimizer& o = settings.optimizer;
    StepScalars step;
    step.update = {.lr = float(learning_rate(o, i, settings.steps)),
                   .beta1 = o.beta1,
                   .beta2 = o.beta2,
                   .eps = float(o.eps),
                   .weight_decay = 0.0f,
                   .clip_norm = o.clip_norm,
                   .loss_scale = pending_scale,
                   .momentum = o.momentum,
                   .nesterov = o.nesterov};
    step.updates = updates;
    step.missed = missed;
    step.squares = pending_squares;
    return step;
  }

  /// Loss and squared gradient norm of the last run, with S and S^2 in them.
  std::array<double, 2> totals() const {
    std::array<double, 2> totals{};
    device::copy_now(totals.data(), arena.at(*named(train, "totals")), sizeof totals);
    return totals;
  }

  /// @return whether there was one to apply
  bool apply_update(std::vector<Span>& spent) {
    if (!update_pending) return false;
    executor.run(train, Parts::update, scalars(done - 1), guards ? &*guards : nullptr, spent);
    update_pending = false;
    return true;
  }

  /// Evaluates the batch where tasks look for it.
  void run_evaluation(const StepScalars& scalars, std::vector<Span>& spent) {
    executor.run(evaluation, Parts::train, scalars,
                 evaluation_guards ? &*evaluation_guards : nullptr, spent);
  }

  /// Log-probabilities of the answers of the batch where tasks look for it, on all ranks.
  std::vector<double> score(std::vector<Span>& spent) {
    run_evaluation(scalars(0), spent);
    std::vector<double> all(std::size_t(plan.global_batch), 0.0);
    const std::vector<std::int64_t> own = batches.own_sequences();
    // Tensor-parallel ranks have the same losses: one of them gives them.
    if (const Buffer* const losses = named(evaluation, "loss");
        losses && place.at[model::Axis::tp] == 0) {
      std::vector<double> sums(2 * (1 + own.size()));
      device::copy_now(sums.data(), arena.at(*losses), std::int64_t(sums.size() * sizeof(double)));
      for (std::size_t i = 0; i < own.size(); ++i) all[std::size_t(own[i])] = -sums[2 * (1 + i)];
    }
    world.all_reduce(all, comm::Reduction::sum);
    return all;
  }

  /// Result of the pairs of the step's batch; their factors come to `scalars`, S times as large.
  PreferenceResult prefer_batch(const data::Sampler& data, const Batch& batch, double scale,
                                StepScalars& scalars) {
    const std::vector<double> policy = score(times);
    std::vector<SequenceScore> sequences;
    for (std::size_t i = 0; i < policy.size(); ++i) {
      const auto window = std::size_t(data.window(samples + std::int64_t(i)));
      require(window < reference.size(), Failure::bug, "window {} has no reference", window);
      sequences.push_back({policy[i], reference[window], batch.learned_of[i]});
    }
    PreferenceResult result = prefer(settings.preference, sequences);
    for (const std::int64_t sequence : batches.own_sequences())
      scalars.factors.push_back(float(scale * result.factors[std::size_t(sequence)]));
    return result;
  }

  bool scales() const {
    return model.precision == model::Precision::fp16 && settings.loss_scale == 0.0;
  }
  /// S of the next step.
  double loss_scale() const {
    return scales() ? scaling.scale : settings.loss_scale > 0.0 ? settings.loss_scale : 1.0;
  }

  plan::Plan plan;
  model::Config model;
  Settings settings;
  plan::Place place;
  Program train;
  Program evaluation;
  Arena arena;
  device::ScratchFile exact;  ///< see Settings
  std::unique_ptr<Compute> compute;
  Groups groups;
  comm::Communicator& world;
  BatchReader batches;            ///< of training
  std::vector<double> reference;  ///< log-probabilities by the initial weights, by window
  std::optional<GuardCheck> guards, evaluation_guards;
  std::atomic<std::int64_t> done =
      0;                     ///< steps whose gradients were made; channels' threads read it
  std::int64_t samples = 0;  ///< of these steps
  std::int64_t updates = 0;  ///< that they asked for
  std::map<std::string, std::int64_t> missed;  ///< of these, by parameters that were frozen then
  bool update_pending = false;   ///< ... and those of the last one are not applied yet
  double pending_scale = 1.0;    ///< S of that one
  double pending_squares = 0.0;  ///< ... of its gradient, S^2 times too large
  LossScaling scaling;
  std::vector<Span> times;
  ExpertLoads loads;  ///< in the last step
  /// A part of a router's correction, which steps move.
  struct Balanced {
    Slab slab;
    int layer;  ///< of those with experts
  };
  std::vector<Balanced> balanced;  ///< on this rank
  bool balances = false;           ///< whether any rank has one
  Executor executor;               ///< last: its threads use the rest
};

Engine::Engine(const plan::Plan& plan, const model::Config& model, const Settings& settings,
               comm::Communicator& world) {
  require(plan.devices() == world.size(), Failure::input,
          "the plan is for {} ranks, the job has {}", plan.devices(), world.size());
  impl_ = std::make_unique<Impl>(plan, model, settings, world);
}

Engine::~Engine() = default;

double load_factor(std::span<const double> loads, int num_experts) {
  const std::size_t experts = std::size_t(num_experts), layers = loads.size() / experts;
  double sum = 0.0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto of_layer = loads.subspan(layer * experts, experts);
    const double all = std::accumulate(of_layer.begin(), of_layer.end(), 0.0);
    if (all > 0.0) sum += *std::ranges::max_element(of_layer) * double(experts) / all;
  }
  return layers > 0 ? sum / double(layers) : 0.0;
}

double idle_experts(std::span<const double> loads) {
  if (loads.empty()) return 0.0;
  return double(std::ranges::count(loads, 0.0)) / double(loads.size());
}

void move_corrections(std::span<const double> loads, std::int64_t first, float rate,
                      std::span<float> corrections) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  for (std::size_t i = 0; i < corrections.size(); ++i) {
    const double above = loads[std::size_t(first) + i] * double(loads.size()) - sum;
    if (above != 0.0) corrections[i] += above < 0.0 ? rate : -rate;
  }
}

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

double Engine::evaluate(const data::Sampler& data, std::int64_t first, std::int64_t sequences) {
  flush();
  Impl& e = *impl_;
  require(!e.model.pairs, Failure::bug, "pairs have no mean loss");
  const std::int64_t targets = data.num_targets(first, sequences);
  if (targets == 0) return std::nan("");
  StepScalars scalars = e.scalars(0);
  scalars.loss_scale = Impl::mean_of(targets);
  double loss = 0.0;
  std::vector<Span> times;
  BatchReader batches(e.plan, e.model, e.train.rank);
  for (std::int64_t done = 0; done < sequences; done += e.plan.global_batch) {
    e.load(batches.take(data, first + done, sequences - done));
    if (const std::int64_t next = done + e.plan.global_batch; next < sequences)
      batches.read_ahead(data, first + next, sequences - next);
    e.run_evaluation(scalars, times);
    loss += e.totals()[0];
  }
  return loss;
}

OwnLoss Engine::evaluate_own(const data::Sampler& data, std::int64_t first) {
  flush();
  Impl& e = *impl_;
  StepScalars scalars = e.scalars(0);
  scalars.loss_scale = 1.0f;
  e.load(BatchReader(e.plan, e.model, e.train.rank).take(data, first, e.plan.global_batch));
  std::vector<Span> times;
  e.run_evaluation(scalars, times);
  std::array<double, 2> sums{};
  if (const Buffer* const own = named(e.evaluation, "loss"))
    device::copy_now(sums.data(), e.arena.at(*own), sizeof sums);
  return {.loss = sums[0], .misses = std::int64_t(sums[1])};
}

std::vector<double> Engine::log_probabilities(const data::Sampler& data, std::int64_t first,
                                              std::int64_t count) {
  flush();
  Impl& e = *impl_;
  require(e.model.pairs, Failure::bug, "only samples that are pairs have losses of their own");
  std::vector<double> all;
  std::vector<Span> times;
  BatchReader batches(e.plan, e.model, e.train.rank);
  while (std::ssize(all) < count) {
    const std::int64_t done = std::ssize(all);
    e.load(batches.take(data, first + done, count - done));
    if (const std::int64_t next = done + e.plan.global_batch; next < count)
      batches.read_ahead(data, first + next, count - next);
    const std::vector<double> some = e.score(times);
    all.insert(all.end(), some.begin(),
               some.begin() + std::min<std::int64_t>(std::ssize(some), count - done));
  }
  return all;
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
