#include "training.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
#include "comm/watchdog.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "io/metrics_log.hpp"
#include "io/run_file.hpp"
#include "kernels/types.hpp"
#include "planning.hpp"
#include "rank_checks.hpp"
#include "recovery.hpp"
#include "reference.hpp"
#include "resume.hpp"
#include "run_settings.hpp"
#include "samples.hpp"
#include "saving.hpp"
#include "schedule/compile.hpp"
#include "screen.hpp"
#include "verify_plan.hpp"

namespace brume::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Lets the job's other ranks know what this one does, for as long as it lives.
class Doing {
 public:
  Doing(comm::Session& session, std::function<comm::Doing()> doing) : session_(session) {
    session_.set_doing(std::move(doing));
  }
  ~Doing() { session_.set_doing({}); }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  comm::Session& session_;
};

/// Says what all ranks do together between two steps, for as long as it lives.
class BetweenSteps {
 public:
  BetweenSteps(std::atomic<const char*>& said, const char* what) : said_(said) { said_ = what; }
  ~BetweenSteps() { said_ = nullptr; }
  BetweenSteps(const BetweenSteps&) = delete;
  BetweenSteps& operator=(const BetweenSteps&) = delete;

 private:
  std::atomic<const char*>& said_;
};

/// Why a training ends before its last step; where there are several reasons, the last one counts.
enum class Stop { none, max_minutes, slurm, signal };

const char* text(Stop stop) {
  switch (stop) {
    case Stop::none: break;
    case Stop::max_minutes: return "--max-minutes";
    case Stop::slurm: return "the end of Slurm's time (SLURM_JOB_END_TIME)";
    case Stop::signal: return "a signal";
  }
  return "";
}

class Training {
 public:
  Training(const RunOptions& options, const Prepared& prepared, comm::Session& session,
           comm::Communicator& crew, Signals& signals, Clock::time_point start)
      : options_(options),
        run_(prepared),
        session_(session),
        crew_(crew),
        signals_(signals),
        start_(start),
        leader_(crew.rank() == 0),
        limit_(time_limit(options.max_minutes, start)) {}

  int run() {
    session_.begin_phase("making the engine", still_limit_s(run_.deck));
    predict();
    if (options_.dry_run) return 0;
    start_engine();
    try {
      const int code = train();
      finish(code);
      return code;
    } catch (const std::exception& error) {
      note_end(error.what());
      throw;
    }
  }

 private:
  // --- before the first step ---

  /// What the plan will need and how long an iteration will take.
  void predict() {
    description_.deck_text = deck::schema().write(run_.deck);
    description_.plan_text = plan::text(run_.plan);
    description_.profile_text = hardware::text(*run_.machine);
    description_.version = BRUME_VERSION;
    description_.ranks = crew_.size();
    std::array<double, 1> iteration_s{};
    std::vector<schedule::Program> programs;  // rank 0 has all of them
    comm::together(crew_, [&] {
      if (leader_) programs = schedule::compile_all(run_.plan, run_.model);
      if (leader_) check_memory(programs, run_.plan, run_.cluster);
    });
    if (run_.sample_prompts) {
      samples_.emplace(run_, session_, crew_);
      samples_->choose_plan(programs);
    }
    comm::together(crew_, [&] {
      if (leader_) iteration_s[0] = simulate(programs);
    });
    if (!options_.plan.empty()) verify_given();
    crew_.all_reduce(iteration_s, comm::Reduction::sum);
    description_.predicted_iteration_s = iteration_s_ = iteration_s[0];
    host_bytes_ = reckon_host_bytes(programs, run_, crew_);
  }

