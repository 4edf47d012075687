/// @file The command `check`: a deck with all defaults.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "planning.hpp"
#include "run_settings.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

/// A deck may be made before what it names; then whoever checks it wants to know.
void say_missing(const deck::Deck& deck) {
  const deck::DataKeys& data = deck.data;
  std::vector<std::pair<const char*, std::string>> files{
      {"data.train", data.train},
      {"data.valid", data.valid},
      {"training.samples.prompts", deck.training.samples.prompts}};
  for (const std::string& file : data.files) files.emplace_back("data.files", file);
  std::error_code none;
  for (const auto& [key, file] : files)
    if (!file.empty() && !std::filesystem::exists(file, none))
      log::warn("{} = {}: there is no such file yet, as seen from this folder", key, file);
  for (const deck::GroupKeys& group : deck.cluster.all_groups()) try {
      if (!group.profile.empty()) hardware::load_profile(group.profile);
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
}

}  // namespace

int check(const DeckOptions& options) {
  const deck::Deck deck = load_deck(options.deck, options.sets);
  const model::Config model = model::config(deck.model, deck.training.precision);
  require_groups_fit(deck, model);
  plan::check_model(model, hardware::cluster(deck.cluster));
  print(deck::schema().write(deck, true));
  if (const std::string frozen = model::frozen_text(model); !frozen.empty())
    log::info("frozen: {}", frozen);
  say_missing(deck);
  return 0;
}

}  // namespace brume::app
