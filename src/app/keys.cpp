/// @file The verb keys: the keys of decks, plans, profiles, machines and networks.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "deck/deck.hpp"
#include "deck/machine.hpp"
#include "hardware/profile.hpp"
#include "plan/knobs.hpp"
#include "planning.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using deck::KeyText;

/// A line a key, in columns.
std::string as_lines(const std::vector<KeyText>& keys) {
  constexpr std::array columns{&KeyText::key, &KeyText::type, &KeyText::unit, &KeyText::usual};
  std::array<std::size_t, columns.size()> width{};
  for (std::size_t c = 0; c < columns.size(); ++c)
    for (const KeyText& key : keys) width[c] = std::max(width[c], (key.*columns[c]).size());
  std::string text;
  for (const KeyText& key : keys) {
    for (std::size_t c = 0; c < columns.size(); ++c)
      text += fmt::format("{:<{}}  ", key.*columns[c], width[c]);
    text += key.help + "\n";
  }
  return text;
}

/// "training.optimizer" of "training.optimizer.lr"; "" of a key at the top.
std::string table_of(const KeyText& key) {
  const std::size_t dot = key.key.rfind('.');
  return dot == std::string::npos ? "" : key.key.substr(0, dot);
}

/// The keys of a kind of file.
std::vector<KeyText> keys_of(const std::string& kind) {
  if (kind == "plan") return plan::plan_schema().help();
  if (kind == "profile") return hardware::profile_schema().help();
  if (kind == "machine") return deck::machine_schema().help();
  if (kind == "network") return hardware::network_keys();
  return deck::schema().help();
}

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = char(text[0] - 'a' + 'A');
  return text;
}

/// Words in which a bar does not end a cell.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

/// A table for each table of the file.
std::string as_markdown(const std::vector<KeyText>& keys) {
  std::vector<std::string> tables;
  for (const KeyText& key : keys)
    if (std::ranges::find(tables, table_of(key)) == tables.end()) tables.push_back(table_of(key));
  std::string text;
  for (const std::string& table : tables) {
    const auto first = std::ranges::find(keys, table, table_of);
    const bool list = table.ends_with("[]");
    const std::string name = list ? table.substr(0, table.size() - 2) : table;
    if (!table.empty())
      text += fmt::format("{}### {}{}{}\n\n{}.\n\n", text.empty() ? "" : "\n", list ? "[[" : "[",
                          name, list ? "]]" : "]", capitalized(first->table));
    text += "| key | type | default | meaning |\n| --- | --- | --- | --- |\n";
    for (const KeyText& key : keys)
      if (table_of(key) == table)
        text += fmt::format(
            "| `{}` | {}{} | {} | {} |\n", key.key.substr(table.empty() ? 0 : table.size() + 1),
            key.type, key.unit.empty() ? "" : " [" + key.unit + "]",
            key.usual == "required" ? key.usual : "`" + key.usual + "`", cell(key.help));
  }
  return text;
}

}  // namespace

int keys(const KeysOptions& options) {
  std::vector<KeyText> keys = keys_of(options.kind);
  std::vector<std::string> tables;
  for (const KeyText& key : keys) tables.push_back(key.key.substr(0, key.key.find('.')));
  std::erase_if(keys, [&](const KeyText& key) { return !key.key.starts_with(options.prefix); });
  const std::string meant =
      keys.empty() ? nearest(options.prefix.substr(0, options.prefix.find('.')), tables) : "";
  require(!keys.empty(), Failure::input, "no key of a {} begins with '{}'{}", options.kind,
          options.prefix, meant.empty() ? "" : "; did you mean '" + meant + "'?");
  if (options.markdown)
    print(as_markdown(keys));
  else  // lines that nobody watches stay whole, to be searched
    print(terminal::watched(STDOUT_FILENO)
              ? hanging(as_lines(keys), terminal::columns(STDOUT_FILENO))
              : as_lines(keys));
  return 0;
}

}  // namespace brume::app
