#include "deck/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/node.hpp"
#include "deck/text.hpp"

namespace brume::deck {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// "a.b.c" as its parts. @throws Error(input) unless each is a bare key
std::vector<std::string> split_path(std::string_view path, const std::string& origin) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    const bool bare = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '_' || c == '-';
    require(bare || c == '.', Failure::input, "{}: expected key=value", origin);
    if (c == '.')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  for (const std::string& part : parts)
    require(!part.empty(), Failure::input, "{}: expected key=value", origin);
  require(parts.size() < 64, Failure::input, "{}: a key of more than 64 parts", origin);
  return parts;
}

/// The right side of an assignment: TOML if it is, else a bare string.
Document::Node parse_value(std::string_view text, const std::string& origin) {
  const auto single = [&](const std::string& toml) {
    auto items = std::get<Document::Node::Table>(parse_toml("value = " + toml, origin).value).items;
    require(items.size() == 1, Failure::input, "{}: expected one value", origin);
    return std::move(items[0]);
  };
  try {
    return single(std::string(text));
  } catch (const Error&) {
    return single(quote(text));  // refuses what is no UTF-8
  }
}

void mark(Document::Node& node, const std::shared_ptr<const std::string>& assignment) {
  node.assignment = assignment;
  if (auto* list = std::get_if<Document::Node::List>(&node.value))
    for (Document::Node& item : list->items) mark(item, assignment);
  if (auto* table = std::get_if<Document::Node::Table>(&node.value))
    for (Document::Node& item : table->items) mark(item, assignment);
}

}  // namespace

const Document::Node* Document::Node::find(std::string_view name) const {
  if (const auto* list = std::get_if<List>(&value)) {
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      const Node& item = list->items[i];
      const Node* own = std::holds_alternative<Table>(item.value) ? item.find("name") : nullptr;
      const auto* word = own ? std::get_if<std::string>(&own->value) : nullptr;
      if ((word && *word == name) || std::to_string(i) == name) return &item;
    }
    return nullptr;
  }
  const auto* table = std::get_if<Table>(&value);
  if (table == nullptr) return nullptr;
  const auto found = std::ranges::find(table->items, name, &Node::key);
  return found == table->items.end() ? nullptr : &*found;
}

Document::Node* Document::Node::find(std::string_view name) {
  return const_cast<Node*>(std::as_const(*this).find(name));
}

Document Document::parse(std::string_view text, std::string origin) {
  Document document;
  document.root_ = std::make_shared<Node>(parse_toml(text, origin));
  document.origin_ = std::move(origin);
  return document;
}

Document Document::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) throw unopened(path, Failure::input);
  // Most files are small, and room for the largest one would be filled with zeros first.
  std::string text;
  std::array<char, 1 << 16> piece;
  do {
    file.read(piece.data(), std::ssize(piece));
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
  } while (file && text.size() <= max_bytes);
  require(!file.bad() && (!text.empty() || file.eof()), Failure::input, "{}: cannot be read", path);
  return parse(text, path);
}

void Document::set(std::string_view assignment) {
  std::string said = "--set " + shortened(std::string(assignment), 80);
  std::ranges::replace_if(
      said, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  const auto source = std::make_shared<const std::string>(std::move(said));
  const auto equals = assignment.find('=');
  require(equals != std::string_view::npos, Failure::input, "{}: expected key=value", *source);
  const auto parts = split_path(trimmed(assignment.substr(0, equals)), *source);
  Node value = parse_value(trimmed(assignment.substr(equals + 1)), *source);
  value.key = parts.back();
  mark(value, source);

  root_ = std::make_shared<Node>(*root_);  // copies of this document keep their tree
  Node* table = root_.get();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto* entries = std::get_if<Node::Table>(&table->value);
    Node* next = table->find(parts[i]);
    require(entries != nullptr || next != nullptr, Failure::input, "{}: '{}' is not a table{}",
            *source, table->key,
            std::holds_alternative<Node::List>(table->value) ? " with such an item" : "");
    if (next == nullptr)
      next = &entries->items.emplace_back(
          Node{.key = parts[i], .value = Node::Table{}, .assignment = source});
    table = next;
  }
  value.key = table->key;
  *table = std::move(value);
}

