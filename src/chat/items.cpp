/// @file Items and slices of values.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"
#include "library.hpp"

namespace brume::chat {

Value item(const Value& value, const Value& key) {
  value.require_defined();
  if (value.dict())
    if (const Value* found = value.dict()->find(key)) return *found;
  if (value.whole() || !key.whole() || !(value.list() || value.text())) {
    if (key.text()) return attribute(value, *key.text());
    return Undefined{fmt::format("'{}' has no item {:.60}", value.type(), key.repr())};
  }
  const std::int64_t count = value.length();
  const std::int64_t index = *key.whole() + (*key.whole() < 0 ? count : 0);
  if (index < 0 || index >= count)
    return Undefined{
        fmt::format("'{}' has {} items, and none at {}", value.type(), count, *key.whole())};
  if (value.list()) return value.list()->items[std::size_t(index)];
  return utf8(code_points(*value.text()).substr(std::size_t(index), 1));
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  value.require_defined();
  require(value.list() || value.text(), Failure::input, "'{}' has no slices", value.type());
  const std::int64_t count = value.length(), by = step.none() ? 1 : whole_of(step);
  require(by != 0, Failure::input, "the step of a slice is 0");
  const std::int64_t least = by > 0 ? 0 : -1, most = by > 0 ? count : count - 1;
  const auto place = [&](const Value& given, std::int64_t otherwise) {
    if (given.none()) return otherwise;
    const std::int64_t at = whole_of(given);
    return std::clamp(at < 0 ? std::max(at, -count) + count + (at < -count ? least : 0) : at, least,
                      most);
  };
  const std::int64_t first = place(begin, by > 0 ? 0 : count - 1),
                     last = place(end, by > 0 ? count : -1);
  charge(std::size_t(count) * sizeof(std::size_t));
  std::vector<std::size_t> chosen;
  for (std::int64_t i = first; by > 0 ? i < last : i > last;) {
    chosen.push_back(std::size_t(i));
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (value.list()) {
    std::vector<Value> items;
    for (const std::size_t i : chosen) items.push_back(value.list()->items[i]);
    return Value::list(std::move(items), value.list()->tuple);
  }
  const std::u32string points = code_points(*value.text());
  std::u32string made;
  for (const std::size_t i : chosen) made += points[i];
  return utf8(made);
}

}  // namespace brume::chat
