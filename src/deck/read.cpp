#include "deck/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/error.hpp"
#include "base/text.hpp"
#include "deck/node.hpp"
#include "deck/text.hpp"

namespace brume::deck::detail {
namespace {

using Node = Document::Node;

template <typename T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  return std::is_integral_v<T> ? "an integer" : "a number";
}

template <typename T>
bool is_allowed(const Key& key, const T& value) {
  if constexpr (std::is_same_v<T, std::string>)
    return key.choices.empty() || std::ranges::find(key.choices, value) != key.choices.end();
  else
    return std::is_same_v<T, bool> ||
           (static_cast<double>(value) >= key.min && static_cast<double>(value) <= key.max);
}

/// "an integer >= 1 (steps)"
template <typename T>
std::string expected(const Key& key) {
  std::string text =
      key.choices.empty() ? type_name<T>() : "one of \"" + join(key.choices, "\", \"") + "\"";
  const std::string bounds = key.choices.empty() ? format_bounds(key) : "";
  if (!bounds.empty()) text += " " + bounds;
  return key.unit.empty() ? text : text + " (" + key.unit + ")";
}

class Reader {
 public:
  explicit Reader(const Document& document) : document_(document) {}

  void read_table(const Fields& fields, const Node* table, const std::string& path, void* object) {
    if (table != nullptr) check_names(fields, *table, path);
    for (const Fields::Field& field : fields.fields) {
      const Node* node = table == nullptr ? nullptr : table->find(field.name);
      const std::string name = path.empty() ? field.name : path + "." + field.name;
      if (field.append)
        read_tables(field, node, name, object);
      else if (field.table)
        read_member(field, node, name, object);
      else
        read_key(field, table, node, name, object);
    }
  }

 private:
  [[noreturn]] void fail(const Node* node, const std::string& what, bool at_key = false) const {
    throw Error(Failure::input, "{}: {}", describe_place(document_, node, at_key), what);
  }

  void check_names(const Fields& fields, const Node& table, const std::string& path) const {
    std::vector<std::string> known;
    for (const Fields::Field& field : fields.fields) known.push_back(field.name);
    for (const Node& item : std::get<Node::Table>(table.value).items) {
      if (std::ranges::find(known, item.key) != known.end()) continue;
      std::string what = fmt::format(
          "unknown {} {}", std::holds_alternative<Node::Table>(item.value) ? "table" : "key",
          quoted(path.empty() ? item.key : path + "." + item.key));
      const std::string near = item.key.size() <= 64 ? nearest(item.key, known) : "";
      fail(&item, near.empty() ? what : what + "; did you mean '" + near + "'?", true);
    }
  }

  /// A key may be any text when it is quoted in the file; a message stays one short line.
  static std::string quoted(const std::string& name) {
    const Node node{.key = "", .value = name};
    std::string text = describe_value(node);
    text.front() = text.back() = '\'';
    return text;
  }

  void read_tables(const Fields::Field& field, const Node* node, const std::string& path,
                   void* object) {
    if (node == nullptr) return;
    const auto* list = std::get_if<Node::List>(&node->value);
    if (list == nullptr)
      fail(node,
           fmt::format("'{}' must be a list of tables, found {}", path, describe_value(*node)));
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      const std::string name = fmt::format("{}[{}]", path, i);
      check_table(list->items[i], name);
      read_table(*field.table, &list->items[i], name, field.append(object));
    }
  }

  void read_member(const Fields::Field& field, const Node* node, const std::string& path,
                   void* object) {
    if (node != nullptr) check_table(*node, path);
    read_table(*field.table, node, path, field.member(object));
  }

  void check_table(const Node& node, const std::string& path) const {
    if (!std::holds_alternative<Node::Table>(node.value))
      fail(&node, fmt::format("'{}' must be a table, found {}", path, describe_value(node)));
  }

  void read_key(const Fields::Field& field, const Node* table, const Node* node,
                const std::string& path, void* object) {
    if (node != nullptr) {
      std::visit([&](auto member) { assign(field.key, *node, path, *member); },
                 field.value(object));
    } else if (field.key.required) {
      const std::string in =
          path == field.name ? "" : fmt::format("table '{}': ", path.substr(0, path.rfind('.')));
      fail(table, fmt::format("{}missing key '{}': {}", in, field.name, field.key.help));
    }
  }

  template <typename T>
  void assign(const Key& key, const Node& node, const std::string& path, std::vector<T>& list) {
    const auto* from = std::get_if<Node::List>(&node.value);
    if (from == nullptr)
      fail(&node, fmt::format("'{}' must be a list, each {}, found {}", path, expected<T>(key),
                              describe_value(node)));
    list.assign(from->items.size(), T{});
    for (std::size_t i = 0; i < list.size(); ++i)
      assign(key, from->items[i], fmt::format("{}[{}]", path, i), list[i]);
  }

