/// @file Completion of the command line in shells.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace brume::app {

/// A script for bash (and zsh, by bashcompinit) that completes verbs, their subcommands and
/// options, and where none of them begins so, names of files.
std::string bash_completion(const CLI::App& cli);

}  // namespace brume::app
