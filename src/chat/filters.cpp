/// @file Filters by their names, and filters of lists.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"
#include "library.hpp"
#include "text_filters.hpp"
namespace brume::chat {
namespace {

/// A value by a path of attributes or items, as "a.b.0".
/// @param otherwise  stands for parts that are missing; none: these are errors but for the last
Value at_path(const Value& value, const Value& path, const Value* otherwise = nullptr) {
  const auto part = [&](const Value& of, const Value& key) {
    Value found = item(of, key);
    return found.undefined() && otherwise ? *otherwise : found;
  };
  if (path.whole()) return part(value, path);
  Value found = value;
  std::string_view rest = text_of(path);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('.'), rest.size());
    const std::string name(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const bool number =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
    found = part(found, number ? Value(std::int64_t(std::stoi(name))) : Value(name));
  }
  return found;
}

/// Values by which others are compared, unless case counts in lower case.
Value key_of(const Value& value, const Value& path, bool with_case) {
  Value key = path.none() ? value : at_path(value, path);
  return key.text() && !with_case ? Value(changed(*key.text(), lower)) : key;
}

struct Ordering {
  Value path;
  bool with_case, reversed;

  void sort(std::vector<Value>& values) const {
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& value : values) keyed.emplace_back(key_of(value, path, with_case), value);
    std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
      if (a.first == b.first) return false;
      return (reversed ? b.first.compare(a.first) : a.first.compare(b.first)) < 0;
    });
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::move(keyed[i].second);
  }
};

Value sorted(Run&, const Value& value, const Arguments& given) {
  std::vector<Value> values = value.items();
  Ordering{given.get(2, "attribute", None{}), given.get(1, "case_sensitive", false).truth(),
           given.get(0, "reverse", false).truth()}
      .sort(values);
  return Value::list(std::move(values));
}

Value dictsorted(Run&, const Value& value, const Arguments& given) {
  require(value.dict() != nullptr, Failure::input, "dictsort needs a dict, found '{}'",
          value.type());
  const bool by_value = given.get(1, "by", "key") == Value("value");
  std::vector<Value> pairs = pairs_of(*value.dict());
  Ordering{by_value ? 1 : 0, given.get(0, "case_sensitive", false).truth(),
           given.get(2, "reverse", false).truth()}
      .sort(pairs);
  return Value::list(std::move(pairs));
}

Value unique(Run&, const Value& value, const Arguments& given) {
  const bool with_case = given.get(0, "case_sensitive", false).truth();
  const Value path = given.get(1, "attribute", None{});
  std::vector<Value> kept, keys;
  for (const Value& one : value.items()) {
    Value key = key_of(one, path, with_case);
    if (std::ranges::find(keys, key) != keys.end()) continue;
    keys.push_back(std::move(key));
    kept.push_back(one);
  }
  return Value::list(std::move(kept));
}

Value extreme(const Value& value, const Arguments& given, int sign) {
  const bool with_case = given.get(0, "case_sensitive", false).truth();
  const Value path = given.get(1, "attribute", None{});
  const std::vector<Value> values = value.items();
  if (values.empty()) return Undefined{"no item of an empty list"};
  const Value* best = &values.front();
  Value key = key_of(*best, path, with_case);
  for (const Value& one : std::span(values).subspan(1)) {
    Value other = key_of(one, path, with_case);
    if (other.compare(key) * sign <= 0) continue;
    best = &one;
    key = std::move(other);
  }
  return *best;
}

Value summed(Run&, const Value& value, const Arguments& given) {
  const Value path = given.get(0, "attribute", None{});
  Value sum = given.get(1, "start", 0);
  for (const Value& one : value.items())
    sum = arithmetic("+", sum, path.none() ? one : at_path(one, path));
  return sum;
}

Value mapped(Run& run, const Value& value, const Arguments& given) {
  std::vector<Value> made;
  if (!value.truth()) return Value::lazy_list({});
  if (const Value* path = given.positional.empty() ? given.find(0, "attribute") : nullptr) {
    const Value* otherwise = given.find(1, "default");
    for (const Value& one : value.items()) made.push_back(at_path(one, *path, otherwise));
    return Value::lazy_list(std::move(made));
  }
  const std::string& name = text_of(given.need(0, "name"));
  const Filter filter = find_filter(name);
  require(filter != nullptr, Failure::input, "the filter '{}' is not supported", name);
  for (const Value& one : value.items()) made.push_back(filter(run, one, given.from(1)));
  return Value::lazy_list(std::move(made));
}

/// Items for which a test holds, or does not. `attributes`: of an attribute, named first.
Value chosen(const Value& value, const Arguments& given, bool holds, bool attributes) {
  if (!value.truth()) return Value::lazy_list({});
  const std::size_t at = attributes ? 1 : 0;
  const Value path = attributes ? given.need(0, "attribute") : Value(None{});
  const Value* name = given.find(at, "test");
  const Test test = name ? find_test(text_of(*name)) : nullptr;
  require(!name || test, Failure::input, "the test '{}' is not supported", name ? name->str() : "");
  std::vector<Value> made;
  for (const Value& one : value.items()) {
    const Value looked = attributes ? at_path(one, path) : one;
    if ((test ? test(looked, given.from(at + 1)) : looked.truth()) == holds) made.push_back(one);
  }
  return Value::lazy_list(std::move(made));
}

