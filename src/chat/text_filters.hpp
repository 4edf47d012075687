/// @file Filters that make a text or a number.
#pragma once

#include "library.hpp"

namespace brume::chat {

Value as_json(Run& run, const Value& value, const Arguments& given);
Value indented(Run& run, const Value& value, const Arguments& given);
/// A first letter of upper case behind white space, brackets and hyphens, others of lower case.
Value headline(Run& run, const Value& value, const Arguments& given);
/// Characters that HTML reserves are written by their names.
Value escaped(Run& run, const Value& value, const Arguments& given);
Value as_whole(Run& run, const Value& value, const Arguments& given);
Value as_number(Run& run, const Value& value, const Arguments& given);
Value rounded(Run& run, const Value& value, const Arguments& given);

}  // namespace brume::chat
