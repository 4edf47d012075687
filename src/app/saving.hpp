/// @file The checkpoints of a training: when one is due, what it costs, and what happens where the
/// disk fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/agree.hpp"
#include "comm/session.hpp"
#include "engine/engine.hpp"
#include "io/checkpoint.hpp"
#include "io/checkpoint_clock.hpp"
#include "io/run_file.hpp"
#include "prepared.hpp"
#include "schedule/program.hpp"

namespace brume::app {

/// What the plan's ranks take of host memory [rank] [bytes].
struct HostBytes {
  std::vector<std::int64_t> arenas;     ///< from the first step to the last
  std::vector<std::int64_t> trained;    ///< that each writes, and so of a copy of it
  std::vector<std::int64_t> constant;   ///< that it writes besides, where no file has them
  std::vector<std::int64_t> most_copy;  ///< that deck and plan leave room for
};

/// By rank 0; the others give no Programs. Collective.
HostBytes reckon_host_bytes(const std::vector<schedule::Program>& programs, const Prepared& run,
                            comm::Communicator& crew);

/// One of each rank of the plan. A checkpoint that cannot be written is tried once more, the last
/// one at once, any other with the next one; the second failure in a row ends the job. All that is
/// not const is collective.
class Saving {
 public:
  /// Before any rank has taken memory: finds whether a node has enough for what all its ranks will
  /// take with copies of checkpoints; if not they take no copies, and training waits for the disk.
  /// Reckons how long a checkpoint takes. `run` and `crew` must outlive the object.
  Saving(const Prepared& run, const comm::Session& session, comm::Communicator& crew,
         const HostBytes& bytes);

  const std::vector<std::int64_t>& copy_bytes() const { return copy_bytes_; }  ///< [rank]
  std::int64_t beside_bytes() const;  ///< that this rank takes beside its plan, with libraries
  /// How long it takes until a last one is on the disk, after the one under way.
  /// @param due  yet another one begins before it
  double last_ends_after_s(bool due) const;
  double limit_s() const { return limit_s_; }  ///< beyond which the disk counts as broken

  /// Makes the folder, and removes what a killed job left in it. `engine`, whose state will be
  /// written, must outlive the object. @throws AgreedError(storage)
  void open(engine::Engine& engine);

  void start_clock();
  bool due() const;  ///< by steps or time, as this rank sees it
  double longest_write_s() const { return writer_->longest_write_s(); }
  void note_write_s(double s) { write_s_ = s; }  ///< what the slowest rank has measured

  /// Begins to write one of the engine as it is. @throws AgreedError(storage)
  void write(const io::RunDescription& description, std::optional<double> valid_loss);

  /// Takes note of a checkpoint that the job has just opened. @see io::CheckpointWriter
  void trust(const io::CheckpointInfo& checkpoint) { writer_->trust(checkpoint); }

  /// Waits for the one under way, after which others will come. @throws AgreedError(storage)
  void settle();

  /// Waits for the last one. @throws AgreedError(storage)
  void finish();

 private:
  std::int64_t copy_that_fits(const HostBytes& bytes) const;
  void start();
  void forgive_once(const comm::AgreedError& error, const char* next);

  const Prepared& run_;
  comm::Communicator& crew_;
  engine::Engine* engine_ = nullptr;  ///< from open() on
  std::vector<std::int64_t> copy_bytes_;
  std::int64_t max_copy_bytes_ = 0;
  double write_s_ = 0.0;  ///< that one takes: as expected, then as measured
  double limit_s_ = 0.0;
  std::optional<io::CheckpointWriter> writer_;
  std::optional<io::CheckpointClock> clock_;
  io::CheckpointInfo last_;
  std::optional<std::chrono::steady_clock::time_point> begun_;  ///< when writing last_ began
  bool failed_ = false;  ///< the one before could not be written at first
};

}  // namespace brume::app
