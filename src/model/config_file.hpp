/// @file A config.json of a Hugging Face model, and the deck keys that it fills in.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "deck/json.hpp"
#include "model/model.hpp"

namespace brume::model {

using families::Architecture;
using families::ConfigKeys;
using nlohmann::json;

/// A JSON object that remembers which of its keys were asked for.
class ConfigFile {
 public:
  ConfigFile(json object, std::string path) : object_(std::move(object)), path_(std::move(path)) {}

  /// Sets the keys that the file's class reads, with the values of those that the file leaves out.
  void set_class(const std::string& keys) { class_ = json::parse(keys); }
  /// Whether the file's class reads the key. The Transformers library ignores any other one.
  bool reads(const std::string& key) const { return class_.contains(key); }
  /// Whether the file itself has the key.
  bool has(const std::string& key) const { return object_.contains(key); }
  /// Whether the class has no value of its own for the key.
  bool is_optional(const std::string& key) const { return class_.at(key).is_null(); }

  template <typename... Args>
  void needs(bool holds, fmt::format_string<Args...> format, Args&&... args) const {
    if (!holds)
      throw Error(Failure::input, "{}: {}", path_,
                  fmt::format(format, std::forward<Args>(args)...));
  }

  /// The value of a key, or that of the class where the file leaves the key out; nothing: null.
  const json* find(const std::string& key) {
    met_.insert(key);
    auto found = object_.find(key);
    if (found == object_.end()) {
      found = class_.find(key);
      if (found == class_.end()) return nullptr;
    }
    return found->is_null() ? nullptr : &*found;
  }

  std::optional<int> size_if(const std::string& key, int least = 1) {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    needs(value->is_number_integer() && *value >= least && *value <= 2147483647,
          "'{}' must be a whole number from {} on, found {}", key, least,
          deck::describe_json(*value));
    if (!object_.contains(key)) sizes_of_class_.insert(fmt::format("{} = {}", key, value->dump()));
    return value->get<int>();
  }
  int size(const std::string& key, int least = 1) {
    const std::optional<int> value = size_if(key, least);
    needs(value.has_value(), "'{}' must be a whole number from {} on, found null", key, least);
    return *value;
  }
  std::optional<double> number_if(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    needs(value->is_number(), "'{}' must be a number, found {}", key, deck::describe_json(*value));
    return value->get<double>();
  }
  double number(const std::string& key) {
    const std::optional<double> value = number_if(key);
    needs(value.has_value(), "'{}' must be a number, found null", key);
    return *value;
  }
  /// Null is false, as in Python.
  bool truth(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return false;
    needs(value->is_boolean(), "'{}' must be true or false, found {}", key,
          deck::describe_json(*value));
    return value->get<bool>();
  }
  /// Empty: null.
  std::string word(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) return "";
    needs(value->is_string(), "'{}' must be a string, found {}", key, deck::describe_json(*value));
    return value->get<std::string>();
  }
  /// Empty: an object without keys, or null where the class has no table of its own.
  json table(const std::string& key) {
    const json* value = find(key);
    if (value == nullptr) {
      const auto own = class_.find(key);
      return own != class_.end() && own->is_object() ? *own : json::object();
    }
    needs(value->is_object(), "'{}' must be an object, found {}", key, deck::describe_json(*value));
    return *value;
  }

  const std::string& path() const { return path_; }
  /// "key = value" of each size that the file leaves out.
  const std::set<std::string>& sizes_of_class() const { return sizes_of_class_; }

  /// Keys that nobody asked for and that may mean something.
  std::vector<std::string> unknown() const;

 private:
  json object_;
  std::string path_;
  json class_ = json::object();
  std::set<std::string> met_;
  std::set<std::string> sizes_of_class_;
};

/// Fills in the keys that the deck did not give, within the bounds of the deck's schema.
class KeyWriter {
 public:
  KeyWriter(deck::ModelKeys& keys, const ConfigFile& file) : keys_(keys), file_(file) {}
  bool given(const char* key) const { return std::ranges::count(keys_.given, key) > 0; }
  /// @param from  what the file calls it
  template <typename T>
  void set(const char* key, T deck::ModelKeys::*member, T value, const std::string& from) {
    if (given(key)) return;
    keys_.*member = std::move(value);
    check(key, from);
  }
  /// Refuses a value that the deck could not have given.
  void check(const char* key, const std::string& from) const {
    const std::string refusal = deck::model_schema().refusal(key, keys_);
    file_.needs(refusal.empty(), "'{}' {}", from, refusal);
  }
  deck::ModelKeys& keys() { return keys_; }

 private:
  deck::ModelKeys& keys_;
  const ConfigFile& file_;
};

using Keys = deck::ModelKeys;

/// An architecture, and the family whose row has it.
struct Kind {
  const Family& family;
  const Architecture& architecture;
};

/// The kind of model by its architecture or, if the file names none, by its type.
Kind kind_of(ConfigFile& file);

/// Sets rotary angles, and the number of features that they turn.
void set_rope(ConfigFile& file, KeyWriter& out, const ConfigKeys& names);
/// Sets which layers have a window, for a class that has windows.
void set_window(ConfigFile& file, KeyWriter& out, int full_every);
/// Sets the base of the rotary angles in windowed layers, for a class that has one.
void set_window_rope(ConfigFile& file, KeyWriter& out);

void set_experts(ConfigFile& file, KeyWriter& out, const Architecture& architecture);

}  // namespace brume::model