  double simulate(const std::vector<schedule::Program>& programs) {
    check_memory(programs, run_.plan, run_.cluster);
    if (!options_.plan.empty()) check_messages(programs, run_.plan);
    const schedule::Simulation simulation =
        schedule::simulate(programs, run_.plan, run_.model, *run_.machine);
    const double evaluation_s = run_.model.pairs ? predict_evaluation() : 0.0;
    predicted_ = timelines(programs, simulation);
    for (const schedule::Program& program : programs) {
      description_.predicted_bytes.push_back(
          program.arena_bytes[std::size_t(schedule::Tier::device)]);
      description_.host_bytes.push_back(program.arena_bytes[std::size_t(schedule::Tier::host)]);
    }
    if (!run_.searched) log::info("{}", plan::table(run_.plan, terminal::columns(STDERR_FILENO)));
    const double active = double(model::num_active_parameters(run_.model));
    log::info(
        "{} parameters{}, {} tokens to train on; predicted step time {}{}",
        format_count(double(model::num_parameters(run_.model))),
        run_.model.num_experts > 0 ? fmt::format(", {} for a token", format_count(active)) : "",
        format_count(double(run_.train_data->num_windows()) * run_.model.seq_len),
        format_seconds(simulation.iteration_s + evaluation_s),
        run_.model.pairs ? fmt::format(", of which {} for the answers' log-probabilities",
                                       format_seconds(evaluation_s))
                         : "");
    if (const std::string frozen = model::frozen_text(run_.model); !frozen.empty())
      log::info("frozen: {}", frozen);
    return simulation.iteration_s + evaluation_s;
  }

  /// Predicts the evaluation of a batch, with which a step on pairs begins. @return its time
  double predict_evaluation() {
    const std::vector<schedule::Program> programs =
        schedule::compile_all(run_.plan, run_.model, {.mode = schedule::Mode::evaluate});
    const schedule::Simulation simulation =
        schedule::simulate(programs, run_.plan, run_.model, *run_.machine);
    predicted_evaluation_ = timelines(programs, simulation).front();
    return simulation.iteration_s;
  }

  /// A plan that somebody wrote may ask for what no test has seen. Each rank checks its Programs.
  void verify_given() {
    comm::together(crew_, [&] {
      for (const schedule::Mode mode : {schedule::Mode::train, schedule::Mode::evaluate}) {
        const int checked =
            check_rank(run_.plan, run_.model, crew_.rank(),
                       {.mode = mode, .one_collective = comm::one_collective_at_a_time()});
        if (leader_ && checked < run_.plan.microbatches)
          log::info("the order of the plan's tasks was checked with {} of its {} microbatches",
                    checked, run_.plan.microbatches);
      }
    });
  }

  void start_engine() {
    device::release_unused();
    const int ranks = session_.ranks_per_node();
    threads_ = device::threads_per_rank(ranks);
    runtime_.emplace(threads_);
    engine::Settings all = engine_settings(run_.deck, run_.steps, threads_,
                                           device::first_core(ranks, session_.node_rank()));
    const plan::Stage& stage = run_.plan.stages[plan::stage_index(run_.plan, crew_.rank())];
    all.scratch = run_.deck.cluster.all_groups()[run_.cluster.index(stage.group)].scratch;
    all.on_task_done = [this] {
      if (watchdog_) watchdog_->beat();
    };
    preference_ = all.preference;
    all.exact = kept_exactly(run_.resume, run_.first_weights, run_.model, crew_);
    saving_.emplace(run_, session_, crew_, host_bytes_);
    description_.copy_bytes = saving_->copy_bytes();
    all.beside_bytes = saving_->beside_bytes();
    if (samples_) all.lent_bytes = samples_->bytes();
    engine_.emplace(run_.plan, run_.model, all, crew_);
    session_.begin_phase("reading the first weights", still_limit_s(run_.deck));
    if (leader_)
      log::debug("threads: {} a rank, because {} ranks share this node's {} cores", threads_, ranks,
                 device::this_processor().given_cores);
    if (const device::Description device = device::describe_device();
        leader_ && device.memory_bytes)
      log::info("{}: {} of {} are taken, this rank's arena among them", device.name,
                format_bytes(double(device.memory_bytes - device.free_bytes)),
                format_bytes(double(device.memory_bytes)));
    if (run_.resume)
      load(*run_.resume, run_.data_text, run_.model, *engine_, crew_);
    else if (run_.first_weights)
      load_weights(*run_.first_weights, run_.model, engine_->slabs(), crew_);
    if (run_.first_adapter) load_adapter(*run_.first_adapter, engine_->slabs(), crew_);
    const std::string& directory = run_.deck.output.directory;
    comm::together(crew_, [&] {
      if (!leader_) return;
      // A checkpoint from elsewhere begins another run here.
      const bool goes_on = run_.resume && io::is_in(directory, *run_.resume);
      description_.run = goes_on ? run_.resume->run : std::string();
      if (description_.run.empty()) description_.run = io::new_run();
      const auto resumed_step =
          goes_on ? std::optional(engine_->steps_done()) : std::optional<std::int64_t>();
      if (const auto folder = io::set_aside(directory, resumed_step, description_.run)) {
        log::info("results of an earlier run that this one does not continue are now in {}",
                  folder->string());
        set_aside_ = *folder;
      }
      run_file_.emplace(directory, description_, engine_->steps_done());
      metrics_log_.emplace(directory, description_, yardstick(run_), engine_->steps_done(),
                           run_.deck.output.tensorboard);
    });
    saving_->open(*engine_);
    recovery_.emplace(run_.deck, run_.model, run_.data_text, crew_, *engine_, *saving_);
    checks_.emplace(run_.plan, run_.deck.training.compare_replicas_every, *engine_, crew_);
  }

