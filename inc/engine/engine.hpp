/// @file Executes the Programs of a plan: one rank's memory, channels and training steps.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/quantization.hpp"
#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "device/scratch_file.hpp"
#include "engine/loss_scaling.hpp"
#include "engine/preference.hpp"
#include "kernels/optimizers.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

/// How the learning rate goes from the end of the warm-up to the last step.
enum class LrSchedule { cosine, linear, constant, wsd };
/// @throws Error(input) for a name that none of them has
LrSchedule lr_schedule(std::string_view name);

/// The length of a step of a whole matrix over lr, of `rows` outputs and `columns` inputs:
///
///   moonshot  0.2 sqrt(max(rows, columns)): as long as AdamW's steps (Liu et al. 2025)
///   spectral  sqrt(max(rows, columns))
///   jordan    sqrt(max(1, rows / columns)) (Jordan et al. 2024)
///   rms       sqrt(rows / columns) (Bernstein 2025)
enum class MatrixScale { moonshot, spectral, jordan, rms };
/// @throws Error(input) for a name that none of them has
MatrixScale matrix_scale(std::string_view name);
double step_scale(MatrixScale scale, std::int64_t rows, std::int64_t columns);

/// Parameters that are updated in a way of their own.
struct ParameterGroup {
  std::string pattern;    ///< pattern of parameter names, with * ? and [] as in a shell
  double lr_scale = 1.0;  ///< times the learning rate of each step
  /// Weight decay of all matching parameters, norms and biases too.
  std::optional<double> weight_decay = {};
};

/// Constants of updates, and the learning rate's way.
struct Optimizer {
  double lr = 3e-4;
  LrSchedule schedule = LrSchedule::cosine;
  double min_lr_ratio = 0.1;  ///< share of lr at the last step
  int warmup_steps = 0;
  int decay_steps = 0;  ///< wsd (warm-up, stable, decay) only; 0: a tenth of all steps
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< not on norms and biases
  double clip_norm = 1.0;     ///< 0: no clipping
  double momentum = 0.95;     ///< Muon's, of whole matrices
  bool nesterov = true;       ///< ... and steps look ahead
  MatrixScale matrix_scale = MatrixScale::moonshot;
  std::vector<ParameterGroup> groups = {};  ///< a parameter is in the first one that fits
  /// Kernels of the model's optimizer; none: those that kernels::update_kernels has for it.
  std::optional<kernels::UpdateKernels> kernels = {};
};

/// Deviations of one parameter's update from the others.
struct UpdateRule {
  float lr_scale, weight_decay;
};
UpdateRule update_rule(const Optimizer& optimizer, const model::Parameter& parameter);

struct Settings {
  std::int64_t steps = 1;  ///< length of the whole training, for the learning rate
  Optimizer optimizer;
  Preference preference{};  ///< constants of losses of pairs
  double loss_scale = 0.0;  ///< a power of two; 0: LossScaling's in fp16, 1 else
  std::uint64_t seed = 1;
  int threads = 1;      ///< cores this rank computes with
  int first_core = -1;  ///< first core on its node; -1: the system chooses
  std::string scratch;  ///< directory for what lies on disk; empty: $TMPDIR, else /tmp
  /// Frozen parameters, by name, whose weights slabs() keeps in fp32, on disk; below fp32 the
  /// others' weights are rounded.
  std::set<std::string> exact = {};
  std::int64_t beside_bytes = 0;  ///< host memory that the rank will take beside its plan
  /// Memory that Engine::lend() gives, by tier; not of the disk.
  schedule::Arenas lent_bytes = {};
  bool overlap = true;  ///< false: transfers run only while nothing computes
  /// One at a time, of all groups; also where BRUME_TRANSPORT says so.
  bool one_collective = false;
  /// Poison buffers at birth, check the guards behind them after each task.
  bool check_memory = false;
  /// Called by channels' threads after each task; may be empty.
  std::function<void()> on_task_done;
};

/// Memory of a rank that something else uses between two steps.
struct LentMemory {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
};

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

