/// @file The end of a training: the last checkpoint, results, the trace.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "comm/agree.hpp"
#include "training_job.hpp"

namespace brume::app {

namespace {

const char* text(Stop stop) {
  switch (stop) {
    case Stop::none: break;
    case Stop::max_minutes: return "--max-minutes";
    case Stop::slurm: return "the end of Slurm's time (SLURM_JOB_END_TIME)";
    case Stop::signal: return "a signal";
  }
  return "";
}

}  // namespace

void Training::finish(int code) {
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

void Training::note_end(const std::string& what) {
  if (!run_file_) return;
  run_file_->end(what);
  run_file_->write_or_warn();
}

std::string Training::how_to_go_on() const {
  if (!run_.deck.output.checkpoints) return "output.checkpoints = false kept nothing to go on from";
  if (options_.resume == "auto") return "start the same job again to go on";
  return fmt::format(
      "to go on start it again without --resume{}",
      std::getenv("SLURM_JOB_ID") == nullptr ? "" : ", or requeue this job as it is");
}

void Training::finish_saving() {
  const BetweenSteps writing(between_steps_, "writing a checkpoint");
  saving_->finish();
}

void Training::write_results() {
  const BetweenSteps writing(between_steps_, "writing the results");
  comm::together(crew_, [&] {
    if (leader_) run_file_->write();
  });
}

void Training::write_trace() {
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

}  // namespace brume::app
