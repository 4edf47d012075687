/// @file manifest.json: what belongs to a checkpoint, with hashes. A checkpoint is complete when it
/// has one that verifies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "files.hpp"
#include "io/checkpoint.hpp"

namespace brume::io {

/// One file of a checkpoint.
struct RankEntry {
  Digest digest;
  std::vector<engine::Slab> slabs;  ///< in the file's order; without data
};

struct Manifest {
  CheckpointInfo info;
  std::vector<RankEntry> files;  ///< [rank]
};

std::string rank_file_name(int rank);  ///< "rank-3.h5"
inline constexpr const char* manifest_name = "manifest.json";

/// An entry as text and back, to gather it. @throws Error(storage)
std::string entry_text(const RankEntry& entry);
RankEntry parse_entry(const std::string& text);

/// The JSON, with the hash of its own content in it.
std::string manifest_text(const Manifest& manifest);

/// Reads a manifest and checks its own hash, not those of the files.
/// @throws Error(storage)
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Reads a rank's file, see `digest_of_file`, and compares it with the manifest.
/// @throws Error(storage)
void verify_file(const Manifest& manifest, int rank, bool from_disk = false);
/// The same with every `stride`-th file from `first` on.
void verify_files(const Manifest& manifest, int first = 0, int stride = 1);

/// N of a directory step-N; -1 when the name is another.
std::int64_t step_of(const std::filesystem::path& directory);

/// Steps of the directories step-N, newest first.
std::vector<std::int64_t> steps_in(const std::filesystem::path& checkpoints);

/// Removes what killed jobs and replaced generations leave: all step-*.tmp.
void remove_unfinished_steps(const std::filesystem::path& checkpoints);

/// Reads and verifies all of directory/step-N. @throws Error(storage)
Manifest open_step(const std::filesystem::path& checkpoints, std::int64_t step);
std::filesystem::path step_directory(const std::filesystem::path& checkpoints, std::int64_t step);

}  // namespace brume::io
