/// @file Checkpoints: one HDF5 file a rank, a manifest with hashes, committed by a rename. Values
/// that no step changes have files of their own, which later checkpoints link to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/progress.hpp"
#include "comm/communicator.hpp"
#include "engine/engine.hpp"

namespace brume::io {

/// Description of a checkpoint.
struct CheckpointInfo {
  std::int64_t step = 0;          ///< steps done
  std::int64_t samples = -1;      ///< samples of these steps; -1: an older checkpoint lacks it
  engine::LossScaling scaling{};  ///< scaling of the next step
  std::int64_t updates = -1;      ///< updates of the weights; -1: an older checkpoint lacks it
  std::map<std::string, std::int64_t> missed{};  ///< see engine::Progress
  /// Validation loss of these weights [nat/token], if measured.
  std::optional<double> valid_loss{};
  std::string run{};      ///< its name, as RunDescription has it; empty: an older checkpoint
  std::string job{};      ///< job of the batch system that wrote it; empty: none
  std::string data_text;  ///< identity of the data; empty: an older one lacks it
  std::string deck_text;
  std::string plan_text;  ///< empty, as the next one: weights that came from elsewhere
  std::string profile_text;
  std::string model_text;  ///< sizes of the model, which must not change
  std::filesystem::path directory;
  int ranks = 0;  ///< number of ranks that wrote it
  // Known when read.
  std::string identity{};                             ///< another one for another content
  std::vector<std::string> files{};                   ///< names in `directory`
  std::set<std::string> trained{};                    ///< parameters of whose moments it has some
  std::map<std::string, model::Precision> formats{};  ///< storage of the weights, by parameter
};

/// Bytes of a rank's owned slabs in a checkpoint: of parameters that training changes, of which it
/// may hold a copy, and of the others.
struct OwnedBytes {
  std::int64_t trained = 0, constant = 0;
};
/// @param constants  names of the others
OwnedBytes owned_bytes(const std::vector<engine::Slab>& slabs,
                       const std::set<std::string>& constants = {});

/// Whether a rank that may hold `max_copy_bytes` beside what it trains with copies what it writes.
inline bool takes_copy(std::int64_t owned_bytes, std::int64_t max_copy_bytes) {
  return owned_bytes <= max_copy_bytes;
}

/// Values of slab n from its element `first` on, as many as `room` holds: there, or where they lie.
using GetValues =
    std::function<std::span<const float>(std::size_t n, std::int64_t first, std::span<float> room)>;

/// The checkpoints that stay when a new one has been verified.
struct Retention {
  int last = 2;       ///< so many of the newest whole ones
  int every = 0;      ///< steps that are multiples of it stay; 0: none
  bool best = false;  ///< the one of the least validation loss
};

/// Writes directory/checkpoints/step-N: every rank's owned slabs into step-N.tmp/rank-R.h5 (its
/// frame made by HDF5 in memory, then own write and fsync), hashes gathered, manifest.json by rank
/// 0, rename, fsync of the parent; then removes those that need not stay. A rank that may hold a
/// copy of its slabs writes it by a background thread while training goes on; another one writes
/// from where they lie and holds training up.
///
/// Constant parameters go to frozen-R.h5. A checkpoint with such files, or others that hold all of
/// these parameters and nothing else, gives them to the next one as hard links, which therefore is
/// as small as what training changes. Each checkpoint stays whole without the others.
class CheckpointWriter {
 public:
  /// @param world           split for the writer's own messages; collective
  /// @param max_copy_bytes  that this rank may hold beside what it trains with
  /// @param constants       names of all parameters that training does not change
  CheckpointWriter(std::filesystem::path directory, comm::Communicator& world,
                   std::int64_t max_copy_bytes = std::numeric_limits<std::int64_t>::max(),
                   Retention retention = {}, std::set<std::string> constants = {});
  ~CheckpointWriter();  ///< waits for a write under way

  /// Starts writing, or writes; waits first for an earlier write. Collective.
  /// @throws AgreedError(storage) on all ranks when the earlier write failed on any
  void start(const CheckpointInfo& info, const std::vector<engine::Slab>& slabs);

  /// Writes one whose values nobody holds: `get_values` is asked for them piece by piece, of owned
  /// slabs only. Collective. @throws AgreedError(storage), and what `get_values` throws
  void write(const CheckpointInfo& info, const std::vector<engine::Slab>& slabs,
             const GetValues& get_values);

  /// Waits until the checkpoint is committed. Collective. @throws AgreedError(storage)
  void finish();

  /// Takes note of a checkpoint that the job has just opened, and so checked, and whose weights it
  /// trains. Not while one is written.
  void trust(const CheckpointInfo& checkpoint);

  /// Longest finished write; 0: none has ended. A write of constants counts until another one ends.
  double longest_write_s() const;

  /// The newest step whose checkpoint this writer has found whole, as rank 0 knows while nothing is
  /// written; -1: none.
  std::int64_t newest_whole() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The newest checkpoint whose manifest and hashes verify; damaged ones are named in the log and
/// passed over. Those of the steps in `except` do not count. Collective: each rank checks a part of
/// the files.
/// @return nothing where there is no checkpoint
/// @throws AgreedError(storage) where there are some, but all are damaged
std::optional<CheckpointInfo> find_checkpoint(comm::Communicator& world,
                                              const std::filesystem::path& run_directory,
                                              std::set<std::int64_t> except = {});

/// Whether a run directory holds a checkpoint, whole or not; one that a job of this number of the
/// batch system wrote; whether `checkpoint` is one of those in it.
bool has_checkpoint(const std::filesystem::path& run_directory);
bool has_checkpoint_of(const std::filesystem::path& run_directory, const std::string& job);
bool is_in(const std::filesystem::path& run_directory, const CheckpointInfo& checkpoint);

/// Opens one checkpoint directory and checks all of it. Collective, in the same way.
/// @throws AgreedError(storage) naming what is damaged
CheckpointInfo open_checkpoint(comm::Communicator& world, const std::filesystem::path& checkpoint);

/// Reads the values of a checkpoint that the job has just opened, and so checked, whatever plan
/// wrote them.
class CheckpointReader {
 public:
  /// @throws Error(storage)
  explicit CheckpointReader(const CheckpointInfo& info);
  ~CheckpointReader();

  /// Opens the files now, half as many as the process may have open, for a reader that takes long:
  /// a job that goes on may remove them meanwhile. @throws Error(storage)
  void hold();

  /// Fills all slabs, owned or not. Each tensor must be covered completely; where the checkpoint
  /// holds neither moment of a parameter, both become zero. @throws Error(storage)
  ///
  /// @param progress  told of each element that was read
  void fill(std::vector<engine::Slab>& slabs, Progress* progress = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Fills all slabs as CheckpointReader does. @throws Error(storage)
void load_slabs(const CheckpointInfo& info, std::vector<engine::Slab>& slabs,
                Progress* progress = nullptr);

/// Moves what a run that resumed after `resumed_step` does not continue, or one that starts anew,
/// to previous-K of the run directory, K the first free number: checkpoints of later steps, or all,
/// and run.h5 too where no step is done. So do files and checkpoints of another run than `run`,
/// unless it is empty. Nothing is deleted.
///
/// @return  the folder, if anything was moved
/// @throws Error(storage)
std::optional<std::filesystem::path> set_aside(const std::filesystem::path& run_directory,
                                               std::optional<std::int64_t> resumed_step,
                                               const std::string& run = {});

}  // namespace brume::io
