/// @file The verbs of the command line. Each returns the exit code or throws Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace brume::app {

/// What all verbs that read a deck take.
struct DeckOptions {
  std::string deck;
  std::vector<std::string> sets;  ///< "key=value"
};

struct RunOptions : DeckOptions {
  std::string plan;  ///< file; empty: search
  std::optional<int> steps;
  std::string resume = "auto";  ///< auto | none | a checkpoint directory
  bool replan = false;
  double max_minutes = 0.0;  ///< 0: no limit
  bool dry_run = false;
};

struct PlanOptions : DeckOptions {
  std::string plan;    ///< of analyze and simulate
  std::string output;  ///< file for the plan
  std::string trace;   ///< file for the simulated timeline
  bool json = false;
  bool explain = false;
  int top = 3;
};

struct ImportOptions {
  std::vector<std::string> files;
  std::string directory = "data";
  double valid_ratio = 0.1;
};

int run(const RunOptions& options);
int plan(const PlanOptions& options);
int analyze(const PlanOptions& options);
int simulate(const PlanOptions& options);
int check(const DeckOptions& options);
int profile(const DeckOptions& options, const std::string& output);
int import_tokens(const ImportOptions& options);

}  // namespace brume::app
