/// @file Values of chat templates: how they are made, asked and compared.
#include "value.hpp"

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"
namespace brume::chat {
namespace {

constexpr int deepest_value = 500;
constexpr std::size_t compared_bytes = 16;  ///< the budget's loss by a comparison

void require_depth(int depth) {
  require(depth <= deepest_value, Failure::input, "values are nested more than {} deep",
          deepest_value);
}

int order(const auto& a, const auto& b) { return a < b ? -1 : a > b ? 1 : 0; }

}  // namespace

const Value* Dict::find(const Value& key) const {
  charge(items.size() * compared_bytes);
  const auto found =
      std::ranges::find_if(items, [&](const auto& item) { return item.first == key; });
  return found == items.end() ? nullptr : &found->second;
}

const Value* Dict::find(std::string_view key) const {
  charge(items.size() * compared_bytes);
  const auto found = std::ranges::find_if(
      items, [&](const auto& item) { return item.first.text() && *item.first.text() == key; });
  return found == items.end() ? nullptr : &found->second;
}

void Dict::put(Value key, Value value) {
  require(!key.list() && !key.dict() && !key.object(), Failure::input, "a {} is no key",
          key.type());
  depth = std::max(depth, 1 + value.depth());
  require_depth(depth);
  charge(sizeof(items.front()));
  if (const Value* found = find(key))
    const_cast<Value&>(*found) = std::move(value);
  else
    items.emplace_back(std::move(key), std::move(value));
}

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  const auto found =
      std::ranges::find_if(named, [&](const auto& one) { return one.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

Value Arguments::get(std::size_t position, std::string_view name, Value otherwise) const {
  const Value* found = find(position, name);
  return found ? *found : std::move(otherwise);
}

const Value& Arguments::need(std::size_t position, std::string_view name) const {
  const Value* found = find(position, name);
  require(found != nullptr, Failure::input, "the argument '{}' is missing", name);
  return *found;
}

Arguments Arguments::from(std::size_t position) const {
  Arguments rest{.positional = {}, .named = named};
  if (position < positional.size())
    rest.positional.assign(positional.begin() + std::ptrdiff_t(position), positional.end());
  return rest;
}

Value::Value(std::string text) {
  constexpr std::size_t around_bytes = 64;  // of a string in memory of its own
  require_size(text.size());
  charge(text.size() + around_bytes);
  held_ = std::make_shared<const std::string>(std::move(text));
}

Value::Value(Dict dict) : held_(std::make_shared<const Dict>(std::move(dict))) {}

Value::Value(Function function) : held_(std::make_shared<const Function>(std::move(function))) {}

Value Value::list(std::vector<Value> items, bool tuple) {
  charge(items.size() * sizeof(Value));
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, 1 + item.depth());
  require_depth(depth);
  Value made;
  made.held_ = std::make_shared<const List>(List{std::move(items), tuple, false, depth});
  return made;
}

Value Value::lazy_list(std::vector<Value> items) {
  Value made = list(std::move(items));
  List lazy = *made.list();
  lazy.lazy = true;
  made.held_ = std::make_shared<const List>(std::move(lazy));
  return made;
}

Value Value::of(const nlohmann::ordered_json& json, int depth) {
  require_depth(depth);
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get_ref<const std::string&>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number()) {
    require(!json.is_number_unsigned() || json.get<std::uint64_t>() <= std::uint64_t(INT64_MAX),
            Failure::input, "the number {} has more than 64 bits", json.dump());
    return json.get<std::int64_t>();
  }
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(of(item, depth + 1));
    return list(std::move(items));
  }
  Dict dict;
  for (const auto& [key, value] : json.items()) {
    dict.items.emplace_back(key, of(value, depth + 1));
    dict.depth = std::max(dict.depth, 1 + dict.items.back().second.depth());
  }
  return dict;
}

std::optional<std::int64_t> Value::whole() const {
  if (const bool* flag = as<bool>()) return *flag ? 1 : 0;
  const std::int64_t* number = as<std::int64_t>();
  return number == nullptr ? std::nullopt : std::optional(*number);
}

