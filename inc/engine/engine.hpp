/// @file Executes the Programs of a plan: one rank's memory, channels and training steps.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "engine/expert_loads.hpp"
#include "engine/loss_scaling.hpp"
#include "engine/preference.hpp"
#include "engine/settings.hpp"
#include "engine/slab.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

/// How far a training has come: with weights and moments all that a run goes on from.
struct Progress {
  std::int64_t steps = 0;    ///< done
  std::int64_t samples = 0;  ///< samples of these steps, in the sampler's order
  LossScaling scaling{};     ///< scaling of the next step; only fp16 uses it
  std::int64_t updates = 0;  ///< updates of the weights: steps that were not skipped
  /// Updates before a parameter's first one, by name, where it was frozen until then.
  std::map<std::string, std::int64_t> missed{};

  bool operator==(const Progress&) const = default;
};

/// Result of a step. Times are this rank's; loss and norm are the same on all ranks.
struct StepMetrics {
  std::int64_t step = 0;   ///< counted from 0
  double loss = 0.0;       ///< mean over the target tokens of the global batch, before the update;
                           ///< of pairs, PreferenceResult's
  double grad_norm = 0.0;  ///< norm before clipping
  double lr = 0.0;
  double loss_scale = 1.0;       ///< S of this step, already taken out of loss and norm
  bool skipped = false;          ///< no update will follow: loss or norm is not finite, or
  bool scaled_down = false;      ///< ... because S was too large: the next one is half of it
  bool nothing_learned = false;  ///< ... no token of the batch is to be learned: both are NaN
  bool left_out = false;         ///< ... the batch was bad before, so this time nothing ran
  double iteration_s = 0.0;      ///< its tasks; in a training from one step's end to the next's
  double data_s = 0.0;           ///< wait for its batch
  double accuracy = -1.0;        ///< PreferenceResult's; -1: no pairs
  double margin = 0.0;           ///< the same
  double load_factor = 0.0;      ///< load_factor() of the experts; 0: not known here
  double idle_experts = 0.0;     ///< idle_experts() of the experts; 0 also if not known here
  double expert_rounds = 0.0;    ///< ExpertLoads::mean_rounds()
  std::array<double, schedule::num_channels> busy_s{};  ///< each channel at work
  /// Part of busy_s that overlaps with compute.
  std::array<double, schedule::num_channels> hidden_s{};
};

/// Parameters of which this rank holds a value that is not finite.
struct NonFinite {
  std::vector<std::string> weights, gradients;
};

/// A sum over target tokens.
struct OwnLoss {
  double loss = 0.0;        ///< [nats]
  std::int64_t misses = 0;  ///< targets that are less likely than another token
};

/// The first bytes of each arena, in which a step leaves values for the next one.
schedule::Arenas kept_bytes(const schedule::Program& train);
/// Arenas that a rank needs for its Program of training, and for so much memory lent between
/// steps.
schedule::Arenas with_lent(const schedule::Program& train, const schedule::Arenas& lent_bytes);

class Engine {
 public:
  /// Makes communicators, takes memory, sets initial weights. Collective over `world`, which must
  /// live as long as the engine and is used for aborting, and in steps on pairs.
  ///
  /// @throws Error(resource) when memory cannot be had
  Engine(const plan::Plan& plan, const model::Config& model, const Settings& settings,
         comm::Communicator& world);
  ~Engine();

  /// One iteration: applies the last one's update, trains on the next global batch. Collective.
  /// A step whose loss or norm is not finite has no update: weights and moments stay as they are.
  /// S of a dynamic LossScaling falls, if it can, when only the norm is not finite.
  /// The next batch is read meanwhile: `data` must outlive the engine.
  ///
  /// If samples are pairs, an evaluation of the same batch gives the log-probability of each
  /// answer. The loss is then linear in these: each token's counts as much as prefer() says of its
  /// sequence.
  StepMetrics step(const data::Sampler& data);

  /// Applies the update that is still to come, so that weights are final. Collective.
  void flush();

  /// Mean loss over `sequences` samples from sample `first` on, NaN where nothing of them is to be
  /// learned; flushes first. Not of pairs. Collective.
  double evaluate(const data::Sampler& data, std::int64_t first, std::int64_t sequences);

  /// Results of this rank's own sequences in a batch of samples from `first` on; one per sequence
  /// if the plan gives it one. Flushes first. Collective.
  OwnLoss evaluate_own(const data::Sampler& data, std::int64_t first);

  /// The sum over target tokens of log-probabilities [nats] of each of `count` samples from sample
  /// `first` on, of pairs only; flushes first. The same on all ranks. Collective.
  std::vector<double> log_probabilities(const data::Sampler& data, std::int64_t first,
                                        std::int64_t count);

  /// Gives log-probabilities by the initial weights to steps on pairs, by Sampler::window.
  void set_reference(std::vector<double> log_probabilities);

  Progress progress() const;
  std::int64_t steps_done() const;  ///< any thread
  /// Goes on from this progress, with weights and moments that the caller put into slabs().
  void resume(const Progress& progress);

  /// The memory that steps and evaluations use, but nothing between them, as many bytes as the
  /// settings ask for, all zero; flushes first. Until the next call of any of them it is the
  /// caller's. Collective.
  LentMemory lend();

  /// Everything a checkpoint must hold; call flush() first. Pointers stay valid with the engine.
  std::vector<Slab> slabs();

  /// Looks through weights and the last step's gradients; not while a step runs.
  NonFinite nonfinite();

  const schedule::Program& program() const;               ///< the Program of training
  const std::vector<schedule::Span>& last_times() const;  ///< times of the last step, by task
  const ExpertLoads& last_loads() const;                  ///< loads of the last step
  std::string in_flight() const;     ///< tasks running now, if any, for the watchdog; any thread
  std::vector<int> awaited() const;  ///< other ranks without which these do not end; any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::engine