  template <typename T>
  void assign(const Key& key, const Node& node, const std::string& path, T& value) {
    if (!convert(node, value)) refuse<T>(key, node, path);
    if (!is_allowed(key, value)) refuse<T>(key, node, path);
    if constexpr (std::is_same_v<T, std::string>)
      if (value.find('\0') != std::string::npos)
        fail(&node, fmt::format("'{}' holds a zero character", path));
  }

  void assign(const Key& key, const Node& node, const std::string& path, const Choice& choice) {
    std::string word;
    assign(key, node, path, word);
    choice.set(std::size_t(std::ranges::find(key.choices, word) - key.choices.begin()));
  }

  template <typename T>
  static bool convert(const Node& node, T& value) {
    if constexpr (std::is_same_v<T, int>) {
      const auto* whole = std::get_if<std::int64_t>(&node.value);
      if (whole == nullptr || !std::in_range<int>(*whole)) return false;
      value = static_cast<int>(*whole);
      return true;
    } else {
      const auto* whole = std::get_if<std::int64_t>(&node.value);
      if constexpr (std::is_same_v<T, double>)
        if (whole != nullptr) value = static_cast<double>(*whole);
      if (std::is_same_v<T, double> && whole != nullptr) return true;
      const auto* exact = std::get_if<T>(&node.value);
      if (exact != nullptr) value = *exact;
      if constexpr (std::is_same_v<T, double>) return exact != nullptr && std::isfinite(value);
      return exact != nullptr;
    }
  }

  template <typename T>
  [[noreturn]] void refuse(Key key, const Node& node, const std::string& path) const {
    const auto* whole = std::get_if<std::int64_t>(&node.value);
    if (std::is_same_v<T, int> && whole != nullptr && !std::in_range<int>(*whole)) {
      key.min = std::max<double>(key.min, std::numeric_limits<int>::min());
      key.max = std::min<double>(key.max, std::numeric_limits<int>::max());
    }
    std::string what =
        fmt::format("'{}' must be {}, found {}", path, expected<T>(key), describe_value(node));
    if (const auto* word = std::get_if<std::string>(&node.value); word && word->size() <= 64)
      if (const std::string near = nearest(*word, key.choices); !near.empty())
        what += "; did you mean \"" + near + "\"?";
    if (std::is_same_v<T, std::string> && key.choices.empty()) what += in_quotes(node, path);
    fail(&node, what);
  }

  /// How to write a string that TOML reads as something else; nothing where the node is no value.
  static std::string in_quotes(const Node& node, const std::string& path) {
    if (std::holds_alternative<Node::List>(node.value) ||
        std::holds_alternative<Node::Table>(node.value))
      return "";
    if (!node.assignment) return ". Write it in quotes";
    const std::string value = node.assignment->substr(node.assignment->find('=') + 1);
    return value.starts_with('[') ? ". Write it in quotes"
                                  : fmt::format(". Write --set '{}=\"{}\"'", path, value);
  }

  const Document& document_;
};

template <typename T>
std::string refusal_of(const Key& key, const T& value) {
  if constexpr (std::is_same_v<T, double>)
    if (!std::isfinite(value)) return fmt::format("must be {}, found {}", expected<T>(key), value);
  if (is_allowed(key, value)) return "";
  return fmt::format("must be {}, found {}", expected<T>(key), value);
}

std::string refusal_of(const Key& key, const Choice& choice) {
  return refusal_of(key, choice.word());
}

template <typename T>
std::string refusal_of(const Key& key, const std::vector<T>& list) {
  for (const T& value : list)
    if (std::string what = refusal_of(key, value); !what.empty()) return what;
  return "";
}

}  // namespace

std::string refusal(const Fields& fields, std::string_view path, void* object) {
  const auto dot = path.find('.');
  const auto field = std::ranges::find(fields.fields, path.substr(0, dot), &Fields::Field::name);
  require(field != fields.fields.end(), Failure::bug, "the schema has no key '{}'", path);
  if (dot != std::string_view::npos)
    return refusal(*field->table, path.substr(dot + 1), field->member(object));
  return std::visit([&](const auto& member) { return refusal_of(field->key, *member); },
                    field->value(object));
}

void read(const Fields& fields, const Document& document, void* object) {
  Reader(document).read_table(fields, &document.root(), "", object);
}

}  // namespace brume::deck::detail
