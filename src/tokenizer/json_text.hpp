/// @file Entries of JSON objects that may be missing or wrong.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace brume::tokenizer {

/// An entry that is a text; empty when there is none.
inline std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

inline constexpr std::int64_t most_ids = 1 << 24;  ///< as of a model

/// Whether a value can be the id of a token.
inline bool is_id(const nlohmann::json& value) {
  return value.is_number_integer() && value >= 0 && value < most_ids;
}

/// Whether an entry is true.
inline bool is_on(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace brume::tokenizer
