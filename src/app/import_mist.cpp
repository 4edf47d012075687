/// @file The verbs that bring Mist's files in.
#include <fmt/format.h>

#include <filesystem>

#include "base/files.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "interop/mist.hpp"
#include "planning.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

namespace fs = std::filesystem;

/// Whether two profiles agree on links, copies and slowdowns.
bool same_machine(const hardware::Profile& a, const hardware::Profile& b) {
  return a.transfers == b.transfers && a.slowdowns == b.slowdowns;
}

/// The profile's name, or a new one's that has the configuration's links and slowdowns.
std::string profile_for(const interop::MistConfiguration& read, const ImportMistOptions& options) {
  hardware::Profile profile = hardware::load_profile(options.profile);
  hardware::Profile own = profile;
  interop::set_machine(own, read.machine, options.configuration);
  if (same_machine(profile, own)) return options.profile;
  own.origins.transfers = own.origins.interference =
      fs::path(options.configuration).filename().string();
  const std::string path = (fs::path(options.directory) / "profile.toml").string();
  hardware::save_profile(own, path);
  log::info("{}: operator times of {}, links and slowdowns of the configuration", path,
            options.profile);
  return "profile.toml";  // beside the deck
}

}  // namespace

int import_mist(const ImportMistOptions& options) {
  interop::MistConfiguration read = interop::read_mist_configuration(options.configuration);
  for (const std::string& note : read.notes) log::warn("{}: {}", options.configuration, note);
  make_directory(options.directory);
  read.deck.cluster.profile = profile_for(read, options);
  const fs::path deck = fs::path(options.directory) / "deck.toml";
  write_file(deck.string(), deck::schema().write(read.deck, true));
  log::info("{}: counts as Mist does, with operator times of {}", deck.string(), options.profile);
  if (!read.plan) return 0;
  const fs::path plan = fs::path(options.directory) / "plan.toml";
  write_file(plan.string(), plan::text(*read.plan));
  log::info("{}: the configuration's strategy", plan.string());
  return 0;
}

int import_mist_profile(const ImportMistProfileOptions& options) {
  interop::MistProfile read =
      interop::read_mist_profile(options.file, options.database, options.hardware);
  read.profile.key.processor = options.name;
  for (const std::string& op : read.unknown)
    log::warn("{}: '{:.80}' has no kind here: left out", options.file, op);
  hardware::save_profile(read.profile, options.output);
  log::info("{}: {} operators; left out: {} of the same sizes as others, {} that failed",
            options.output, read.profile.operators.size(), read.repeated, read.failed);
  return 0;
}

}  // namespace brume::app
