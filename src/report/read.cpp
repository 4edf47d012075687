#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
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
          .samples = io::samples(directory),
          .trace = {},
          .changes = {}};
  run.plan = plan::parse(run.description.plan_text, file.string());
  for (const io::RunPart& part : content.parts)
    for (io::Row& row : io::read_part(directory, part)) run.rows.push_back(std::move(row));
  for (io::Row& row : content.rows) run.rows.push_back(std::move(row));
  const fs::path trace = directory / "trace.json";
  const std::uintmax_t bytes = fs::file_size(trace, missing);
  // Many ranks write more than a report can take.
  if (!missing && bytes > std::uintmax_t(io::max_trace_bytes))
    log::warn(
        "{}: is too long for a report: found {}, expected at most {}. The report has no "
        "timeline.",
        trace.string(), format_bytes(double(bytes)), format_bytes(io::max_trace_bytes));
  else if (fs::exists(trace, missing))
    run.trace = io::read_trace(trace);
  return run;
}

}  // namespace brume::report
