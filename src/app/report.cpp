/// @file The verb `report`.
#include "report/report.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/files.hpp"
#include "base/log.hpp"
#include "verbs.hpp"

namespace brume::app {

int report(const ReportOptions& options) {
  std::vector<report::Run> runs;
  for (const std::string& directory : options.runs) runs.push_back(report::read_run(directory));
  if (options.text) {
    fmt::print("{}", report::text(runs));
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
