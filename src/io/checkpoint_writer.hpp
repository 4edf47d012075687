/// @file A checkpoint in the making, by all ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "constant_files.hpp"
#include "files.hpp"
#include "io/checkpoint.hpp"
#include "step_directories.hpp"

namespace brume::io {

struct CheckpointWriter::Impl {
  /// A file of a checkpoint that this rank writes.
  struct OwnFile {
    std::string name;
    std::vector<engine::Slab> slabs;
    std::size_t first_slab;  ///< of these, among all that are written
    Digest digest = {};
  };

  std::filesystem::path root;  ///< .../checkpoints
  std::unique_ptr<comm::Communicator> comm;
  std::int64_t max_copy_bytes = 0;
  Retention retention;
  std::set<std::string> constants;
  std::optional<ConstantFiles> linkable;  ///< rank 0: files for the next checkpoint
  std::thread thread;
  std::exception_ptr failure;     ///< of the last write, once its thread has ended
  std::set<std::int64_t> proven;  ///< steps this writer has read back and found whole

  // What is being written.
  CheckpointInfo info;
  bool links = false;               ///< constants are linked to, not written
  std::vector<engine::Slab> slabs;  ///< that this rank writes, of all its files
  std::vector<OwnFile> files;       ///< of this rank
  GetValues get_values;
  std::vector<std::vector<float>> copies;  ///< [slab], kept: new memory takes longer than copying
  bool in_place = false;                   ///< rank 0: step-N has been renamed
  std::atomic<double> longest_write_s = 0.0;
  bool longest_has_constants = false;

  int rank() const { return comm->rank(); }
  std::filesystem::path final_name() const { return step_directory(root, info.step); }
  std::filesystem::path temporary() const { return final_name().string() + ".tmp"; }

  void begin(const CheckpointInfo& next, const std::vector<engine::Slab>& all);
  GetValues copied();
  void wait();
  void run() noexcept;
  void write();
  void commit();
  void prepare();
  void write_mine();
  void publish(std::vector<std::string> entries);
  void prove() const;
  void find_linkable(const std::filesystem::path& checkpoint);
  void discard();
  void retain();
  std::int64_t next_to_prove(const std::set<std::int64_t>& damaged) const;
  std::set<std::int64_t> lasting() const;
  void remove(std::int64_t step);
};

}  // namespace brume::io
