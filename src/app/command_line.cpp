/// @file The command line: all commands together, and the words that it refuses.
#include "command_line.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/path.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "manual.hpp"
#include "version.hpp"

namespace brume::app {
namespace {

/// Help as wide as the terminal.
class Help : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return hanging(CLI::Formatter::make_help(app, std::move(name), mode),
                   terminal::columns(STDOUT_FILENO));
  }
};

}  // namespace

const CLI::Validator above_0(
    [](const std::string& text) {
      double value = 0.0;
      const bool holds = CLI::detail::lexical_cast(text, value) && value > 0.0;
      return holds ? std::string() : fmt::format("must be above 0, found {}", text);
    },
    "");

CommandLine::CommandLine() {
  cli.formatter(std::make_shared<Help>());  // of all verbs, which take it over
  cli.require_subcommand(0, 1);             // at least 1 would hide the name of an unknown one
  cli.fallthrough();
  cli.set_version_flag("--version",
                       fmt::format("brume {} of sources {}", BRUME_VERSION, sources_id));
  cli.add_flag("-v,--verbose", verbose, "Print decisions and their reasons");
  add_init();
  add_run();
  add_eval();
  add_generate();
  add_chat();
  add_report();
  add_planning();
  add_measuring();
  add_descriptions();
  exchange.add(cli, verb);
  add_examples(cli);
}

std::string CommandLine::unexpected() const {
  const std::vector<CLI::App*> verbs = cli.get_subcommands();
  const CLI::App& app = verbs.empty() ? cli : *verbs.front();
  const std::vector<std::string> words = cli.remaining(true);
  const std::string& word = words.front();
  std::vector<std::string> known;
  if (word.starts_with('-'))
    for (const CLI::Option* option : app.get_options())
      known.push_back("--" + (option->get_lnames().empty() ? "" : option->get_lnames()[0]));
  else if (verbs.empty())
    for (const CLI::App* verb : app.get_subcommands({})) known.push_back(verb->get_name());
  const std::string meant = nearest(word, known);
  return fmt::format("{} '{}' is not known; {}`brume {}--help` says what there is",
                     word.starts_with('-') ? "option"
                     : verbs.empty()       ? "verb"
                                           : "argument",
                     word, meant.empty() ? "" : fmt::format("did you mean '{}'? ", meant),
                     verbs.empty() ? "" : app.get_name() + " ");
}

void require_whole_paths(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string kind = option->get_type_name();
    if (kind.find("FILE") == kind.npos && kind.find("DIR") == kind.npos) continue;
    const std::string name = option->get_name();
    for (const std::string& path : option->results())
      require(!has_shell_word(path), Failure::input,
              "{}={}: only a shell expands ~ and $NAME, and only after a space. Write {} {}", name,
              path, name, path);
  }
  for (const CLI::App* verb : app.get_subcommands()) require_whole_paths(*verb);
}

}  // namespace brume::app
