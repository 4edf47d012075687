/// @file The verb `run`: deck -> profile -> plan -> engine -> results, on one page.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "all_ranks.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/session.hpp"
#include "comm/watchdog.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "io/checkpoint.hpp"
#include "io/run_file.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"
#include "planning.hpp"
#include "profiles.hpp"
#include "recovery.hpp"
#include "schedule/compile.hpp"
#include "screen.hpp"
#include "signals.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

engine::Settings settings(const deck::Deck& deck, int threads, int first_core) {
  const deck::OptimizerKeys& o = deck.training.optimizer;
  engine::Settings s;
  s.steps = deck.training.steps;
  s.optimizer = {.lr = o.lr,
                 .min_lr_ratio = o.min_lr_ratio,
                 .warmup_steps = o.warmup_steps,
                 .beta1 = o.beta1,
                 .beta2 = o.beta2,
                 .eps = o.eps,
                 .weight_decay = o.weight_decay,
                 .clip_norm = o.clip_norm};
  s.loss_scale = deck.training.loss_scale;
  s.seed = std::uint64_t(deck.training.seed);
  s.threads = threads;
  s.first_core = first_core;
  return s;
}

/// One training job on one rank. Its steps in order are `run`.
class Job {
 public:
  Job(const RunOptions& options, comm::Session& session, comm::Communicator& world)
      : options_(options), session_(session), world_(&world), leader_(world.rank() == 0) {}

  int run() {
    read_deck();
    find_resume();
    choose_plan();
    check_plan();
    if (!join_crew()) return 0;
    predict();
    if (options_.dry_run) return 0;
    start_engine();
    const int code = train();
    finish(code);
    return code;
  }

 private:
  // --- before the first step ---

  void read_deck() {
    deck_ = load_deck(*world_, session_.ranks_per_node(), options_.deck, options_.sets);
    model_ = model::config(deck_.model, deck_.training.precision);
    kernels::allow_tf32(deck_.training.tf32);
    cluster_ = hardware::cluster(deck_.cluster);
    last_step_ = options_.steps.value_or(deck_.training.steps);
    if (leader_ && session_.num_nodes() != cluster_.nodes())
      log::warn("cluster.nodes = {}, but the job runs on {}: limits and times are the deck's",
                cluster_.nodes(), session_.num_nodes());
    comm::together(*world_, [&] {
      refuse_mist(deck_, "run");
      warn_of_precision();
      require(world_->size() == cluster_.devices(), Failure::input,
              "the deck's cluster has {} devices, the job has {} ranks: start {} ranks, or change "
              "cluster.nodes or cluster.devices_per_node",
              cluster_.text(), world_->size(), cluster_.devices());
      train_data_.emplace(open(deck_.data.train, "data.train"));
      if (!deck_.data.valid.empty()) valid_data_.emplace(open(deck_.data.valid, "data.valid"));
    });
  }

  void warn_of_precision() const {
    const bool converts =
        (model_.precision == model::Precision::bf16 && !kernels::has_bfloat16_instructions()) ||
        (model_.precision == model::Precision::fp16 && !kernels::has_float16_instructions());
    if (leader_ && converts)
      log::warn("{} saves memory, but not time: matrix products here convert to fp32",
                deck_.training.precision);
    if (leader_ && deck_.training.tf32 && !kernels::has_tf32_instructions())
      log::warn(
          "training.tf32 changes nothing here: only NVIDIA devices since Ampere round to TF32");
  }

  data::Sampler open(const std::string& path, const char* key) const {
    const data::TokenFile file(path);
    require(file.vocab_size() <= model_.vocab_size, Failure::input,
            "{} = {}: its vocabulary of {} is larger than model.vocab_size = {}", key, path,
            file.vocab_size(), model_.vocab_size);
    const auto order =
        deck_.data.order == "shuffled" ? data::Order::shuffled : data::Order::sequential;
    return data::Sampler(file, order, std::uint64_t(deck_.training.seed), model_.seq_len);
  }

  void find_resume() {
    if (options_.resume == "none") return;
    resume_ = options_.resume == "auto"
                  ? io::find_checkpoint(*world_, deck_.output.directory)
                  : std::optional(io::open_checkpoint(*world_, options_.resume));
    if (!resume_) return;
    comm::together(*world_, [&] {
      require(resume_->model_text == model::text(model_), Failure::input,
              "checkpoint {} is of another model ({}), the deck asks for ({}): use --resume none "
              "or another output.directory",
              resume_->directory.string(), resume_->model_text, model::text(model_));
    });
    if (leader_)
      log::info("resuming from {} after {} steps", resume_->directory.string(), resume_->step);
  }

