/// @file The parsed tree of a document, free of toml++: what schema reading works on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "deck/schema.hpp"

namespace brume::deck {

constexpr std::size_t max_bytes = std::size_t{16} << 20;  ///< of a TOML text

struct Place {
  std::uint32_t line = 0;  ///< from 1
  std::uint32_t column = 0;
};

struct Document::Node {
  struct Time {};  ///< a date or time; no key takes one
  struct List {
    std::vector<Node> items;
  };
  struct Table {
    std::vector<Node> items;  ///< each with a key of its own, in file order
  };

  std::string key;  ///< empty in a list
  std::variant<Time, bool, std::int64_t, double, std::string, List, Table> value;
  Place key_place = {};
  Place place = {};
  std::shared_ptr<const std::string> assignment = {};  ///< "--set a.b=c" when it came from there

  /// A table's entry; of a list the item with that name or at that place. Null: there is none.
  const Node* find(std::string_view name) const;
  Node* find(std::string_view name);
};

/// Parses TOML; the result is a table.
/// @throws Error(input) with origin, line and column
Document::Node parse_toml(std::string_view text, const std::string& origin);

/// "inputs/a.toml:12:1", or "--set a.b=c", or the origin alone for no node.
std::string describe_place(const Document& document, const Document::Node* node, bool of_key);

/// What stands there, for a message: a value as TOML, or "a list".
std::string describe_value(const Document::Node& node);

}  // namespace brume::deck
