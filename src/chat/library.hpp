/// @file Functions, filters, tests and methods that templates use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "characters.hpp"
#include "run.hpp"

namespace brume::chat {

using Filter = Value (*)(Run& run, const Value& value, const Arguments& arguments);
using Test = bool (*)(const Value& value, const Arguments& arguments);

/// None: there is no filter or test with that name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

/// A scope with the functions that all templates may call.
std::shared_ptr<Scope> functions();

/// value.name: a method, or an attribute, or an item of a dictionary.
Value attribute(const Value& value, const std::string& name);
/// value[key]
Value item(const Value& value, const Value& key);
/// value[begin:end:step] of a list or a text; None: left out.
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step);

/// a `sign` b for arithmetic signs. @throws Error(input)
Value arithmetic(std::string_view sign, const Value& a, const Value& b);
Value negated(const Value& value);
/// a `sign` b for comparisons, "in" and "not in". @throws Error(input)
bool comparison(std::string_view sign, const Value& a, const Value& b);

/// printf's format as Python has it, for strings and numbers. @throws Error(input)
std::string formatted(std::string_view format, const std::vector<Value>& values);

/// An argument that is a whole number or a text. @throws Error(input)
std::int64_t whole_of(const Value& value);
const std::string& text_of(const Value& value);

/// A text without white space, or the characters of a first argument, at its ends.
Value without_ends(const std::string& text, const Arguments& given, Ends ends);

/// Pairs of a key and its value.
std::vector<Value> pairs_of(const Dict& dict);

/// Text with each `from` replaced, `most` times at most; below 0: always.
std::string with_replaced(std::string_view text, std::string_view from, std::string_view by,
                          std::int64_t most);
/// Texts of values, with `between` between them.
std::string joined(const std::vector<Value>& values, std::string_view between);

}  // namespace brume::chat
