/// @file manifest.json: what belongs to a checkpoint, with hashes. A checkpoint is complete when it
/// has one that verifies.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "files.hpp"
#include "io/checkpoint.hpp"

namespace brume::io {

struct Manifest {
  CheckpointInfo info;
  std::vector<Digest> files;         ///< [file], named by info.files
  std::vector<engine::Slab> firsts;  ///< first slab of each parameter and kind
};

std::string rank_file_name(int rank);        ///< "rank-3.h5"
std::string constants_file_name(int index);  ///< "frozen-3.h5"
inline constexpr const char* manifest_name = "manifest.json";

/// Slabs as JSON, and back, without data. @throws Error(storage)
std::string slabs_text(const std::vector<engine::Slab>& slabs);
std::vector<engine::Slab> parse_slabs(std::string_view text);

/// A manifest's entry of a file. @throws Error(storage)
std::string entry_text(const std::string& name, const Digest& digest,
                       const std::vector<engine::Slab>& slabs);

/// The JSON, with the hash of its own content in it.
/// @param entries  [file], by entry_text
std::string manifest_text(const CheckpointInfo& info, const std::vector<std::string>& entries);

/// The same with the first slab of each parameter and kind only: it does not grow with ranks.
std::string brief_text(const Manifest& manifest);

/// Told of slab n of a file, which has no data.
using TakeSlab = std::function<void(int file, std::size_t n, engine::Slab slab)>;

/// Checks a manifest's own hash, not those of the files. Keeps no slabs: those of many ranks take
/// more memory than a rank has use for. @throws Error(storage)
Manifest parse_manifest(std::string_view text, const std::filesystem::path& checkpoint,
                        const TakeSlab& take = {});
Manifest read_manifest(const std::filesystem::path& checkpoint);
Bytes manifest_bytes(const std::filesystem::path& checkpoint);  ///< @throws Error(storage)

/// Reads a file, see `digest_of_file`, and compares it with what the manifest says.
/// @throws Error(storage)
void verify_file(const std::filesystem::path& file, const Digest& expected, bool from_disk = false);

}  // namespace brume::io
