#include "files.hpp"
#include "io/checkpoint.hpp"
#include "manifest.hpp"

namespace brume::io {

namespace fs = std::filesystem;

std::optional<fs::path> set_aside(const fs::path& run_directory,
                                  std::optional<std::int64_t> resumed_step) {
  const fs::path checkpoints = run_directory / "checkpoints";
  std::error_code missing;
  std::vector<fs::path> leaving;
  if (fs::exists(checkpoints, missing))
    for (const std::int64_t later : steps_in(checkpoints))
      if (!resumed_step || later > *resumed_step)
        leaving.push_back(step_directory("checkpoints", later));
  for (const char* name : {"steps", "run.h5", "metrics.jsonl", "tensorboard"})
    if (resumed_step.value_or(0) == 0 && fs::exists(run_directory / name, missing))
      leaving.emplace_back(name);
  if (leaving.empty()) return std::nullopt;

  return set_aside(run_directory, "previous", leaving);
}

}  // namespace brume::io
