/// @file Methods of texts, dictionaries and lists.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"
#include "library.hpp"
namespace brume::chat {
namespace {

using TextMethod = Value (*)(const std::string& text, const Arguments& given);

/// Parts of a text between separators; without one, between white space.
std::vector<Value> parts_of(const std::string& text, const Arguments& given, bool from_right) {
  std::int64_t most = whole_of(given.get(1, "maxsplit", -1));
  if (most < 0) most = std::int64_t{1} << 60;
  const Value separator = given.get(0, "sep", None{});
  std::vector<Value> parts;
  if (separator.none()) {
    std::u32string points = code_points(text);
    if (from_right) std::ranges::reverse(points);
    std::u32string_view rest = points;
    const auto skip = [&] {
      while (!rest.empty() && is_space(rest.front())) rest.remove_prefix(1);
    };
    for (skip(); !rest.empty(); skip()) {
      std::size_t end = 0;
      if (most-- > 0)
        while (end < rest.size() && !is_space(rest[end])) ++end;
      else
        end = rest.size();
      std::u32string part(rest.substr(0, end));
      rest.remove_prefix(end);
      if (from_right) std::ranges::reverse(part);
      parts.emplace_back(utf8(part));
    }
    if (from_right) std::ranges::reverse(parts);
    return parts;
  }
  const std::string& between = text_of(separator);
  require(!between.empty(), Failure::input, "the separator is empty");
  std::string_view rest = text;
  for (; most > 0; --most) {
    const std::size_t at = from_right ? rest.rfind(between) : rest.find(between);
    if (at == rest.npos) break;
    const std::string_view before = rest.substr(0, at), behind = rest.substr(at + between.size());
    parts.emplace_back(from_right ? behind : before);
    rest = from_right ? before : behind;
  }
  parts.emplace_back(rest);
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

/// Whether a text begins or ends with a text, or with one of several.
bool has_end(const std::string& text, const Arguments& given, bool first) {
  const Value& part = given.need(0, "prefix");
  require(given.positional.size() == 1, Failure::input,
          "startswith and endswith take one argument");
  const auto has = [&](const Value& one) {
    return first ? text.starts_with(text_of(one)) : text.ends_with(text_of(one));
  };
  return part.list() ? std::ranges::any_of(part.list()->items, has) : has(part);
}

Value place_of(const std::string& text, const Arguments& given, bool last) {
  const std::string& part = text_of(given.need(0, "sub"));
  require(given.positional.size() == 1, Failure::input, "find and index take one argument");
  const std::size_t at = last ? text.rfind(part) : text.find(part);
  if (at == text.npos) return -1;
  return std::ssize(code_points(std::string_view(text).substr(0, at)));
}

Value counted_in(const std::string& text, const Arguments& given) {
  const std::string& part = text_of(given.need(0, "sub"));
  if (part.empty()) return 1 + std::ssize(code_points(text));
  std::int64_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

/// Words with a first letter of upper case and others of lower case.
std::string titled(const std::string& text) {
  std::u32string points = code_points(text);
  bool within = false;
  for (char32_t& point : points) {
    point = within ? lower(point) : upper(point);
    within = is_letter(point);
  }
  return utf8(points);
}

/// str.format with "{}", "{0}" and "{name}".
Value filled(const std::string& text, const Arguments& given) {
  std::string made;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool doubled = i + 1 < text.size() && text[i + 1] == text[i];
    if ((text[i] != '{' && text[i] != '}') || doubled) {
      made += text[i];
      if (text[i] == '{' || text[i] == '}') ++i;
      continue;
    }
    const std::size_t end = text.find('}', i);
    require(text[i] == '{' && end != text.npos, Failure::input, "the format '{}' has a single '{}'",
            text, text[i]);
    const std::string field = text.substr(i + 1, end - i - 1);
    i = end;
    const bool number = !field.empty() && field.find_first_not_of("0123456789") == field.npos;
    require(field.find_first_of(".[!:{") == field.npos && field.size() < 64, Failure::input,
            "the format '{{{}}}' is not supported", field);
    const std::size_t place = field.empty() ? next++
                              : number      ? std::size_t(std::strtoull(field.c_str(), nullptr, 10))
                                            : given.positional.size();
    made += given.need(place, field).str();
    require_size(made.size());
  }
  return made;
}

bool all_are(const std::string& text, bool (*holds)(char32_t)) {
  return !text.empty() && std::ranges::all_of(code_points(text), holds);
}

Value without_end(const std::string& text, const Arguments& given, bool first) {
  const std::string& part = text_of(given.need(0, "prefix"));
  if (first ? !text.starts_with(part) : !text.ends_with(part)) return text;
  return first ? text.substr(part.size()) : text.substr(0, text.size() - part.size());
}

const std::map<std::string_view, TextMethod>& text_methods() {
  static const std::map<std::string_view, TextMethod> all{
      {"strip", [](auto& t, auto& g) { return without_ends(t, g, Ends::both); }},
      {"lstrip", [](auto& t, auto& g) { return without_ends(t, g, Ends::left); }},
      {"rstrip", [](auto& t, auto& g) { return without_ends(t, g, Ends::right); }},
      {"split", [](auto& t, auto& g) { return Value::list(parts_of(t, g, false)); }},
      {"rsplit", [](auto& t, auto& g) { return Value::list(parts_of(t, g, true)); }},
      {"splitlines",
       [](auto& t, auto&) {
         std::vector<Value> made;
         for (std::string& line : lines(t)) made.emplace_back(std::move(line));
         return Value::list(std::move(made));
       }},
      {"startswith", [](auto& t, auto& g) -> Value { return has_end(t, g, true); }},
      {"endswith", [](auto& t, auto& g) -> Value { return has_end(t, g, false); }},
      {"removeprefix", [](auto& t, auto& g) { return without_end(t, g, true); }},
      {"removesuffix", [](auto& t, auto& g) { return without_end(t, g, false); }},
      {"upper", [](auto& t, auto&) -> Value { return changed(t, upper); }},
      {"lower", [](auto& t, auto&) -> Value { return changed(t, lower); }},
      {"title", [](auto& t, auto&) -> Value { return titled(t); }},
      {"capitalize", [](auto& t, auto&) -> Value { return capitalized(t); }},
      {"replace",
       [](auto& t, auto& g) -> Value {
         return with_replaced(t, text_of(g.need(0, "old")), text_of(g.need(1, "new")),
                              whole_of(g.get(2, "count", -1)));
       }},
      {"join",
       [](auto& t, auto& g) -> Value {
         const std::vector<Value> items = g.need(0, "iterable").items();
         for (const Value& one : items) text_of(one);
         return joined(items, t);
       }},
      {"find", [](auto& t, auto& g) { return place_of(t, g, false); }},
      {"rfind", [](auto& t, auto& g) { return place_of(t, g, true); }},
      {"index",
       [](auto& t, auto& g) {
         Value place = place_of(t, g, false);
         require(place != Value(-1), Failure::input, "the text is not found");
         return place;
       }},
      {"count", counted_in},
      {"format", filled},
      {"isdigit", [](auto& t, auto&) -> Value { return all_are(t, is_digit); }},
      {"isalpha", [](auto& t, auto&) -> Value { return all_are(t, is_letter); }},
      {"isalnum",
       [](auto& t, auto&) -> Value {
         return all_are(t, [](char32_t p) { return is_letter(p) || is_digit(p); });
       }},
      {"isspace", [](auto& t, auto&) -> Value { return all_are(t, is_space); }},
      {"isupper",
       [](auto& t, auto&) -> Value { return changed(t, upper) == t && changed(t, lower) != t; }},
      {"islower",
       [](auto& t, auto&) -> Value { return changed(t, lower) == t && changed(t, upper) != t; }}};
  return all;
}

using OtherMethod = Value (*)(const Value& value, const Arguments& given);

OtherMethod dict_method(std::string_view name) {
  static const std::map<std::string_view, OtherMethod> all{
      {"items", [](auto& v, auto&) { return Value::list(pairs_of(*v.dict())); }},
      {"keys", [](auto& v, auto&) { return Value::list(v.items()); }},
      {"values",
       [](auto& v, auto&) {
         std::vector<Value> values;
         for (const auto& item : v.dict()->items) values.push_back(item.second);
         return Value::list(std::move(values));
       }},
      {"get",
       [](auto& v, auto& g) {
         const Value* found = v.dict()->find(g.need(0, "key"));
         return found ? *found : g.get(1, "default", None{});
       }},
      {"copy", [](auto& v, auto&) { return v; }}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

OtherMethod list_method(std::string_view name) {
  static const std::map<std::string_view, OtherMethod> all{
      {"index",
       [](auto& v, auto& g) -> Value {
         const auto& items = v.list()->items;
         const auto found = std::ranges::find(items, g.need(0, "value"));
         require(found != items.end(), Failure::input, "the value is not in the list");
         return std::int64_t(found - items.begin());
       }},
      {"count",
       [](auto& v, auto& g) -> Value {
         return std::int64_t(std::ranges::count(v.list()->items, g.need(0, "value")));
       }},
      {"copy", [](auto& v, auto&) { return v; }}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

/// Methods by which Python changes a value; a template may not.
bool changes(const Value& value, std::string_view name) {
  const auto is_any = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (value.list())
    return !value.list()->tuple &&
           is_any({"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
  return value.dict() && is_any({"clear", "pop", "popitem", "setdefault", "update"});
}

}  // namespace

Value without_ends(const std::string& text, const Arguments& given, Ends ends) {
  const Value set = given.get(0, "chars", None{});
  if (set.none()) return stripped(text, ends);
  return text_of(set).empty() ? text : stripped(text, ends, text_of(set));
}

std::vector<Value> pairs_of(const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) pairs.push_back(Value::list({key, value}, true));
  return pairs;
}

Value attribute(const Value& value, const std::string& name) {
  value.require_defined();
  if (value.text())
    if (const auto found = text_methods().find(name); found != text_methods().end())
      return Function{name, [text = *value.text(), call = found->second](
                                Run&, const Arguments& given) { return call(text, given); }};
  const OtherMethod method = value.dict()   ? dict_method(name)
                             : value.list() ? list_method(name)
                                            : nullptr;
  if (method != nullptr)
    return Function{name,
                    [value, method](Run&, const Arguments& given) { return method(value, given); },
                    value.depth() + 1};
  if (changes(value, name))
    return Function{name, [name](Run&, const Arguments&) -> Value {
                      throw Error(Failure::input, "'{}' changes a value, which templates may not",
                                  name);
                    }};
  const Dict* items = value.object() ? &(*value.object())->attributes : value.dict();
  if (items != nullptr)
    if (const Value* found = items->find(std::string_view(name))) return *found;
  return Undefined{fmt::format("'{}' has no attribute '{}'", value.type(), name)};
}

}  // namespace brume::chat