Value batched(Run&, const Value& value, const Arguments& given) {
  const std::int64_t count = whole_of(given.need(0, "linecount"));
  require(count >= 1, Failure::input, "a batch needs items");
  const Value* fill = given.find(1, "fill_with");
  std::vector<Value> made, batch;
  for (const Value& one : value.items()) {
    batch.push_back(one);
    if (std::ssize(batch) == count) made.push_back(Value::list(std::exchange(batch, {})));
  }
  if (batch.empty()) return Value::list(std::move(made));
  while (fill && !fill->none() && std::ssize(batch) < count) {
    charge(sizeof(Value));
    batch.push_back(*fill);
  }
  made.push_back(Value::list(std::move(batch)));
  return Value::list(std::move(made));
}

Value with_end(const Value& value, bool first) {
  const std::vector<Value> items = value.items();
  if (items.empty()) return Undefined{"no item of an empty list"};
  return first ? items.front() : items.back();
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> all{
      {"abs",
       [](auto&, auto& v, auto&) { return v.compare(0) < 0 ? negated(v) : arithmetic("+", 0, v); }},
      {"attr", [](auto&, auto& v, auto& g) { return attribute(v, text_of(g.need(0, "name"))); }},
      {"batch", batched},
      {"capitalize", [](auto&, auto& v, auto&) -> Value { return capitalized(v.str()); }},
      {"count", [](auto&, auto& v, auto&) -> Value { return v.length(); }},
      {"default",
       [](auto&, auto& v, auto& g) {
         const bool falls = v.undefined() || (g.get(1, "boolean", false).truth() && !v.truth());
         return falls ? g.get(0, "default_value", "") : v;
       }},
      {"dictsort", dictsorted},
      {"e", escaped},
      {"escape", escaped},
      {"first", [](auto&, auto& v, auto&) { return with_end(v, true); }},
      {"float", as_number},
      {"format",
       [](auto&, auto& v, auto& g) -> Value { return formatted(text_of(v), g.positional); }},
      {"indent", indented},
      {"int", as_whole},
      {"items",
       [](auto&, auto& v, auto&) {
         require(v.dict() || v.undefined(), Failure::input, "'{}' has no pairs", v.type());
         return Value::list(v.dict() ? pairs_of(*v.dict()) : std::vector<Value>());
       }},
      {"join",
       [](auto&, auto& v, auto& g) -> Value {
         const Value path = g.get(1, "attribute", None{});
         std::vector<Value> values = v.items();
         if (!path.none())
           for (Value& one : values) one = at_path(one, path);
         return joined(values, g.get(0, "d", "").str());
       }},
      {"last", [](auto&, auto& v, auto&) { return with_end(v, false); }},
      {"length", [](auto&, auto& v, auto&) -> Value { return v.length(); }},
      {"list", [](auto&, auto& v, auto&) { return Value::list(v.items()); }},
      {"lower", [](auto&, auto& v, auto&) -> Value { return changed(v.str(), lower); }},
      {"map", mapped},
      {"max", [](auto&, auto& v, auto& g) { return extreme(v, g, 1); }},
      {"min", [](auto&, auto& v, auto& g) { return extreme(v, g, -1); }},
      {"reject", [](auto&, auto& v, auto& g) { return chosen(v, g, false, false); }},
      {"rejectattr", [](auto&, auto& v, auto& g) { return chosen(v, g, false, true); }},
      {"replace",
       [](auto&, auto& v, auto& g) -> Value {
         const Value most = g.get(2, "count", None{});
         return with_replaced(v.str(), g.need(0, "old").str(), g.need(1, "new").str(),
                              most.none() ? -1 : whole_of(most));
       }},
      {"reverse",
       [](auto&, auto& v, auto&) -> Value {
         std::vector<Value> items = v.items();
         std::ranges::reverse(items);
         return v.text() ? Value(joined(items, "")) : Value::list(std::move(items));
       }},
      {"round", rounded},
      {"safe", [](auto&, auto& v, auto&) -> Value { return v.str(); }},
      {"select", [](auto&, auto& v, auto& g) { return chosen(v, g, true, false); }},
      {"selectattr", [](auto&, auto& v, auto& g) { return chosen(v, g, true, true); }},
      {"sort", sorted},
      {"string", [](auto&, auto& v, auto&) -> Value { return v.str(); }},
      {"sum", summed},
      {"title", headline},
      {"tojson", as_json},
      {"trim", [](auto&, auto& v, auto& g) { return without_ends(v.str(), g, Ends::both); }},
      {"unique", unique},
      {"upper", [](auto&, auto& v, auto&) -> Value { return changed(v.str(), upper); }},
      {"wordcount", [](auto&, auto& v, auto&) -> Value {
         std::int64_t words = 0;
         bool within = false;
         for (const char32_t point : code_points(v.str())) {
           const bool of_word = is_letter(point) || is_digit(point) || point == '_';
           words += of_word && !within ? 1 : 0;
           within = of_word;
         }
         return words;
       }}};
  const auto found = all.find(name == "d" ? "default" : name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace brume::chat
