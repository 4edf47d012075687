/// @file Examples of the command line, and its manual page.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace brume::app {

/// Puts each verb's examples below its help.
void add_examples(CLI::App& cli);

/// The page brume(1), in the language of man(7): every verb and option with its help.
std::string manual_page(const CLI::App& cli, const std::string& version);

}  // namespace brume::app
