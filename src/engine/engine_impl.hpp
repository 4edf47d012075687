/// @file State of an engine, and the runs of its Programs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "batches.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "engine/engine.hpp"
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

inline const Buffer* named(const Program& program, std::string_view name) {
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent && buffer.name == name) return &buffer;
  return nullptr;
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
        batches(this->plan, this->model, world.rank(), BatchReader::Deal::by_attention),
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
      scalars.factors.push_back(float(scale * result.factors[sequence]));
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

}  // namespace brume::engine