  // --- training ---

  /// @return 0, or when stopped early 75, and 71 where that loses what was trained
  int train() {
    signals_.remember();
    session_.begin_phase("training", std::numeric_limits<double>::infinity());
    doing_.emplace(session_, [this] { return doing(); });
    watchdog_.emplace(task_limit_s(), [this](double silence_s) { report_silence(silence_s); });
    if (run_.model.pairs) prepare_reference();
    show_head();
    saving_->start_clock();
    last_end_ = Clock::now();
    while (engine_->steps_done() < run_.last_step && stop_ == Stop::none) {
      watch(task_limit_s());
      const engine::StepMetrics metrics = recovery_->step(*run_.train_data);
      stop_ = share(metrics);
      const bool stopped = stop_ != Stop::none;
      if (stopped) signals_.ignore();  // what is left is the last checkpoint
      watch(task_limit_s() + saving_->limit_s());
      const Clock::time_point between = Clock::now();
      if (!recovery_->went_back(metrics))
        after_step(stopped);
      else if (leader_)
        rewind_metrics(metrics.step + 1);
      last_end_ += Clock::now() - between;  // no step's time
    }
    if (stop_ == Stop::none || engine_->steps_done() >= run_.last_step) return 0;
    return int(run_.deck.output.checkpoints ? Failure::stopped : Failure::interrupted);
  }

  Expectation expected() const {
    Expectation expected = expectation(run_, description_.predicted_iteration_s, predicted_.front(),
                                       session_.ranks_per_node());
    for (int c = 0; predicted_evaluation_ && c < schedule::num_channels; ++c)
      expected.busy_s[std::size_t(c)] += io::busy_s(*predicted_evaluation_, schedule::Channel(c));
    return expected;
  }

  /// Gives the engine what answers are compared with, unless the job is to stop meanwhile.
  void prepare_reference() {
    const BetweenSteps preparing(between_steps_, "computing the reference");
    std::optional<io::Reference> reference =
        make_reference(run_, description_.run, set_aside_, *engine_, crew_, [this] {
          std::array<double, 1> wished{double(wish(false))};
          crew_.all_reduce(wished, comm::Reduction::max);
          stop_ = Stop(int(wished[0]));
          return stop_ != Stop::none;
        });
    if (!reference) return;
    stop_ = Stop::none;
    engine_->set_reference(std::move(reference->train));
    valid_reference_ = std::move(reference->valid);
  }

  /// Says what runs where, and begins the table of steps. Collective.
  void show_head() {
    const std::vector<std::string> hosts = crew_.gather(host_name());
    if (leader_ && run_.valid_data && run_.valid_data->num_targets(0, eval_sequences(run_)) == 0)
      log::warn("data.valid: none of the tokens of its first {} is to be learned: it has no loss",
                counted(eval_sequences(run_), "sequence"));
    const std::string transport =
        device::on_device() ? comm::device_transport(crew_) : crew_.transport();
    if (!leader_) return;
    screen_.emplace(ScreenSettings{.head = head(options_, run_.deck, hosts, threads_, transport),
                                   .first_step = engine_->steps_done(),
                                   .last_step = run_.last_step,
                                   .log_every = run_.deck.output.log_every,
                                   .json = options_.log == "json",
                                   .experts = run_.model.num_experts > 0,
                                   .pairs = run_.model.pairs},
                    expected(), yardstick(run_));
  }

  /// Begins a time in which there must be progress every `deadline_s` seconds.
  void watch(double deadline_s) {
    watchdog_->beat();
    watchdog_->set_deadline(deadline_s);
  }

