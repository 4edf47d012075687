/// @file The steps of a training, and the work between them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "reference.hpp"
#include "training_job.hpp"

namespace brume::app {

int Training::train() {
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

Expectation Training::expected() const {
  Expectation expected = expectation(run_, description_.predicted_iteration_s, predicted_.front(),
                                     session_.ranks_per_node());
  for (int c = 0; predicted_evaluation_ && c < schedule::num_channels; ++c)
    expected.busy_s[c] += io::busy_s(*predicted_evaluation_, schedule::Channel(c));
  return expected;
}

void Training::prepare_reference() {
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

void Training::show_head() {
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

void Training::watch(double deadline_s) {
  watchdog_->beat();
  watchdog_->set_deadline(deadline_s);
}

comm::Doing Training::doing() const {
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

void Training::report_silence(double silence_s) {
  log::error("brume: rank {}: no task was finished for {} in {}", crew_.rank(),
             format_seconds(silence_s), doing().text);
  crew_.abort(int(Failure::network));
}

double Training::task_limit_s() const {
  return std::max(1.5 * run_.deck.training.silence_limit_s, 5.0 * iteration_s_);
}

bool Training::out_of_time(bool due) const {
  return seconds_since(start_) + iteration_s_ + saving_->last_ends_after_s(due) > limit_.s;
}

Stop Training::wish(bool due) const {
  if (signals_.pending()) return Stop::signal;
  if (!out_of_time(due)) return Stop::none;
  return limit_.is_slurms ? Stop::slurm : Stop::max_minutes;
}

Stop Training::share(engine::StepMetrics metrics) {
  metrics.iteration_s = seconds_since(std::exchange(last_end_, Clock::now()));
  // A running mean over about ten steps follows a change of speed, but no single slow step.
  if (!metrics.left_out)
    iteration_s_ += std::max(0.1, 1.0 / double(++measured_)) * (metrics.iteration_s - iteration_s_);
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

void Training::warn_of_rounds(const engine::StepMetrics& metrics) {
  constexpr double worth_a_word = 1.05;
  if (metrics.expert_rounds < worth_a_word || std::exchange(told_of_rounds_, true)) return;
  log::warn(
      "step {}: experts took {:.2f} rounds per forward on the busiest rank. Memory is "
      "reserved for model.rank_load_factor = {} times the mean load; a larger factor "
      "makes such steps faster",
      metrics.step + 1, metrics.expert_rounds, run_.model.rank_load_factor);
}

void Training::share_loads(engine::StepMetrics& metrics) {
  const std::vector<std::int64_t>& mine = engine_->last_loads().copies;
  if (mine.empty()) return;
  std::vector<double> loads(mine.begin(), mine.end());
  const BetweenSteps telling(between_steps_, "summing the experts' loads");
  crew_.all_reduce(loads, comm::Reduction::sum);
  metrics.load_factor = engine::load_factor(loads, run_.model.num_experts);
  if (metrics.load_factor > 0.0) metrics.idle_experts = engine::idle_experts(loads);
}

void Training::rewind_metrics(std::int64_t bad_step) {
  const std::int64_t done = engine_->steps_done();
  screen_->rewind(done);
  run_file_->rewind(done);
  metrics_log_->rewind(done);
  metrics_log_->add(io::Event{
      done, io::Event::Kind::rollback,
      fmt::format("step {} was not finite: back to the checkpoint of step {}", bad_step, done)});
}

void Training::after_step(bool stopped) {
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

void Training::sample() {
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

io::EvaluationRow Training::evaluated() {
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

void Training::evaluate() {
  const BetweenSteps evaluating(between_steps_, "evaluating");
  const io::EvaluationRow row = evaluated();
  if (std::isfinite(row.loss)) valid_loss_ = row.loss;
  if (!leader_) return;
  screen_->show(row);
  metrics_log_->add(row);
  run_file_->add(row);
}

void Training::checkpoint() {
  const BetweenSteps writing(between_steps_, "writing a checkpoint");
  checkpoint_due_ = false;
  saving_->write(description_, valid_loss_);
  if (leader_) run_file_->write_or_warn();
}

}  // namespace brume::app
