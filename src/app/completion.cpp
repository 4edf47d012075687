#include "completion.hpp"

#include <fmt/format.h>

#include <vector>

namespace brume::app {
namespace {

/// What may follow an app's name: its subcommands and options.
std::string words(const CLI::App& app) {
  std::string words;
  for (const CLI::App* verb : app.get_subcommands({})) words += verb->get_name() + " ";
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  return words;
}

/// A case for an app and each one below it. @param names  of the apps above it and its own
void add_cases(std::string& script, const CLI::App& app, const std::string& names) {
  script += fmt::format("    '{}') words='{}' ;;\n", names, words(app));
  for (const CLI::App* verb : app.get_subcommands({}))
    add_cases(script, *verb, names + " " + verb->get_name());
}

}  // namespace

std::string bash_completion(const CLI::App& cli) {
  std::string cases;
  add_cases(cases, cli, cli.get_name());
  return R"(# bash: source <(brume completion); zsh: autoload -U +X bashcompinit && bashcompinit before that.
_brume_words() {
  case "$1" in
)" + cases +
         R"(    *) words='' ;;
  esac
}
_brume() {
  local at='brume' words word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    _brume_words "$at $word"
    [ -z "$words" ] || at="$at $word"
  done
  _brume_words "$at"
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _brume brume
)";
}

}  // namespace brume::app
