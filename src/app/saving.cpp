#include "saving.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"
#include "base/log.hpp"
#include "model/model.hpp"

namespace brume::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double usual_disk_bytes_per_s = 100e6;   ///< that a node writes to
constexpr double slowest_disk_bytes_per_s = 10e6;  ///< below it counts as broken
constexpr double least_write_limit_s = 300.0;      ///< however little there is to write

}  // namespace

Saving::Saving(const Prepared& run, const comm::Session& session, comm::Communicator& crew,
               engine::Engine& engine, std::int64_t max_copy_bytes)
    : run_(run), crew_(crew), engine_(engine), max_copy_bytes_(max_copy_bytes) {
  const auto ranks = std::size_t(crew.size()), rank = std::size_t(crew.rank());
  const std::int64_t bytes =
      run.deck.output.checkpoints ? io::owned_bytes(engine.slabs()) : std::int64_t{0};
  std::vector<double> all(2 * ranks, 0.0);
  all[rank] = double(bytes);
  all[ranks + rank] = io::takes_copy(bytes, max_copy_bytes) ? double(bytes) : 0.0;
  crew.all_reduce(all, comm::Reduction::sum);
  const auto copies = all.begin() + std::ptrdiff_t(ranks);
  copy_bytes_.assign(copies, all.end());
  const double node_bytes = *std::max_element(all.begin(), copies) * session.ranks_per_node();
  write_s_ = node_bytes / usual_disk_bytes_per_s;
  limit_s_ = least_write_limit_s + node_bytes / slowest_disk_bytes_per_s;
}

io::CheckpointWriter& Saving::open() {
  const deck::OutputKeys& output = run_.deck.output;
  return writer_.emplace(output.directory, crew_, max_copy_bytes_,
                         io::Retention{output.keep_last, output.keep_every, output.keep_best});
}

void Saving::start_clock() {
  const deck::OutputKeys& output = run_.deck.output;
  clock_.emplace(io::CheckpointIntervals{.steps = output.checkpoint_every,
                                         .minutes = output.checkpoint_minutes,
                                         .mtbf_hours = output.mtbf_hours},
                 write_s_, Clock::now());
}

bool Saving::due() const { return clock_->due(engine_.steps_done(), Clock::now()); }

void Saving::write(const io::RunDescription& description, std::optional<double> valid_loss) {
  const Clock::time_point begin = Clock::now();
  if (run_.deck.output.checkpoints) {
    engine_.flush();
    const engine::Progress progress = engine_.progress();
    last_ = {.step = progress.steps,
             .samples = progress.samples,
             .scaling = progress.scaling,
             .valid_loss = valid_loss,
             .data_text = run_.data_text,
             .deck_text = description.deck_text,
             .plan_text = description.plan_text,
             .profile_text = description.profile_text,
             .model_text = model::text(run_.model),
             .directory = {},
             .ranks = crew_.size()};
    start();
  }
  const double stood_s = std::chrono::duration<double>(Clock::now() - begin).count();
  clock_->wrote(stood_s, write_s_, Clock::now());
}

/// What the writer throws here may be the failure of the one before.
void Saving::start() {
  try {
    writer_->start(last_, engine_.slabs());
    failed_ = false;
  } catch (const comm::AgreedError& error) {
    forgive_once(error);
    writer_->start(last_, engine_.slabs());
  }
}

void Saving::finish() {
  try {
    writer_->finish();
  } catch (const comm::AgreedError& error) {
    forgive_once(error);
    writer_->start(last_, engine_.slabs());
    writer_->finish();
  }
}

/// Only while `error` is handled. @throws it, unless it is the disk's first failure in a row
void Saving::forgive_once(const comm::AgreedError& error) {
  if (failed_ || error.failure() != Failure::storage) throw;
  failed_ = true;
  if (crew_.rank() == 0)
    log::warn("a checkpoint was not written, the one before it is whole: {}; now once more",
              error.what());
}

}  // namespace brume::app
