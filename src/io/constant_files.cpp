#include "constant_files.hpp"

#include <algorithm>
#include <cerrno>
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

/// @throws Error(storage)
struct stat status_of(const fs::path& file) {
  struct stat status = {};
  require(::lstat(file.c_str(), &status) == 0, Failure::storage, "{}: {}", file.string(),
          std::system_category().message(errno));
  return status;
}

/// Whether a file is the one of before, and has not been written to.
bool is_same(const struct stat& now, const struct stat& before) {
  return now.st_dev == before.st_dev && now.st_ino == before.st_ino &&
         now.st_size == before.st_size && now.st_mtim.tv_sec == before.st_mtim.tv_sec &&
         now.st_mtim.tv_nsec == before.st_mtim.tv_nsec;
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
      const fs::path path = checkpoint / manifest.info.files[i];
      all.files_.push_back({path, status_of(path)});
    }
    const auto linkable = [&](const File& file) { return can_link(file.path, folder); };
    if (!std::ranges::all_of(all.files_, linkable)) return std::nullopt;
    return all;
  } catch (const Error& error) {
    log::debug("no checkpoint links to its files: {}", error.what());
    return std::nullopt;
  }
}

void ConstantFiles::link_in(const fs::path& checkpoint) const {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const fs::path link = checkpoint / constants_file_name(int(i));
    std::error_code error;
    fs::create_hard_link(files_[i].path, link, error);
    require(!error, Failure::storage, "{}: no hard link to it can be made: {}",
            files_[i].path.string(), error.message());
    require(is_same(status_of(link), files_[i].status), Failure::storage,
            "{}: was replaced or changed", files_[i].path.string());
  }
}

}  // namespace brume::io
