/// @file The command line: options of all commands, and the command that it asks for.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "exchange.hpp"
#include "verbs.hpp"

namespace brume::app {

/// Everything the command line may have, and the command that it asks for.
struct CommandLine {
  CLI::App cli{"Brume plans and runs the training of transformers in one MPI batch job.", "brume"};
  RunOptions run;
  EvalOptions eval;
  GenerateOptions generate;
  ChatOptions chat;
  ReportOptions report;
  PlanOptions plan;
  DeckOptions check;
  ProfileOptions profile;
  SelftestOptions selftest;
  InitOptions init;
  KeysOptions keys;
  ExchangeVerbs exchange;
  bool verbose = false;
  std::function<int()> verb;

  CommandLine();

  /// The message about words that no command takes.
  std::string unexpected() const;

 private:
  void add_init();
  void add_run();
  void add_eval();
  void add_generate();
  void add_chat();
  void add_report();
  void add_planning();
  void add_measuring();
  void add_descriptions();
};

/// Refuses paths that a shell would have to expand, as it does after a space, but not after "=".
void require_whole_paths(const CLI::App& app);

/// Takes numbers above 0 only.
extern const CLI::Validator above_0;

inline constexpr const char* about_search_state =
    "Keep the state of the search here; if the file exists, continue from it";
inline constexpr const char* about_keys =
    "Keys of a deck, with units and defaults: brume keys [PREFIX]";

}  // namespace brume::app
