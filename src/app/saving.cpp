#include "saving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>

#include "base/error.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "model/model.hpp"
#include "planning.hpp"

namespace brume::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double slowest_disk_bytes_per_s = 10e6;  ///< below it counts as broken
constexpr double least_write_limit_s = 300.0;      ///< however little there is to write
/// What buffers of MPI, HDF5 and the like of a rank may come to take once it trains.
constexpr std::int64_t library_bytes = std::int64_t{32} << 20;
constexpr std::int64_t least_copy_bytes = std::int64_t{16} << 20;  ///< however little is left

}  // namespace

HostBytes reckon_host_bytes(const std::vector<schedule::Program>& programs, const Prepared& run,
                            comm::Communicator& crew) {
  const auto ranks = std::size_t(crew.size());
  const std::set<std::string> constants = model::frozen_names(run.model);
  std::vector<double> all(4 * ranks, 0.0);
  comm::together(crew, [&] {
    if (programs.empty()) return;
    const std::vector<std::int64_t> spare = spare_host_bytes(programs, run.plan, run.cluster);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const schedule::Program& program = programs[rank];
      all[rank] = double(program.arena_bytes[std::size_t(schedule::Tier::host)]);
      if (!device::on_device())
        all[rank] += double(program.arena_bytes[std::size_t(schedule::Tier::device)]);
      if (run.deck.output.checkpoints) {
        const io::OwnedBytes owned =
            io::owned_bytes(engine::slabs_of(program, run.plan, run.model), constants);
        all[ranks + rank] = double(owned.trained);
        all[2 * ranks + rank] = double(owned.constant);
      }
      all[3 * ranks + rank] = double(std::max(spare[rank], least_copy_bytes));
    }
  });
  crew.all_reduce(all, comm::Reduction::sum);
  const auto part = [&](std::size_t i) {
    const auto first = all.begin() + std::ptrdiff_t(i * ranks);
    return std::vector<std::int64_t>(first, first + std::ptrdiff_t(ranks));
  };
  return {part(0), part(1), part(2), part(3)};
}

Saving::Saving(const Prepared& run, const comm::Session& session, comm::Communicator& crew,
               const HostBytes& bytes)
    : run_(run), crew_(crew) {
  const auto rank = std::size_t(crew.rank());
  std::vector<double> copies(std::size_t(crew.size()), 0.0);
  copies[rank] = double(copy_that_fits(bytes));
  crew.all_reduce(copies, comm::Reduction::sum);
  copy_bytes_.assign(copies.begin(), copies.end());
  const std::int64_t own_bytes = bytes.trained[rank];
  max_copy_bytes_ = copy_bytes_[rank] >= own_bytes ? bytes.most_copy[rank] : -1;
  double most_bytes = 0.0;  // that a rank writes
  for (std::size_t i = 0; i < bytes.trained.size(); ++i)
    most_bytes = std::max(most_bytes, double(bytes.trained[i] + bytes.constant[i]));
  const double node_bytes = most_bytes * session.ranks_per_node();
  write_s_ = io::usual_write_s(node_bytes);
  limit_s_ = least_write_limit_s + node_bytes / slowest_disk_bytes_per_s;
  if (crew.rank() == 0 && run.deck.output.checkpoints)
    log::debug("checkpoints: this rank writes {}{}; {}", format_bytes(double(own_bytes)),
               bytes.constant[rank] > 0 ? fmt::format(", once {} of frozen weights",
                                                      format_bytes(double(bytes.constant[rank])))
                                        : "",
               copy_bytes_[0] > 0 ? "training goes on while a copy is written"
                                  : "training waits, because there is no memory for a copy");
}

