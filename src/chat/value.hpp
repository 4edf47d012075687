/// @file Values of chat templates, which behave as Python's do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace brume::chat {

class Run;
class Value;

/// A value that is missing: printed as nothing; most other uses are errors.
struct Undefined {
  std::string reason = {};  ///< message of these errors
};
struct None {};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  bool lazy = false;  ///< made by a filter that gives an iterator in Python, which is always true
  int depth = 1;      ///< of values within values
};

/// A dictionary, in order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// Replaces the value of a key, or adds the key. @throws Error(input) for a nesting too deep
  void put(Value key, Value value);
};

/// A namespace, or the variable `loop`. The run keeps namespaces until its end.
struct Object {
  Dict attributes;
  bool is_namespace = false;
};

/// Arguments of a call.
class Arguments {
 public:
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at a position or with a name; none: it is not given.
  const Value* find(std::size_t position, std::string_view name) const;
  Value get(std::size_t position, std::string_view name, Value otherwise) const;
  /// @throws Error(input) for one that is not given
  const Value& need(std::size_t position, std::string_view name) const;
  /// Arguments from a position on.
  Arguments from(std::size_t position) const;
};

struct Function {
  std::string name;
  std::function<Value(Run&, const Arguments&)> call;
  int depth = 0;  ///< of the values that it holds
};

class Value {
 public:
  Value(Undefined undefined = {}) : held_(std::move(undefined)) {}
  Value(None none) : held_(none) {}
  Value(bool value) : held_(value) {}
  Value(std::int64_t value) : held_(value) {}
  Value(int value) : held_(std::int64_t{value}) {}
  Value(double value) : held_(value) {}
  Value(std::string text);
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Dict dict);
  Value(std::shared_ptr<Object> object) : held_(std::move(object)) {}
  Value(Function function);
  /// @throws Error(input) for a nesting too deep
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value lazy_list(std::vector<Value> items);
  /// @throws Error(input) for a whole number beyond 64 bits, or a nesting too deep
  static Value of(const nlohmann::ordered_json& json, int depth = 0);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&held_);
  }
  const std::string* text() const { return pointed<std::string>(); }
  const List* list() const { return pointed<List>(); }
  const Dict* dict() const { return pointed<Dict>(); }
  const Function* function() const { return pointed<Function>(); }
  const std::shared_ptr<Object>* object() const { return as<std::shared_ptr<Object>>(); }
  const Undefined* undefined() const { return as<Undefined>(); }
  bool none() const { return as<None>() != nullptr; }
  /// A whole number, which True and False are too.
  std::optional<std::int64_t> whole() const;
  /// Any number.
  std::optional<double> number() const;

  /// @throws Error(input) for an undefined value, with its reason
  void require_defined() const;
  bool truth() const;
  int depth() const;
  const char* type() const;  ///< name of the type in messages
  std::string str() const;   ///< Python's str()
  std::string repr() const;  ///< Python's repr()

  /// Items of a list, keys of a dictionary, characters of a text; none of an undefined value.
  /// @throws Error(input) for a value that has no items
  std::vector<Value> items() const;
  /// Number of items. @throws Error(input)
  std::int64_t length() const;
  bool iterable() const;

  bool operator==(const Value& other) const;
  /// Negative, 0 or positive, as the value is less, equal or greater. @throws Error(input)
  int compare(const Value& other) const;
  /// Whether the value has an item, or a text another text. @throws Error(input)
  bool contains(const Value& item) const;

 private:
  template <class T>
  const T* pointed() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&held_);
    return held == nullptr ? nullptr : held->get();
  }

  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Object>,
               std::shared_ptr<const Function>>
      held_;
};

/// How Python's json.dumps writes a value.
struct JsonStyle {
  std::optional<std::string> indent = {};  ///< text before an item, for each level; none: one line
  std::string between = ", ";              ///< items
  std::string after_key = ": ";
  bool sort_keys = false;
  bool ascii = false;  ///< escape characters beyond ASCII
};
/// @throws Error(input) for a value that JSON has not
std::string json_text(const Value& value, const JsonStyle& style);

}  // namespace brume::chat
