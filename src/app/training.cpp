/// @file The training before its first step: prediction, memory, the first weights, files of
/// results.
#include "training.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "planning.hpp"
#include "resume.hpp"
#include "training_job.hpp"
#include "verify_plan.hpp"

namespace brume::app {

int Training::run() {
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

void Training::predict() {
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

double Training::simulate(const std::vector<schedule::Program>& programs) {
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
  log::info("{} parameters{}, {} tokens to train on; predicted step time {}{}",
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

double Training::predict_evaluation() {
  const std::vector<schedule::Program> programs =
      schedule::compile_all(run_.plan, run_.model, {.mode = schedule::Mode::evaluate});
  const schedule::Simulation simulation =
      schedule::simulate(programs, run_.plan, run_.model, *run_.machine);
  predicted_evaluation_ = timelines(programs, simulation).front();
  return simulation.iteration_s;
}

void Training::verify_given() {
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

void Training::start_engine() {
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
  load_first_weights();
  open_results();
  saving_->open(*engine_);
  recovery_.emplace(run_.deck, run_.model, run_.data_text, crew_, *engine_, *saving_);
  checks_.emplace(run_.plan, run_.deck.training.compare_replicas_every, *engine_, crew_);
}

void Training::load_first_weights() {
  session_.begin_phase("reading the first weights", still_limit_s(run_.deck));
  if (leader_)
    log::debug("threads: {} a rank, because {} ranks share this node's {} cores", threads_,
               session_.ranks_per_node(), device::this_processor().given_cores);
  if (const device::Description device = device::describe_device(); leader_ && device.memory_bytes)
    log::info("{}: {} of {} are taken, this rank's arena among them", device.name,
              format_bytes(double(device.memory_bytes - device.free_bytes)),
              format_bytes(double(device.memory_bytes)));
  if (run_.resume)
    load(*run_.resume, run_.data_text, run_.model, *engine_, crew_);
  else if (run_.first_weights)
    load_weights(*run_.first_weights, run_.model, engine_->slabs(), crew_);
  if (run_.first_adapter) load_adapter(*run_.first_adapter, engine_->slabs(), crew_);
}

void Training::open_results() {
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
}

int train(const RunOptions& options, const Prepared& prepared, comm::Session& session,
          comm::Communicator& crew, Signals& signals, Clock::time_point start) {
  return Training(options, prepared, session, crew, signals, start).run();
}

}  // namespace brume::app
