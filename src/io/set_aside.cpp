#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "files.hpp"
#include "io/checkpoint.hpp"
#include "io/run_file.hpp"
#include "manifest.hpp"
#include "step_directories.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

/// The run that a file names; nothing where it is damaged, missing, or of an older version.
template <typename Read>
std::string run_in(Read&& read) {
  try {
    return read();
  } catch (const Error&) {
    return {};
  }
}

/// The same of metrics.jsonl, whose first line says it.
std::string run_of_log(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  const auto object = nlohmann::json::parse(line, nullptr, false);
  const bool named = object.is_object() && object.contains("run") && object["run"].is_string();
  return named ? object["run"].get<std::string>() : std::string();
}

}  // namespace

std::optional<fs::path> set_aside(const fs::path& run_directory,
                                  std::optional<std::int64_t> resumed_step,
                                  const std::string& run) {
  const fs::path checkpoints = run_directory / "checkpoints";
  const auto is_others = [&](const std::string& found) {
    return !run.empty() && !found.empty() && found != run;
  };
  const bool others_log = is_others(run_of_log(run_directory / "metrics.jsonl"));
  const bool others_file =
      is_others(run_in([&] { return read_run_file(run_directory / "run.h5").description.run; }));

  std::error_code missing;
  std::vector<fs::path> leaving;
  if (fs::exists(checkpoints, missing))
    for (const std::int64_t step : steps_in(checkpoints)) {
      const fs::path one = step_directory(checkpoints, step);
      const bool later = !resumed_step || step > *resumed_step;
      // Manifests are long: only the others' metrics make them worth a look.
      if (later || ((others_log || others_file) &&
                    is_others(run_in([&] { return read_manifest(one).info.run; }))))
        leaving.push_back(step_directory("checkpoints", step));
    }
  const bool anew = resumed_step.value_or(0) == 0;
  const auto leave = [&](const char* name, bool leaves) {
    if (leaves && fs::exists(run_directory / name, missing)) leaving.emplace_back(name);
  };
  leave("steps", anew || others_file);
  leave("run.h5", anew || others_file);
  leave("reference.bin", anew || others_file);
  leave("metrics.jsonl", anew || others_log);
  leave("tensorboard", anew || others_log);
  if (leaving.empty()) return std::nullopt;

  return set_aside(run_directory, "previous", leaving);
}

}  // namespace brume::io
