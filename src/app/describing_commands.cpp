/// @file Options of commands that describe: keys, manual, completion, check.
#include <fmt/format.h>

#include "command_line.hpp"
#include "completion.hpp"
#include "manual.hpp"

namespace brume::app {

void CommandLine::add_descriptions() {
  CLI::App* verb_keys =
      cli.add_subcommand("keys", "List the keys of a deck with units, defaults and meaning");
  verb_keys->add_option("prefix", keys.prefix,
                        "Show only keys with this prefix, for example cluster.");
  verb_keys->add_option("--of", keys.kind, "Kind of file")
      ->type_name("KIND")
      ->check(CLI::IsMember({"deck", "plan", "profile", "machine", "network"}))
      ->capture_default_str();
  verb_keys->add_flag("--markdown", keys.markdown, "Print Markdown tables");
  verb_keys->callback([this] { verb = [this] { return app::keys(keys); }; });

  CLI::App* verb_manual =
      cli.add_subcommand("manual", "Print the manual page, for example: brume manual | man -l -");
  verb_manual->callback([this] {
    verb = [this] {
      fmt::print("{}", manual_page(cli, BRUME_VERSION));
      return 0;
    };
  });

  CLI::App* verb_completion =
      cli.add_subcommand("completion", "Print the completion script for bash and zsh");
  verb_completion->callback([this] {
    verb = [this] {
      fmt::print("{}", bash_completion(cli));
      return 0;
    };
  });

  CLI::App* verb_check =
      cli.add_subcommand("check", "Validate a deck and print it with all defaults");
  add_deck(verb_check, check);
  verb_check->callback([this] { verb = [this] { return app::check(check); }; });
}

}  // namespace brume::app