  /// What this rank does, and which ranks of the job it waits for.
  comm::Doing doing() const {
    const char* const between = between_steps_;
    const std::string tasks = engine_->in_flight();
    std::string what = between ? between : tasks.empty() ? "nothing in flight" : tasks;
    if (between && !tasks.empty()) what += ", " + tasks;
    comm::Doing now{fmt::format("stage {}, step {}: {}", plan::stage_index(run_.plan, crew_.rank()),
                                engine_->steps_done() + (between ? 0 : 1), what),
                    engine_->awaited()};
    for (int rank = 0; between && tasks.empty() && rank < crew_.size(); ++rank)
      if (rank != crew_.rank()) now.awaited.push_back(rank);
    for (int& rank : now.awaited) rank = plan::job_rank(run_.plan, run_.cluster, rank);
    return now;
  }

  void report_silence(double silence_s) {
    log::error("brume: rank {}: no task was finished for {} in {}", crew_.rank(),
               format_seconds(silence_s), doing().text);
    crew_.abort(int(Failure::network));
  }

  /// How long no task may be finished. A device's tasks count as finished when they are in its
  /// streams, and so all at once: then only whole iterations show progress. The silence of a
  /// stopped rank is left to its neighbour to report, who knows its name.
  double task_limit_s() const {
    return std::max(1.5 * run_.deck.training.silence_limit_s, 5.0 * iteration_s_);
  }

  /// Whether another step and a checkpoint would end after the time that was given.
  /// @param due  another checkpoint is to be written before
  bool out_of_time(bool due) const {
    return seconds_since(start_) + iteration_s_ + saving_->last_ends_after_s(due) > limit_.s;
  }

  /// Whether, and why, this rank is to stop.
  Stop wish(bool due) const {
    if (signals_.pending()) return Stop::signal;
    if (!out_of_time(due)) return Stop::none;
    return limit_.is_slurms ? Stop::slurm : Stop::max_minutes;
  }

  /// Tells all ranks of each other's step. @return whether any rank is to stop
  Stop share(engine::StepMetrics metrics) {
    metrics.iteration_s = seconds_since(std::exchange(last_end_, Clock::now()));
    // A running mean over about ten steps follows a change of speed, but no single slow step.
    if (!metrics.left_out)
      iteration_s_ +=
          std::max(0.1, 1.0 / double(++measured_)) * (metrics.iteration_s - iteration_s_);
    const bool due = leader_ && saving_->due();
    constexpr std::size_t all = 6;  // values that belong to no one rank
    std::vector<double> shared(all + std::size_t(crew_.size()), 0.0);
    shared[0] = metrics.iteration_s;
    shared[1] = double(wish(due || checkpoint_due_));
    shared[2] = saving_->longest_write_s();
    shared[3] = signals_.take_save() || due ? 1.0 : 0.0;
    shared[4] = metrics.data_s;
    shared[5] = metrics.expert_rounds;
    shared[all + std::size_t(crew_.rank())] = double(device::peak_resident_bytes());
    {
      const BetweenSteps telling(between_steps_, "telling all ranks of it");
      crew_.all_reduce(shared, comm::Reduction::max);
    }
    metrics.iteration_s = shared[0];
    metrics.data_s = shared[4];
    share_loads(metrics);
    metrics.expert_rounds = shared[5];
    if (leader_) warn_of_rounds(metrics);
    if (shared[2] > 0.0) saving_->note_write_s(shared[2]);
    checkpoint_due_ = checkpoint_due_ || shared[3] > 0.0;
    const std::vector<std::string> stragglers = checks_->after_step(metrics);
    if (leader_) {
      io::Row row{.metrics = metrics,
                  .tokens_per_s = metrics.left_out ? 0.0
                                                   : double(run_.plan.global_batch) *
                                                         run_.model.seq_len / metrics.iteration_s,
                  .peak_bytes = std::vector<std::int64_t>(shared.begin() + all, shared.end())};
      screen_->show(row);
      metrics_log_->add(row);
      run_file_->add(std::move(row));
      for (const std::string& said : stragglers)
        metrics_log_->add(io::Event{metrics.step + 1, io::Event::Kind::straggler, said});
    }
    return Stop(int(shared[1]));
  }

  /// Says once that experts take further rounds.
  void warn_of_rounds(const engine::StepMetrics& metrics) {
    constexpr double worth_a_word = 1.05;
    if (metrics.expert_rounds < worth_a_word || std::exchange(told_of_rounds_, true)) return;
    log::warn(
        "step {}: experts took {:.2f} rounds per forward on the busiest rank. Memory is "
        "reserved for model.rank_load_factor = {} times the mean load; a larger factor "
        "makes such steps faster",
        metrics.step + 1, metrics.expert_rounds, run_.model.rank_load_factor);
  }