std::optional<double> Value::number() const {
  if (const double* number = as<double>()) return *number;
  const std::optional<std::int64_t> number = whole();
  return number ? std::optional(double(*number)) : std::nullopt;
}

void Value::require_defined() const {
  require(!undefined(), Failure::input, "{}", undefined() ? undefined()->reason : "");
}

bool Value::truth() const {
  if (undefined() || none()) return false;
  if (const std::optional<double> value = number()) return *value != 0.0;
  if (text()) return !text()->empty();
  if (list()) return list()->lazy || !list()->items.empty();
  if (dict()) return !dict()->items.empty();
  return true;
}

int Value::depth() const {
  if (list()) return list()->depth;
  if (dict()) return dict()->depth;
  if (object()) return (*object())->is_namespace ? 1 : (*object())->attributes.depth;
  return function() ? function()->depth : 0;
}

const char* Value::type() const {
  if (undefined()) return "undefined";
  if (none()) return "None";
  if (as<bool>()) return "bool";
  if (as<std::int64_t>()) return "int";
  if (as<double>()) return "float";
  if (text()) return "str";
  if (list()) return list()->tuple ? "tuple" : "list";
  if (dict()) return "dict";
  return function() ? "function" : "object";
}

bool Value::iterable() const { return undefined() || text() || list() || dict(); }

std::vector<Value> Value::items() const {
  std::vector<Value> found;
  if (list()) return list()->items;
  if (dict()) {
    for (const auto& item : dict()->items) found.push_back(item.first);
    return found;
  }
  if (text()) {
    for (const char32_t point : code_points(*text())) found.emplace_back(utf8({&point, 1}));
    return found;
  }
  require(iterable(), Failure::input, "'{}' has no items", type());
  return found;
}

std::int64_t Value::length() const {
  if (undefined()) return 0;
  if (text()) return std::ssize(code_points(*text()));
  if (list()) return std::ssize(list()->items);
  require(dict() != nullptr, Failure::input, "'{}' has no length", type());
  return std::ssize(dict()->items);
}

bool Value::operator==(const Value& other) const {
  charge(compared_bytes + (text() ? text()->size() : 0));
  if (whole() && other.whole()) return *whole() == *other.whole();
  if (number() && other.number()) return *number() == *other.number();
  if (text() && other.text()) return *text() == *other.text();
  if (list() && other.list())
    return list()->tuple == other.list()->tuple && list()->items == other.list()->items;
  if (dict() && other.dict())
    return dict()->items.size() == other.dict()->items.size() &&
           std::ranges::all_of(dict()->items, [&](const auto& item) {
             const Value* found = other.dict()->find(item.first);
             return found && *found == item.second;
           });
  if (object() && other.object()) return *object() == *other.object();
  if (function() && other.function()) return function() == other.function();
  return (none() && other.none()) || (undefined() && other.undefined());
}

int Value::compare(const Value& other) const {
  charge(compared_bytes);
  if (whole() && other.whole()) return order(*whole(), *other.whole());
  if (number() && other.number()) return order(*number(), *other.number());
  if (text() && other.text()) return order(code_points(*text()), code_points(*other.text()));
  if (list() && other.list() && list()->tuple == other.list()->tuple) {
    const auto &a = list()->items, &b = other.list()->items;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (a[i] != b[i]) return a[i].compare(b[i]);
    return order(a.size(), b.size());
  }
  throw Error(Failure::input, "'{}' and '{}' cannot be compared", type(), other.type());
}

bool Value::contains(const Value& item) const {
  if (text()) {
    require(item.text() != nullptr, Failure::input, "a text contains texts, not '{}'", item.type());
    charge(text()->size());
    return text()->find(*item.text()) != std::string::npos;
  }
  if (dict()) return dict()->find(item) != nullptr;
  if (list()) return std::ranges::find(list()->items, item) != list()->items.end();
  require(undefined() != nullptr, Failure::input, "'{}' has no items", type());
  return false;
}

}  // namespace brume::chat
