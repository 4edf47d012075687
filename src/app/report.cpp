/// @file The verb `report`.
#include "report/report.hpp"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "advice.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "planning.hpp"
#include "verbs.hpp"

namespace brume::app {

int report(const ReportOptions& options) {
  std::vector<report::Run> runs;
  for (const std::string& directory : options.runs) {
    runs.push_back(report::read_run(directory));
    runs.back().changes = changes(runs.back());
  }
  if (options.text) {
    print(report::text(runs, terminal::columns(STDOUT_FILENO)));
    return 0;
  }
  const std::filesystem::path path =
      options.output.empty() ? std::filesystem::path(options.runs.front()) / "report.html"
                             : std::filesystem::path(options.output);
  write_file(path, report::html(runs));
  log::info("wrote {}", path.string());
  return 0;
}

}  // namespace brume::app