/// The learning rate of step i of N, with w warm-up and d decay steps and r = min_lr_ratio:
///
///   i < w                lr (i + 1) / w
///   cosine               lr (r + (1 - r) (1 + cos(pi p)) / 2),  p = (i - w) / (N - 1 - w)
///   linear               lr (r + (1 - r) (1 - p))
///   constant             lr
///   wsd                  lr, and the last d steps linear with p = (i - (N - 1 - d)) / d
double learning_rate(const Optimizer& optimizer, std::int64_t step, std::int64_t steps);

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

/// Work of the experts of a rank's layers in forwards.
struct ExpertLoads {
  /// [layers with experts, E] copies of tokens that went to each expert of all ranks that divide
  /// them, counted on one of these; zeros for layers of other stages.
  std::vector<std::int64_t> copies = {};
  std::int64_t forwards = 0;  ///< a layer's of a microbatch each
  std::int64_t rounds = 0;    ///< more than forwards if copies exceeded their room

  double mean_rounds() const { return forwards > 0 ? double(rounds) / double(forwards) : 0.0; }
};

/// Mean over layers of the largest load of an expert over the mean load.
///
/// @param loads  [layers with experts, E] copies of tokens that went to each one, of all ranks
double load_factor(std::span<const double> loads, int num_experts);

/// Share of the experts of all layers that no token went to.
///
/// @param loads  as above
double idle_experts(std::span<const double> loads);

/// Moves the corrections of the choice of a layer's experts: that of an expert with less than the
/// mean load goes up by `rate`, with more it goes down.
///
/// @param loads        [E] copies of a step's tokens that went to each expert, of all ranks
/// @param first        the expert of the first correction
/// @source             DeepSeek-V3, section 2.1.2
void move_corrections(std::span<const double> loads, std::int64_t first, float rate,
                      std::span<float> corrections);

/// Blocks of quantized values of which some have come.
struct OpenBlocks;

/// A piece of a parameter or of its optimizer state on this rank. It is the flat range
/// [first, first + elements) of the slice [offset, offset + shape) of the whole tensor. Below fp32
/// a weight is its fp32 master, kept with the moments; of what layers compute with there are slabs
/// with `rounded` in the place of `data`, so that a checkpoint's masters fill both; these are owned
/// only where a parameter has no master, because it is not trained and not in Settings::exact.
/// Either may be memory of a device, and what lies on disk has neither: these functions
/// reach all of them.
struct Slab {
  std::string name;  ///< name of the parameter
  std::string kind;  ///< "weight", or the name of one of model::state_fields
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> shape;
  std::int64_t first = 0;
  std::int64_t elements = 0;
  float* data = nullptr;
  std::byte* rounded = nullptr;
  /// Storage of `rounded` values, on disk, and in a checkpoint's file; fp32 if they are not
  /// rounded.
  model::Precision storage = model::Precision::fp32;
  device::ScratchFile* disk = nullptr;
  std::int64_t disk_byte = 0;  ///< start in the file
  /// Memory holds blocks of its values in this format, which `storage` is in a checkpoint only.
  Quantization quantization = Quantization::none;
  std::shared_ptr<OpenBlocks> open_blocks = {};
  bool owned = false;  ///< this rank writes it to a checkpoint; others hold a copy
  bool dense = true;   ///< not of experts, which data-parallel ranks may divide
};

/// Place of element `index` of a slab's slice in the whole tensor.
std::int64_t global_index(const Slab& slab, std::int64_t index);

/// A slab's values: all [elements], getting and setting those from `first` on; not while a step
/// runs.
std::vector<float> values(const Slab& slab);
void get_values(const Slab& slab, std::int64_t first, std::span<float> values);
void set_values(const Slab& slab, std::int64_t first, std::span<const float> values);

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

/// Slabs of which an engine with this Program makes checkpoints, without memory.
std::vector<Slab> slabs_of(const schedule::Program& program, const plan::Plan& plan,
                           const model::Config& model);

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
