/// @file Checked reading of JSON: every refusal says where.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace brume::interop {

using nlohmann::json;

inline const json& at(const json& object, const std::string& key, const std::string& where) {
  require(object.is_object(), Failure::input, "{}: expected an object with '{}'", where, key);
  const auto found = object.find(key);
  require(found != object.end(), Failure::input, "{}: missing key '{}'", where, key);
  return *found;
}

inline std::string text(const json& object, const std::string& key, const std::string& where) {
  const json& value = at(object, key, where);
  require(value.is_string(), Failure::input, "{}: '{}' must be a string", where, key);
  return value.get<std::string>();
}

inline double number(const json& value, const std::string& what, const std::string& where) {
  require(value.is_number(), Failure::input, "{}: '{}' must be a number", where, what);
  return value.get<double>();
}

inline std::int64_t size(const json& value, const std::string& what, const std::string& where) {
  constexpr std::int64_t largest = std::int64_t{1} << 40;
  require(value.is_number_integer() && value >= 0 && value <= largest, Failure::input,
          "{}: '{}' must be an integer from 0 to {}", where, what, largest);
  return value.get<std::int64_t>();
}

inline std::vector<double> numbers(const json& object, const std::string& key,
                                   const std::string& where) {
  const json& list = at(object, key, where);
  require(list.is_array() && list.size() <= 64, Failure::input,
          "{}: '{}' must be a list of numbers", where, key);
  std::vector<double> values;
  for (const json& value : list) values.push_back(number(value, key, where));
  return values;
}

}  // namespace brume::interop
