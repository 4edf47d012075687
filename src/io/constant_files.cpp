#include "constant_files.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "manifest.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

/// Whether a folder may link to a file: file systems differ, and some know no hard links.
bool can_link(const fs::path& file, const fs::path& folder) {
  const fs::path trial = folder / "step-link.tmp";
  std::error_code error, gone;
  fs::remove(trial, gone);
  fs::create_hard_link(file, trial, error);
  fs::remove(trial, gone);
  return !error;
}

/// The slabs of each file that has constant ones alone.
/// @return nothing where another file has some, too, or some are missing
std::optional<std::map<int, std::vector<engine::Slab>>> constants_alone(
    const std::vector<std::pair<int, engine::Slab>>& slabs, const std::set<int>& mixed,
    const std::set<std::string>& constants) {
  std::map<int, std::vector<engine::Slab>> files;
  std::set<std::string> found;
  for (const auto& [file, slab] : slabs) {
    if (mixed.contains(file)) return std::nullopt;
    found.insert(slab.name);
    files[file].push_back(slab);
  }
  if (found != constants) return std::nullopt;
  return files;
}

}  // namespace

std::optional<ConstantFiles> ConstantFiles::find(const fs::path& checkpoint,
                                                 const std::set<std::string>& constants,
                                                 const fs::path& folder) {
  if (constants.empty()) return std::nullopt;
  std::vector<std::pair<int, engine::Slab>> slabs;  // file, constant slab
  std::set<int> mixed;                              // files that have others
  const auto take = [&](int file, std::size_t, engine::Slab slab) {
    if (slab.kind == "weight" && constants.contains(slab.name))
      slabs.emplace_back(file, std::move(slab));
    else
      mixed.insert(file);
  };
  try {
    const Manifest manifest = parse_manifest(as_text(manifest_bytes(checkpoint)), checkpoint, take);
    const auto files = constants_alone(slabs, mixed, constants);
    if (!files) return std::nullopt;
    ConstantFiles all;
    for (const auto& [index, held] : *files) {
      const auto i = std::size_t(index);
      all.entries_.push_back(
          entry_text(constants_file_name(int(all.files_.size())), manifest.files[i], held));
      all.files_.push_back(checkpoint / manifest.info.files[i]);
    }
    const auto linkable = [&](const fs::path& file) { return can_link(file, folder); };
    if (!std::ranges::all_of(all.files_, linkable)) return std::nullopt;
    return all;
  } catch (const Error& error) {
    log::debug("no checkpoint links to its files: {}", error.what());
    return std::nullopt;
  }
}

void ConstantFiles::link_in(const fs::path& checkpoint) const {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    std::error_code error;
    fs::create_hard_link(files_[i], checkpoint / constants_file_name(int(i)), error);
    require(!error, Failure::storage, "{}: no hard link to it can be made: {}", files_[i].string(),
            error.message());
  }
}

}  // namespace brume::io
