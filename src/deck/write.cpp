#include "deck/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "deck/text.hpp"

namespace brume::deck::detail {
namespace {

constexpr std::size_t widest_value = 24;  // a longer one pushes its own comment only

void append_part(std::string& text, const std::string& part) {
  if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
}

std::string inside(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

class Writer {
 public:
  explicit Writer(bool with_help) : with_help_(with_help) {}

  void write(const Fields& fields, void* object, const std::string& path) {
    write_keys(fields, object);
    for (const Fields::Field& field : fields.fields) {
      if (!field.table) continue;
      const std::string name = inside(path, field.name);
      if (field.append) {
        for (std::size_t i = 0; i < field.count(object); ++i)
          write_table(field, "[[" + name + "]]", const_cast<void*>(field.at(object, i)), name);
      } else {
        write_table(field, "[" + name + "]", field.member(object), name);
      }
    }
  }

  std::string text;

 private:
  void write_table(const Fields::Field& field, const std::string& header, void* object,
                   const std::string& path) {
    if (!text.empty()) text += "\n";
    text += with_help_ && !field.key.help.empty() ? header + "  # " + field.key.help : header;
    text += "\n";
    write(*field.table, object, path);
  }

  /// Whether a key is written: of those only written if given or not least, whether it is.
  static bool wanted(const Fields::Field& field, void* object) {
    const Key& key = field.key;
    if (field.table || !(key.if_given || key.if_not_least)) return !field.table;
    return std::visit(
        [&](const auto& member) {
          if constexpr (requires { member->empty(); })
            return !member->empty();
          else if constexpr (std::is_same_v<decltype(member), const Choice&>)
            return true;
          else
            return key.if_not_least ? double(*member) != key.min
                                    : double(*member) >= key.min && double(*member) <= key.max;
        },
        field.value(object));
  }

  void write_keys(const Fields& fields, void* object) {
    std::size_t name_width = 0;
    std::size_t value_width = 0;
    for (const Fields::Field& field : fields.fields) {
      if (!wanted(field, object)) continue;
      name_width = std::max(name_width, field.name.size());
      const std::size_t size = format_value(field.value(object)).size();
      if (size <= widest_value) value_width = std::max(value_width, size);
    }
    for (const Fields::Field& field : fields.fields) {
      if (!wanted(field, object)) continue;
      const std::string value = format_value(field.value(object));
      const std::string help = with_help_ ? comment(field.key) : "";
      text += help.empty() ? fmt::format("{:<{}} = {}\n", field.name, name_width, value)
                           : fmt::format("{:<{}} = {:<{}}  # {}\n", field.name, name_width, value,
                                         value_width, help);
    }
  }

  static std::string comment(const Key& key) {
    std::string text;
    append_part(text, key.unit);
    append_part(text, key.help);
    append_part(text, format_bounds(key));
    return text;
  }

  bool with_help_;
};

const char* type_name(const Value& value) {
  // The order is that of Value's alternatives.
  static constexpr std::array names{
      "true/false",       "integer",          "integer",         "number",          "string",
      "list of integers", "list of integers", "list of numbers", "list of strings", "string"};
  static_assert(names.size() == std::variant_size_v<Value>);
  return names[value.index()];
}

void collect(const Fields& fields, void* defaults, const std::string& path,
             const std::string& table, std::vector<KeyText>& texts) {
  for (const Fields::Field& field : fields.fields) {
    const std::string name = inside(path, field.name);
    if (field.append) {
      collect(*field.table, field.append(defaults), name + "[]", field.key.help, texts);
    } else if (field.table) {
      collect(*field.table, field.member(defaults), name, field.key.help, texts);
    } else {
      const Value value = field.value(defaults);
      std::string help;
      append_part(help, field.key.help);
      append_part(help, format_bounds(field.key));
      texts.push_back({name, type_name(value), field.key.unit,
                       field.key.required ? "required" : format_value(value), help, table});
    }
  }
}

}  // namespace

std::string write(const Fields& fields, const void* object, bool with_help) {
  Writer writer(with_help);
  writer.write(fields, const_cast<void*>(object), "");  // the accessors serve reading too
  return writer.text;
}

std::vector<KeyText> help(const Fields& fields, void* defaults) {
  std::vector<KeyText> texts;
  collect(fields, defaults, "", "", texts);
  return texts;
}

}  // namespace brume::deck::detail