  void choose_plan() {
    const bool keep = resume_ && !options_.replan && options_.plan.empty();
    if (keep) {
      plan_ = plan::parse(resume_->plan_text, resume_->directory.string());
      if (cluster_.num_groups() > 1 || plan_.devices() == world_->size()) {
        machine_ = hardware::parse_machine(resume_->profile_text, "checkpoint", deck_.cluster);
        return;
      }
      if (leader_)
        log::warn("the checkpoint's plan needs {} ranks: searching a new one", plan_.devices());
    }
    machine_ = obtain_machine(*world_, session_.ranks_per_node(), deck_, model_);
    std::string text;
    searched_ = options_.plan.empty();
    comm::together(*world_, [&] {
      if (!leader_) return;
      text =
          plan::text(searched_ ? search_plan(deck_, model_, *machine_) : plan::load(options_.plan));
    });
    plan_ = plan::parse(comm::broadcast(*world_, text, 0), "plan");
  }

  void check_plan() {
    comm::together(*world_, [&] {
      cluster_ = hardware::usable(cluster_, *machine_);
      require(cluster_.num_groups() > 1 || plan_.devices() == world_->size(), Failure::input,
              "the plan is for {} ranks, the job has {}", plan_.devices(), world_->size());
      check_given(plan_, deck_, model_, cluster_);
    });
  }

  /// Gives the plan's ranks to ranks on nodes of their groups. @return whether this one has any
  bool join_crew() {
    int mine = -1;
    bool same = plan_.devices() == world_->size();
    for (int rank = 0; rank < plan_.devices(); ++rank) {
      const int taken_by = plan::job_rank(plan_, cluster_, rank);
      if (taken_by == world_->rank()) mine = rank;
      same = same && taken_by == rank;
    }
    if (same) return true;
    crew_ = world_->split(mine < 0 ? -1 : 0, mine);
    if (leader_)
      log::info("{} of {} ranks train, in the order of the pipeline", plan_.devices(),
                world_->size());
    if (!crew_) return false;
    world_ = crew_.get();
    leader_ = world_->rank() == 0;
    log::start(world_->rank(), world_->size(), log::verbose());
    return true;
  }

  /// What the plan will need and how long an iteration will take.
  void predict() {
    description_.deck_text = deck::schema().write(deck_);
    description_.plan_text = plan::text(plan_);
    description_.profile_text = hardware::text(*machine_);
    description_.version = BRUME_VERSION;
    description_.ranks = world_->size();
    std::vector<double> spare(std::size_t(world_->size()), 0.0);
    comm::together(*world_, [&] {
      if (leader_) spare = simulate();
    });
    world_->all_reduce(spare, comm::Reduction::sum);
    max_copy_bytes_ = std::max(std::int64_t(spare[std::size_t(world_->rank())]), least_copy_bytes);
  }

  /// @return  host memory left to each rank [bytes]
  std::vector<double> simulate() {
    const std::vector<schedule::Program> programs = schedule::compile_all(plan_, model_);
    check_memory(programs, plan_, cluster_);
    const schedule::Simulation simulation = schedule::simulate(programs, plan_, model_, *machine_);
    predicted_ = timelines(programs, simulation);
    description_.predicted_iteration_s = simulation.iteration_s;
    for (const schedule::Program& program : programs) {
      description_.predicted_bytes.push_back(
          program.arena_bytes[std::size_t(schedule::Tier::device)]);
      description_.host_bytes.push_back(program.arena_bytes[std::size_t(schedule::Tier::host)]);
    }
    if (!searched_) log::info("{}", plan::table(plan_));
    log::info("{} parameters, {} tokens to train on; predicted iteration time {}",
              format_count(double(model::num_parameters(model_))),
              format_count(double(train_data_->num_windows()) * model_.seq_len),
              format_seconds(simulation.iteration_s));
    const std::vector<std::int64_t> spare = spare_host_bytes(programs, plan_, cluster_);
    return {spare.begin(), spare.end()};
  }