namespace {

using Table = Document::Node::Table;

/// The entries of a table, or of each table in a list.
void for_tables(Document::Node& node, const std::string& path, const auto& visit) {
  if (auto* table = std::get_if<Table>(&node.value)) visit(*table, path);
  if (auto* list = std::get_if<Document::Node::List>(&node.value))
    for (std::size_t i = 0; i < list->items.size(); ++i)
      for_tables(list->items[i], fmt::format("{}[{}]", path, i), visit);
}

void rename_in(const Document& document, const detail::Fields& fields, Document::Node& node,
               const std::string& path, std::vector<std::string>& notes) {
  for_tables(node, path, [&](Table& table, const std::string& at) {
    const std::string prefix = at.empty() ? "" : at + ".";
    const auto entry = [&](const std::string& key) {
      return std::ranges::find(table.items, key, &Document::Node::key);
    };
    for (const detail::Fields::Field& field : fields.fields) {
      for (const std::string& alias : field.key.aliases) {
        const auto old = entry(alias);
        if (old == table.items.end()) continue;
        notes.push_back(fmt::format("{}: '{}{}' is now '{}{}'",
                                    describe_place(document, &*old, true), prefix, alias, prefix,
                                    field.name));
        const auto present = entry(field.name);
        old->key = field.name;
        if (present == table.items.end()) continue;
        require(old->assignment != nullptr, Failure::input, "{}, which is set too: remove one",
                notes.back());
        *present = std::move(*old);
        table.items.erase(old);
      }
      if (field.table)
        if (const auto found = entry(field.name); found != table.items.end())
          rename_in(document, *field.table, *found, prefix + field.name, notes);
    }
  });
}

}  // namespace

std::vector<std::string> Document::rename_aliases(const detail::Fields& fields) {
  root_ = std::make_shared<Node>(*root_);  // copies of this document keep their tree
  std::vector<std::string> notes;
  rename_in(*this, fields, *root_, "", notes);
  return notes;
}

std::string Document::where(std::string_view path) const {
  return describe_place(*this, find(path), false);
}

bool Document::has(std::string_view path) const { return find(path) != nullptr; }

std::optional<std::string> Document::word(std::string_view path) const {
  const Node* node = find(path);
  const auto* word = node ? std::get_if<std::string>(&node->value) : nullptr;
  return word ? std::optional(*word) : std::nullopt;
}

bool Document::was_set(std::string_view path) const {
  const Node* node = find(path);
  return node != nullptr && node->assignment != nullptr;
}

const Document::Node* Document::find(std::string_view path) const {
  const Node* node = root_.get();
  for (const std::string& part : split_path(path, origin_))
    if (node != nullptr) node = node->find(part);
  return node;
}

std::string describe_place(const Document& document, const Document::Node* node, bool of_key) {
  if (node == nullptr) return document.origin();
  if (node->assignment) return *node->assignment;
  const Place place = of_key ? node->key_place : node->place;
  if (place.line == 0) return document.origin();
  return fmt::format("{}:{}:{}", document.origin(), place.line, place.column);
}

std::string describe_value(const Document::Node& node) {
  using Node = Document::Node;
  if (const auto* truth = std::get_if<bool>(&node.value)) return *truth ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&node.value)) return fmt::to_string(*whole);
  if (const auto* real = std::get_if<double>(&node.value)) return fmt::format("{:#}", *real);
  if (const auto* text = std::get_if<std::string>(&node.value)) return quote(shortened(*text, 40));
  if (std::holds_alternative<Node::List>(node.value)) return "a list";
  return std::holds_alternative<Node::Table>(node.value) ? "a table" : "a date or time";
}

}  // namespace brume::deck
