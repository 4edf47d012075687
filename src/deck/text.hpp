/// @file How values and bounds of keys look as text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "deck/schema.hpp"

namespace brume::deck {

std::string quote(std::string_view text);  ///< a TOML basic string

/// Cuts text for a message, not inside a UTF-8 character.
std::string shortened(const std::string& text, std::size_t width);

std::string join(const std::vector<std::string>& words, std::string_view between);

/// The shortest decimal that reads back as the same number, and as a TOML float.
/// @throws Error(bug) unless finite
std::string format_real(double number);

/// The value as TOML.
std::string format_value(const detail::Value& value);

/// ">= 1", "in 0..1", "gpt | llama"; empty when anything goes.
std::string format_bounds(const Key& key);

}  // namespace brume::deck
