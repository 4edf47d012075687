#include <fmt/format.h>

#include "base/error.hpp"
#include "files.hpp"
#include "io/checkpoint.hpp"
#include "manifest.hpp"

namespace brume::io {

namespace fs = std::filesystem;

std::optional<fs::path> set_aside(const fs::path& run_directory, std::int64_t step) {
  const fs::path checkpoints = run_directory / "checkpoints";
  std::error_code missing;
  std::vector<fs::path> leaving;
  if (fs::exists(checkpoints, missing))
    for (const std::int64_t later : steps_in(checkpoints))
      if (step == 0 || later > step) leaving.push_back(step_directory("checkpoints", later));
  for (const char* name : {"steps", "run.h5"})
    if (step == 0 && fs::exists(run_directory / name, missing)) leaving.emplace_back(name);
  if (leaving.empty()) return std::nullopt;

  int number = 1;
  while (fs::exists(run_directory / fmt::format("previous-{}", number), missing)) ++number;
  const fs::path folder = run_directory / fmt::format("previous-{}", number);
  make_directory(folder / "checkpoints");
  for (const fs::path& name : leaving) {
    std::error_code error;
    fs::rename(run_directory / name, folder / name, error);
    require(!error, Failure::storage, "{}: cannot be moved to {}: {}",
            (run_directory / name).string(), folder.string(), error.message());
  }
  sync_directory(run_directory);
  return folder;
}

}  // namespace brume::io
