/// @file A training of one rank, from its prediction to its results.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/session.hpp"
#include "comm/watchdog.hpp"
#include "engine/engine.hpp"
#include "io/metrics_log.hpp"
#include "io/run_file.hpp"
#include "kernels/types.hpp"
#include "prepare.hpp"
#include "rank_checks.hpp"
#include "recovery.hpp"
#include "run_settings.hpp"
#include "samples.hpp"
#include "saving.hpp"
#include "schedule/compile.hpp"
#include "screen.hpp"
#include "signals.hpp"
#include "verbs.hpp"

namespace brume::app {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
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

/// A training of one rank; all ranks of `crew` call the same functions in the same order.
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

  int run();

 private:
  // --- before the first step ---

  /// Predicts the memory and the step time of the plan, and checks that the memory is there.
  void predict();
  /// @return the predicted time of a step
  double simulate(const std::vector<schedule::Program>& programs);
  /// Predicts the evaluation of a batch, with which a step on pairs begins. @return its time
  double predict_evaluation();
  /// A plan that somebody wrote may ask for what no test has seen. Each rank checks its Programs.
  void verify_given();
  /// Takes memory, and opens checkpoints and results.
  void start_engine();
  void load_first_weights();
  /// Begins run.h5 and metrics.jsonl, and sets results of another run aside.
  void open_results();

  // --- training ---

  /// @return 0, or when stopped early 75, and 71 where that loses what was trained
  int train();
  Expectation expected() const;
  /// Gives the engine what answers are compared with, unless the job is to stop meanwhile.
  void prepare_reference();
  /// Says what runs where, and begins the table of steps. Collective.
  void show_head();
  /// Begins a time in which there must be progress every `deadline_s` seconds.
  void watch(double deadline_s);
  /// What this rank does, and which ranks of the job it waits for.
  comm::Doing doing() const;
  void report_silence(double silence_s);
  /// How long no task may be finished. A device's tasks count as finished when they are in its
  /// streams, and so all at once: then only whole iterations show progress. The silence of a
  /// stopped rank is left to its neighbour to report, who knows its name.
  double task_limit_s() const;
  /// Whether another step and a checkpoint would end after the time that was given.
  /// @param due  another checkpoint is to be written before
  bool out_of_time(bool due) const;
  /// Whether, and why, this rank is to stop.
  Stop wish(bool due) const;
  /// Tells all ranks of each other's step. @return whether any rank is to stop
  Stop share(engine::StepMetrics metrics);
  /// Says once that experts take further rounds.
  void warn_of_rounds(const engine::StepMetrics& metrics);
  /// Adds the loads of all ranks' experts in the last step.
  void share_loads(engine::StepMetrics& metrics);
  /// @param bad_step  whose batch is left out from now on
  void rewind_metrics(std::int64_t bad_step);
  void after_step(bool stopped);
  /// Answers the deck's prompts by the weights as they are, as far as there is time.
  void sample();
  io::EvaluationRow evaluated();
  void evaluate();
  void checkpoint();

  // --- after the last step ---

  void finish(int code);
  /// Says in run.h5 what ends the job before its last step.
  void note_end(const std::string& what);
  std::string how_to_go_on() const;
  void finish_saving();
  void write_results();
  void write_trace();

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

}  // namespace brume::app
