/// @file Runs as a page or as text: from run.h5, metrics.jsonl and trace.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "io/metrics_log.hpp"
#include "io/run_file.hpp"
#include "io/trace.hpp"
#include "plan/plan.hpp"

namespace brume::report {

/// Another plan that would be faster, by the times that were measured.
struct Change {
  std::string what;  ///< "one layer from stage 2 to stage 1"
  double gain;       ///< share of an iteration
  int stage = -1;    ///< stage that it relieves; -1: all
};

struct Run {
  std::string name;
  io::RunDescription description;
  plan::Plan plan;
  std::vector<io::Row> rows;  ///< rows of all steps
  std::vector<io::EvaluationRow> evaluations;
  std::vector<io::Event> events;
  std::vector<io::SampleRow> samples = {};
  io::Trace trace;  ///< trace of the last step; empty if the run wrote none
  /// The best first; nothing where no planner was asked.
  std::optional<std::vector<Change>> changes;
};

/// @throws Error(input) where the directory has no run.h5, or a file of it is damaged
Run read_run(const std::filesystem::path& directory);

/// One page without scripts that asks no network for anything: numbers and hints, curves over the
/// steps, where an iteration's time goes, its timeline. Several runs are laid over each other.
std::string html(std::span<const Run> runs);

/// The numbers and hints of that page, in lines of at most so many columns.
std::string text(std::span<const Run> runs, std::size_t columns = usual_columns);

}  // namespace brume::report
