/// @file What reading token files told, kept from one job to the next.
#pragma once

#include <string>

#include "data/token_file.hpp"

namespace brume::app {

/// A line of text for a file that was read, or none for one that is not worth it.
std::string check_line(const data::TokenFile& file);
void add_checks(const std::string& lines, data::TokenChecks& known);

/// The lines that this user's earlier jobs kept; none, with a warning, where they cannot be read.
std::string kept_checks();

/// Keeps lines, with the newest ones of earlier jobs. Warns where that fails.
void keep_checks(const std::string& lines);

}  // namespace brume::app
