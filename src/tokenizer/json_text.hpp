/// @file Entries of JSON objects that may be missing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace brume::tokenizer {

/// An entry that is a text; empty when there is none.
inline std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Whether an entry is true.
inline bool is_on(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace brume::tokenizer