std::int64_t Saving::copy_that_fits(const HostBytes& bytes) const {
  const auto copy = [&](std::size_t rank) {
    return io::takes_copy(bytes.trained[rank], bytes.most_copy[rank]) ? bytes.trained[rank]
                                                                      : std::int64_t{0};
  };
  const std::int64_t left = device::available_bytes();
  const std::vector<std::string> hosts = crew_.gather(host_name());
  std::int64_t needed = 0;
  bool first_of_node = true;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != host_name()) continue;
    needed += bytes.arenas[rank] + library_bytes + copy(rank);
    first_of_node = first_of_node && rank >= std::size_t(crew_.rank());
  }
  const std::int64_t mine = copy(std::size_t(crew_.rank()));
  if (mine == 0 || left < 0 || needed <= left) return mine;
  if (first_of_node)
    log::warn(
        "the training with copies of checkpoints and libraries would take {} of {}, which has {} "
        "left: training waits while one is written",
        format_bytes(double(needed)), host_name(), format_bytes(double(left)));
  return 0;
}

std::int64_t Saving::beside_bytes() const { return library_bytes + copy_bytes_[crew_.rank()]; }

void Saving::open(engine::Engine& engine) {
  engine_ = &engine;
  const deck::OutputKeys& output = run_.deck.output;
  const std::set<std::string> frozen = model::frozen_names(run_.model);
  writer_.emplace(output.directory, crew_, max_copy_bytes_,
                  io::Retention{output.keep_last, output.keep_every, output.keep_best}, frozen);
  // An adapter of its own replaces values of that checkpoint, which may be frozen, too. Quantized
  // blocks have other values than the weights that they were made of.
  if (run_.first_adapter && std::ranges::any_of(frozen, [&](const std::string& name) {
        return run_.first_adapter->has(name);
      }))
    return;
  if (run_.resume)
    trust(*run_.resume);
  else if (run_.first_weights && run_.first_weights->checkpoint &&
           run_.model.quantization == Quantization::none)
    trust(*run_.first_weights->checkpoint);
}

void Saving::start_clock() {
  const deck::OutputKeys& output = run_.deck.output;
  clock_.emplace(io::CheckpointIntervals{.steps = output.checkpoint_every,
                                         .minutes = output.checkpoint_minutes,
                                         .mtbf_hours = output.job_mtbf_hours(run_.cluster.nodes())},
                 write_s_, Clock::now());
}

double Saving::last_ends_after_s(bool due) const {
  const double under_way_s =
      begun_ ? write_s_ - std::chrono::duration<double>(Clock::now() - *begun_).count() : 0.0;
  return std::max(under_way_s, 0.0) + (due ? 2.0 : 1.0) * write_s_;
}

bool Saving::due() const { return clock_->due(engine_->steps_done(), Clock::now()); }

void Saving::write(const io::RunDescription& description, std::optional<double> valid_loss) {
  const Clock::time_point begin = Clock::now();
  if (run_.deck.output.checkpoints) {
    engine_->flush();
    const engine::Progress progress = engine_->progress();
    last_ = {.step = progress.steps,
             .samples = progress.samples,
             .scaling = progress.scaling,
             .updates = progress.updates,
             .missed = progress.missed,
             .valid_loss = valid_loss,
             .run = description.run,
             .job = io::batch_job(),
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
    writer_->start(last_, engine_->slabs());
    failed_ = false;
  } catch (const comm::AgreedError& error) {
    forgive_once(error, "now once more");
    writer_->start(last_, engine_->slabs());
  }
  begun_ = Clock::now();
}

void Saving::settle() {
  try {
    writer_->finish();
  } catch (const comm::AgreedError& error) {
    forgive_once(error, "the next one must succeed");
  }
}

void Saving::finish() {
  try {
    writer_->finish();
  } catch (const comm::AgreedError& error) {
    forgive_once(error, "now once more");
    writer_->start(last_, engine_->slabs());
    writer_->finish();
  }
}

/// Only while `error` is handled. @throws it, unless it is the disk's first failure in a row
void Saving::forgive_once(const comm::AgreedError& error, const char* next) {
  if (failed_ || error.failure() != Failure::storage) throw;
  failed_ = true;
  if (crew_.rank() != 0) return;
  const std::int64_t whole = writer_->newest_whole();
  log::warn("a checkpoint was not written{}: {}; {}",
            whole < 0 ? "" : fmt::format(", that of step {} is whole", whole), error.what(), next);
}

}  // namespace brume::app
