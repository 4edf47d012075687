/// @file Which checkpoints stay, and the removal of others.
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint_writer.hpp"
#include "comm/agree.hpp"
#include "manifest.hpp"
#include "step_directories.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

}  // namespace

void CheckpointWriter::Impl::discard() {
  std::error_code error;
  if (in_place) {
    fs::rename(final_name(), final_name().string() + ".old.tmp", error);
    fs::rename(temporary(), final_name(), error);  // what had the name before, if anything
  }
  remove_unfinished_steps(root);
}

/// Steps whose checkpoints stay however old they are.
std::set<std::int64_t> CheckpointWriter::Impl::lasting() const {
  std::set<std::int64_t> steps;
  double least = std::numeric_limits<double>::infinity();
  std::int64_t best = -1;
  for (const std::int64_t step : steps_in(root)) {
    if (retention.every > 0 && step % retention.every == 0) steps.insert(step);
    if (!retention.best) continue;
    try {
      const std::optional<double> loss = read_manifest(step_directory(root, step)).info.valid_loss;
      if (loss && *loss < least) least = *loss, best = step;
    } catch (const std::exception&) {
      // What cannot be read is not the best; it is named where it is proven.
    }
  }
  if (best >= 0) steps.insert(best);
  return steps;
}

/// The newest generation of which rank 0 must know whether it is whole to keep as many as it is to;
/// -1: none.
std::int64_t CheckpointWriter::Impl::next_to_prove(const std::set<std::int64_t>& damaged) const {
  int kept = 0;
  for (const std::int64_t step : steps_in(root)) {
    if (step > info.step || damaged.contains(step)) continue;
    if (kept == retention.last) break;
    if (!proven.contains(step)) return step;
    ++kept;
  }
  return -1;
}

/// Removes all but the one just proven, the newest whole ones before it, and those that last.
/// Collective: all ranks check an older one, as one of them would need hours for it.
void CheckpointWriter::Impl::retain() {
  proven.insert(info.step);
  std::set<std::int64_t> damaged;
  const auto next = [&] {
    return comm::broadcast(*comm, rank() == 0 ? std::to_string(next_to_prove(damaged)) : "", 0);
  };
  for (std::int64_t step; (step = std::stoll(next())) >= 0;) try {
      const CheckpointInfo found = open_checkpoint(*comm, step_directory(root, step));
      if (found.step != step)
        throw comm::AgreedError(Failure::storage, "it holds step {}", found.step);
      proven.insert(step);
    } catch (const comm::AgreedError& error) {
      damaged.insert(step);
      if (rank() != 0) continue;
      log::warn("checkpoint of step {} is removed: {}", step, error.what());
      remove(step);
    }
  if (rank() != 0) return;
  const std::set<std::int64_t> stay = lasting();
  int kept = 0;
  for (const std::int64_t step : steps_in(root))
    if (step <= info.step && ++kept > retention.last && !stay.contains(step)) remove(step);
  remove_unfinished_steps(root);
}

/// Removes a generation, which is renamed first so that a kill leaves no half of it.
void CheckpointWriter::Impl::remove(std::int64_t step) {
  const fs::path path = step_directory(root, step);
  std::error_code error;
  fs::rename(path, path.string() + ".old.tmp", error);
  if (error) log::warn("{}: cannot be removed: {}", path.string(), error.message());
}

}  // namespace brume::io