  void start_engine() {
    device::release_unused();
    const int ranks = session_.ranks_per_node();
    const int threads = device::threads_per_rank(ranks);
    runtime_.emplace(threads);
    engine::Settings all =
        settings(deck_, threads, device::first_core(ranks, session_.node_rank()));
    const plan::Stage& stage = plan_.stages[std::size_t(plan::place(plan_, world_->rank()).stage)];
    all.scratch = deck_.cluster.all_groups()[std::size_t(cluster_.index(stage.group))].scratch;
    engine_.emplace(plan_, model_, all, *world_);
    if (const device::Description device = device::describe_device();
        leader_ && device.memory_bytes)
      log::info("{}: {} of {} are taken, this rank's arena among them", device.name,
                format_bytes(double(device.memory_bytes - device.free_bytes)),
                format_bytes(double(device.memory_bytes)));
    measure_checkpoint();
    if (resume_) load(*resume_, *engine_, *world_);
    comm::together(*world_, [&] {
      if (!leader_) return;
      if (const auto folder = io::set_aside(deck_.output.directory, engine_->steps_done()))
        log::info("results of an earlier run that this one does not continue are now in {}",
                  folder->string());
      run_file_.emplace(deck_.output.directory, description_, engine_->steps_done());
    });
    writer_.emplace(deck_.output.directory, *world_, max_copy_bytes_);
    recovery_.emplace(deck_, *world_, *engine_, *writer_);
  }

  /// What each rank holds beside its plan while it writes a checkpoint, and how long that may take.
  void measure_checkpoint() {
    const auto ranks = std::size_t(world_->size()), rank = std::size_t(world_->rank());
    const std::int64_t bytes =
        deck_.output.checkpoints ? io::owned_bytes(engine_->slabs()) : std::int64_t{0};
    std::vector<double> all(2 * ranks, 0.0);
    all[rank] = double(bytes);
    all[ranks + rank] = io::takes_copy(bytes, max_copy_bytes_) ? double(bytes) : 0.0;
    world_->all_reduce(all, comm::Reduction::sum);
    const auto copies = all.begin() + std::ptrdiff_t(ranks);
    description_.copy_bytes.assign(copies, all.end());
    checkpoint_limit_s_ = *std::max_element(all.begin(), copies) * session_.ranks_per_node() /
                          slowest_disk_bytes_per_s;
  }

  // --- training ---

  /// @return 0, or 75 when stopped early
  int train() {
    const Clock::time_point start = Clock::now();
    const Signals signals;
    if (leader_)
      screen_.emplace(engine_->steps_done(), last_step_, deck_.output.log_every,
                      description_.predicted_iteration_s);
    comm::Watchdog watchdog(silence_limit_s, [this](double silence_s) {
      log::error("rank {}, step {}: no progress for {}: {}", world_->rank(), engine_->steps_done(),
                 format_seconds(silence_s), engine_->in_flight());
      world_->abort(int(Failure::network));
    });
    bool stopped = false;
    while (engine_->steps_done() < last_step_ && !stopped) {
      const engine::StepMetrics metrics = recovery_->step(*train_data_);
      watchdog.beat();
      const bool out_of_time =
          options_.max_minutes > 0.0 && seconds_since(start) > 60.0 * options_.max_minutes;
      stopped = share(metrics, signals.pending() || out_of_time);
      watchdog.set_deadline(silence_limit_s + checkpoint_limit_s_);
      if (!recovery_->went_back(metrics))
        after_step(stopped);
      else if (leader_)
        run_file_->rewind(engine_->steps_done());
      watchdog.beat();
      watchdog.set_deadline(silence_limit_s);
    }
    return stopped && engine_->steps_done() < last_step_ ? int(Failure::stopped) : 0;
  }

  /// Tells all ranks of each other's step. @return whether any rank was asked to stop
  bool share(engine::StepMetrics metrics, bool stop) {
    std::vector<double> shared(2 + std::size_t(world_->size()), 0.0);
    shared[0] = metrics.iteration_s;
    shared[1] = stop ? 1.0 : 0.0;
    shared[2 + std::size_t(world_->rank())] = double(device::peak_resident_bytes());
    world_->all_reduce(shared, comm::Reduction::max);
    metrics.iteration_s = shared[0];
    if (leader_) {
      io::Row row{.metrics = metrics,
                  .tokens_per_s = double(plan_.global_batch) * model_.seq_len / metrics.iteration_s,
                  .peak_bytes = std::vector<std::int64_t>(shared.begin() + 2, shared.end())};
      screen_->show(row);
      run_file_->add(std::move(row));
    }
    return shared[1] > 0.0;
  }

