#include "saving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "device/memory.hpp"
#include "model/model.hpp"

namespace brume::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double usual_disk_bytes_per_s = 100e6;   ///< that a node writes to
constexpr double slowest_disk_bytes_per_s = 10e6;  ///< below it counts as broken
constexpr double least_write_limit_s = 300.0;      ///< however little there is to write
/// What buffers of MPI, HDF5 and the like of a rank may come to take once it trains.
constexpr std::int64_t library_bytes = std::int64_t{32} << 20;

}  // namespace

Saving::Saving(const Prepared& run, const comm::Session& session, comm::Communicator& crew,
               engine::Engine& engine, std::int64_t max_copy_bytes)
    : run_(run), crew_(crew), engine_(engine), max_copy_bytes_(max_copy_bytes) {
  const auto ranks = std::size_t(crew.size()), rank = std::size_t(crew.rank());
  own_bytes_ = run.deck.output.checkpoints ? io::owned_bytes(engine.slabs()) : std::int64_t{0};
  std::vector<double> all(2 * ranks, 0.0);
  all[rank] = double(own_bytes_);
  all[ranks + rank] = double(copy_that_fits());
  crew.all_reduce(all, comm::Reduction::sum);
  const auto copies = all.begin() + std::ptrdiff_t(ranks);
  copy_bytes_.assign(copies, all.end());
  const double node_bytes = *std::max_element(all.begin(), copies) * session.ranks_per_node();
  write_s_ = node_bytes / usual_disk_bytes_per_s;
  limit_s_ = least_write_limit_s + node_bytes / slowest_disk_bytes_per_s;
  if (crew.rank() == 0 && run.deck.output.checkpoints)
    log::debug("checkpoints: this rank writes {}; {}", format_bytes(double(own_bytes_)),
               copy_bytes_[0] > 0 ? "training goes on beside a copy of it"
                                  : "training waits, because there is no memory for a copy");
}

/// Beside arenas, which are there by now, and what libraries will take.
std::int64_t Saving::copy_that_fits() {
  const std::int64_t mine = io::takes_copy(own_bytes_, max_copy_bytes_) ? own_bytes_ : 0;
  const std::int64_t left = device::available_bytes();
  std::int64_t needed = 0;
  bool first_of_node = true;
  const std::vector<std::string> all = crew_.gather(fmt::format("{} {}", mine, host_name()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::size_t space = all[rank].find(' ');
    if (all[rank].substr(space + 1) != host_name()) continue;
    needed += std::stoll(all[rank]) + library_bytes;
    first_of_node = first_of_node && rank >= std::size_t(crew_.rank());
  }
  if (mine == 0 || left < 0 || needed <= left) return mine;
  max_copy_bytes_ = -1;
  if (first_of_node)
    log::warn(
        "copies of checkpoints and libraries would take {} of {}, which has {} left: "
        "training waits while one is written",
        format_bytes(double(needed)), host_name(), format_bytes(double(left)));
  return 0;
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
  if (crew_.rank() == 0 && std::isfinite(clock_->interval_s()))
    log::debug("checkpoints: this one held training up for {}, the next one is due in {}",
               format_seconds(stood_s), format_seconds(clock_->interval_s()));
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
