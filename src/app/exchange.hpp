/// @file The verbs import and export on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "verbs.hpp"

namespace brume::app {

/// The deck that a verb reads, and --set.
void add_deck(CLI::App* verb, DeckOptions& options);

/// What comes in from other programs, and what goes out to them.
class ExchangeVerbs {
 public:
  /// Adds the verbs. @param verb  becomes what the command line asks for; must outlive the object
  void add(CLI::App& cli, std::function<int()>& verb);

 private:
  void add_tokens(CLI::App* import);
  void add_hugging_face(CLI::App* import, CLI::App* out);
  void add_plan(CLI::App* import, CLI::App* out);
  void add_mist(CLI::App* import);
  /// What a verb does once it is asked for.
  void on(CLI::App* verb, std::function<int()> action);

  std::function<int()>* verb_ = nullptr;
  ImportOptions tokens_;
  ImportHuggingFaceOptions import_hf_;
  ExportHuggingFaceOptions export_hf_;
  ImportPlanOptions import_plan_;
  ExportPlanOptions export_plan_;
  std::string trainer_;  ///< where a plan comes from
  ImportMistOptions mist_;
  ImportMistProfileOptions mist_profile_;
};

}  // namespace brume::app