  /// Adds the loads of all ranks' experts in the last step.
  void share_loads(engine::StepMetrics& metrics) {
    const std::vector<std::int64_t>& mine = engine_->last_loads().copies;
    if (mine.empty()) return;
    std::vector<double> loads(mine.begin(), mine.end());
    const BetweenSteps telling(between_steps_, "summing the experts' loads");
    crew_.all_reduce(loads, comm::Reduction::sum);
    metrics.load_factor = engine::load_factor(loads, run_.model.num_experts);
    if (metrics.load_factor > 0.0) metrics.idle_experts = engine::idle_experts(loads);
  }

  /// @param bad_step  whose batch is left out from now on
  void rewind_metrics(std::int64_t bad_step) {
    const std::int64_t done = engine_->steps_done();
    screen_->rewind(done);
    run_file_->rewind(done);
    metrics_log_->rewind(done);
    metrics_log_->add(io::Event{
        done, io::Event::Kind::rollback,
        fmt::format("step {} was not finite: back to the checkpoint of step {}", bad_step, done)});
  }

  void after_step(bool stopped) {
    const std::int64_t done = engine_->steps_done();
    const bool last = done >= run_.last_step || stopped;
    const auto due = [&](int every) { return every > 0 && done % every == 0; };
    const bool writes = last || (checkpoint_due_ && !recovery_->in_doubt());
    const bool judged =
        due(run_.deck.data.eval_every) || last || (writes && run_.deck.output.keep_best);
    valid_loss_.reset();
    if (run_.valid_data && judged && !stopped) evaluate();
    if (writes) checkpoint();
    if (!samples_ || !(due(run_.deck.training.samples.every) || last) || stopped) return;
    sample();
    if (stop_ != Stop::none && !writes) checkpoint();
  }

  /// Answers the deck's prompts by the weights as they are, as far as there is time.
  void sample() {
    const BetweenSteps answering(between_steps_, "answering prompts");
    const auto rows = samples_->answer(
        *engine_, threads_, [this] { watchdog_->beat(); },
        [this] { return wish(checkpoint_due_) != Stop::none; });
    for (const io::SampleRow& row : rows) {
      screen_->show(row);
      metrics_log_->add(row);
    }
    std::array<double, 1> wished{double(wish(checkpoint_due_))};
    crew_.all_reduce(wished, comm::Reduction::max);
    stop_ = Stop(int(wished[0]));
    if (stop_ != Stop::none) signals_.ignore();
  }

  io::EvaluationRow evaluated() {
    const data::Sampler& data = *run_.valid_data;
    std::int64_t count = eval_sequences(run_);
    if (!run_.model.pairs) return {engine_->steps_done(), engine_->evaluate(data, 0, count)};
    count = std::min<std::int64_t>(count, std::ssize(valid_reference_));
    const std::vector<double> policy = engine_->log_probabilities(data, 0, count);
    std::vector<engine::SequenceScore> scores;
    for (std::size_t i = 0; i < policy.size(); ++i)
      scores.push_back({policy[i], valid_reference_[i], data.num_targets(std::int64_t(i), 1)});
    const engine::PreferenceResult result = engine::prefer(preference_, scores);
    return {engine_->steps_done(), result.loss, result.accuracy, result.margin};
  }

  void evaluate() {
    const BetweenSteps evaluating(between_steps_, "evaluating");
    const io::EvaluationRow row = evaluated();
    if (std::isfinite(row.loss)) valid_loss_ = row.loss;
    if (!leader_) return;
    screen_->show(row);
    metrics_log_->add(row);
    run_file_->add(row);
  }

  void checkpoint() {
    const BetweenSteps writing(between_steps_, "writing a checkpoint");
    checkpoint_due_ = false;
    saving_->write(description_, valid_loss_);
    if (leader_) run_file_->write_or_warn();
  }

  // --- after the last step ---

