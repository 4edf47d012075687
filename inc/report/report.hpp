/// @file What runs did, as a page to look at or as text: from run.h5, metrics.jsonl and trace.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/run_file.hpp"
#include "io/trace.hpp"
#include "plan/plan.hpp"

namespace brume::report {

struct Run {
  std::string name;
  io::RunDescription description;
  plan::Plan plan;
  std::vector<io::Row> rows;  ///< of all steps
  std::vector<io::EvaluationRow> evaluations;
  std::vector<std::int64_t> resumed;  ///< steps done when a job went on
  io::Trace trace;                    ///< of the last step; empty where the run wrote none
};

/// @throws Error(input) where the directory has no run.h5, or a file of it is damaged
Run read_run(const std::filesystem::path& directory);

/// One page without scripts that asks no network for anything: numbers and hints, curves over the
/// steps, where an iteration's time goes, its timeline. Several runs are laid over each other.
std::string html(std::span<const Run> runs);

/// The numbers and hints of that page.
std::string text(std::span<const Run> runs);

}  // namespace brume::report
