#include <utility>

#include "base/error.hpp"
#include "report/report.hpp"

namespace brume::report {

namespace fs = std::filesystem;

Run read_run(const fs::path& directory) {
  const fs::path file = directory / "run.h5";
  std::error_code missing;
  require(fs::exists(file, missing), Failure::input, "{}: is no run directory: it has no run.h5",
          directory.string());
  io::RunContent content = io::read_run_file(file);
  Run run{.name = directory.lexically_normal().string(),
          .description = std::move(content.description),
          .plan = {},
          .rows = {},
          .evaluations = std::move(content.evaluations),
          .events = io::events(directory),
          .trace = {},
          .changes = {}};
  run.plan = plan::parse(run.description.plan_text, file.string());
  for (const io::RunPart& part : content.parts)
    for (io::Row& row : io::read_part(directory, part)) run.rows.push_back(std::move(row));
  for (io::Row& row : content.rows) run.rows.push_back(std::move(row));
  if (fs::exists(directory / "trace.json", missing))
    run.trace = io::read_trace(directory / "trace.json");
  return run;
}

}  // namespace brume::report