  void finish(int code) {
    signals_.ignore();
    if (code != 0)
      note_end(fmt::format("stopped after {} of {} steps", engine_->steps_done(), run_.last_step));
    finish_saving();
    write_results();
    if (run_.deck.output.trace && !engine_->last_times().empty()) write_trace();
    watchdog_.reset();
    doing_.reset();
    session_.begin_phase("writing the results", task_limit_s() + saving_->limit_s());
    if (!leader_) return;
    screen_->close(description_);
    const deck::OutputKeys& output = run_.deck.output;
    if (code != 0)
      screen_->report(fmt::format("stopped after {} of {} steps because of {}; {}",
                                  engine_->steps_done(), run_.last_step, text(stop_),
                                  how_to_go_on()));
    screen_->report(fmt::format("results in {}: run.h5, metrics.jsonl{}{}{}", output.directory,
                                output.checkpoints ? ", checkpoints/" : "",
                                output.trace ? ", trace.json" : "",
                                output.tensorboard ? ", tensorboard/" : ""));
  }

  /// Says in run.h5 what ends the job before its last step.
  void note_end(const std::string& what) {
    if (!run_file_) return;
    run_file_->end(what);
    run_file_->write_or_warn();
  }

  std::string how_to_go_on() const {
    if (!run_.deck.output.checkpoints)
      return "output.checkpoints = false kept nothing to go on from";
    if (options_.resume == "auto") return "start the same job again to go on";
    return fmt::format(
        "to go on start it again without --resume{}",
        std::getenv("SLURM_JOB_ID") == nullptr ? "" : ", or requeue this job as it is");
  }

  void finish_saving() {
    const BetweenSteps writing(between_steps_, "writing a checkpoint");
    saving_->finish();
  }

  void write_results() {
    const BetweenSteps writing(between_steps_, "writing the results");
    comm::together(crew_, [&] {
      if (leader_) run_file_->write();
    });
  }

  void write_trace() {
    const BetweenSteps writing(between_steps_, "writing the trace");
    const io::RankTimeline mine = io::timeline(engine_->program(), engine_->last_times());
    std::vector<io::RankTimeline> measured;
    std::vector<std::string> texts = crew_.gather_at(io::pack(mine), 0);
    comm::together(crew_, [&] {
      for (std::string& text : texts) measured.push_back(io::unpack(std::exchange(text, {})));
      if (leader_)
        io::write_trace(std::filesystem::path(run_.deck.output.directory) / "trace.json", measured,
                        predicted_);
    });
  }

  const RunOptions& options_;
  const Prepared& run_;
  comm::Session& session_;
  comm::Communicator& crew_;
  Signals& signals_;
  Clock::time_point start_;
  bool leader_;
  bool told_of_rounds_ = false;

  std::vector<io::RankTimeline> predicted_;
  std::optional<io::RankTimeline> predicted_evaluation_;  ///< rank 0's, before a step on pairs
  io::RunDescription description_;
  double iteration_s_ = 0.0;    ///< as predicted, then as measured of late
  std::int64_t measured_ = 0;   ///< steps
  Clock::time_point last_end_;  ///< of a step, later by what came between it and the next one
  TimeLimit limit_;             ///< of the whole job
  Stop stop_ = Stop::none;
  int threads_ = 1;  ///< of this rank
  HostBytes host_bytes_;
  std::optional<kernels::Runtime> runtime_;
  std::optional<comm::Watchdog> watchdog_;  ///< before the engine, whose threads beat it
  std::optional<engine::Engine> engine_;
  std::optional<Doing> doing_;  ///< after the engine, which it looks at
  std::optional<io::RunFile> run_file_;
  std::optional<io::MetricsLog> metrics_log_;
  std::optional<Saving> saving_;
  std::optional<Recovery> recovery_;
  std::optional<RankChecks> checks_;
  std::optional<Samples> samples_;  ///< none: the deck has no prompts
  bool checkpoint_due_ = false;
  std::atomic<const char*> between_steps_ = nullptr;  ///< what all ranks do, where it is no step
  std::filesystem::path set_aside_;                   ///< of an earlier run; empty: nothing was
  engine::Preference preference_;                     ///< of pairs
  std::vector<double> valid_reference_;  ///< ... log-probabilities of validation's samples
  std::optional<double> valid_loss_;     ///< of the weights as they are, where it was measured
  std::optional<Screen> screen_;
};

}  // namespace

int train(const RunOptions& options, const Prepared& prepared, comm::Session& session,
          comm::Communicator& crew, Signals& signals, Clock::time_point start) {
  return Training(options, prepared, session, crew, signals, start).run();
}

}  // namespace brume::app