  void after_step(bool stopped) {
    const std::int64_t done = engine_->steps_done();
    const bool last = done >= last_step_ || stopped;
    const auto due = [&](int every) { return every > 0 && done % every == 0; };
    if (valid_data_ && (due(deck_.data.eval_every) || (last && !stopped))) evaluate();
    checkpoint_due_ = checkpoint_due_ || due(deck_.output.checkpoint_every);
    if (last || (checkpoint_due_ && !recovery_->in_doubt())) checkpoint();
  }

  void evaluate() {
    const double loss = engine_->evaluate(*valid_data_, 0, deck_.data.eval_sequences);
    if (!leader_) return;
    screen_->show_evaluation(engine_->steps_done(), loss);
    run_file_->add(io::EvaluationRow{engine_->steps_done(), loss});
  }

  void checkpoint() {
    checkpoint_due_ = false;
    if (deck_.output.checkpoints) write_checkpoint();
    comm::together(*world_, [&] {
      if (leader_) run_file_->write();
    });
  }

  void write_checkpoint() {
    engine_->flush();
    writer_->start({.step = engine_->steps_done(),
                    .scaling = engine_->loss_scaling(),
                    .deck_text = description_.deck_text,
                    .plan_text = description_.plan_text,
                    .profile_text = description_.profile_text,
                    .model_text = model::text(model_),
                    .directory = {},
                    .ranks = world_->size()},
                   engine_->slabs());
  }

  // --- after the last step ---

  void finish(int code) {
    writer_->finish();
    if (deck_.output.trace && !engine_->last_times().empty()) write_trace();
    if (!leader_) return;
    run_file_->write();
    screen_->close(description_);
    if (code != 0)
      log::info("stopped after {} of {} steps; {}", engine_->steps_done(), last_step_,
                deck_.output.checkpoints ? "start the same job again to go on"
                                         : "output.checkpoints = false kept nothing to go on from");
    log::info("results in {}: run.h5{}", deck_.output.directory,
              deck_.output.checkpoints ? ", checkpoints/" : "");
  }

  void write_trace() {
    io::RankTimeline mine{
        .rank = world_->rank(), .labels = {}, .channels = {}, .times = engine_->last_times()};
    for (const schedule::Task& task : engine_->program().tasks) {
      mine.labels.push_back(schedule::label(task));
      mine.channels.push_back(task.channel);
    }
    std::vector<io::RankTimeline> measured;
    for (const std::string& text : world_->gather(io::pack(mine)))
      measured.push_back(io::unpack(text));
    comm::together(*world_, [&] {
      if (leader_)
        io::write_trace(std::filesystem::path(deck_.output.directory) / "trace.json", measured,
                        predicted_);
    });
  }

  static constexpr double silence_limit_s = 300.0;            ///< a step takes less
  static constexpr double slowest_disk_bytes_per_s = 100e6;   ///< that a node writes to
  static constexpr std::int64_t least_copy_bytes = 16 << 20;  ///< however little memory is left

  const RunOptions& options_;
  comm::Session& session_;
  std::unique_ptr<comm::Communicator> crew_;  ///< where it is not all ranks in their order
  comm::Communicator* world_;                 ///< those that train
  bool leader_;

  deck::Deck deck_;
  model::Config model_;
  hardware::Cluster cluster_;
  std::int64_t last_step_ = 0;
  std::optional<data::Sampler> train_data_, valid_data_;
  std::optional<io::CheckpointInfo> resume_;
  std::optional<hardware::Machine> machine_;
  plan::Plan plan_;
  bool searched_ = false;  ///< and so shown already
  std::vector<io::RankTimeline> predicted_;
  io::RunDescription description_;
  std::optional<kernels::Runtime> runtime_;
  std::optional<engine::Engine> engine_;
  std::optional<io::RunFile> run_file_;
  std::int64_t max_copy_bytes_ = 0;
  double checkpoint_limit_s_ = 0.0;
  std::optional<io::CheckpointWriter> writer_;
  std::optional<Recovery> recovery_;
  bool checkpoint_due_ = false;
  std::optional<Screen> screen_;
};

}  // namespace

int run(const RunOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& world) {
    return Job(options, session, world).run();
  });
}

}  // namespace brume::app
