/// @file Operators of templates, computed; formats and replacements in texts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"
#include "library.hpp"
namespace brume::chat {
namespace {

[[noreturn]] void fail(std::string_view sign, const Value& a, const Value& b) {
  a.require_defined();
  b.require_defined();
  throw Error(Failure::input, "'{}' cannot be used with '{}' and '{}'", sign, a.type(), b.type());
}

/// The rest of a division whose quotient is rounded down, as Python does.
std::int64_t floor_rest(std::int64_t a, std::int64_t b) {
  const std::int64_t rest = b == -1 ? 0 : a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
double floor_rest(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0.0 && (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}

void require_fit(bool overflows) {
  require(!overflows, Failure::input, "a number has more than 64 bits");
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t made = 1;
  // Only 0, 1 and -1 have large powers.
  if (base >= -1 && base <= 1) exponent = std::min<std::int64_t>(exponent, 2 + exponent % 2);
  for (; exponent > 0; --exponent) {
    require_fit(__builtin_mul_overflow(made, base, &made));
  }
  return made;
}

std::optional<Value> of_whole(std::string_view sign, std::int64_t a, std::int64_t b) {
  std::int64_t made = 0;
  bool overflows = false;
  if (sign == "+") {
    overflows = __builtin_add_overflow(a, b, &made);
  } else if (sign == "-") {
    overflows = __builtin_sub_overflow(a, b, &made);
  } else if (sign == "*") {
    overflows = __builtin_mul_overflow(a, b, &made);
  } else if (sign == "**" && b >= 0) {
    made = power(a, b);
  } else if (sign == "//" || sign == "%") {
    require(b != 0, Failure::input, "division by zero");
    const std::int64_t rest = floor_rest(a, b);
    if (sign == "%")
      made = rest;
    else if (b == -1)
      overflows = __builtin_sub_overflow(0, a, &made);
    else
      made = a / b - (rest != a % b ? 1 : 0);
  } else {
    return std::nullopt;
  }
  require_fit(overflows);
  return made;
}

std::optional<Value> of_numbers(std::string_view sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") {
    const double made = std::pow(a, b);
    require(std::isfinite(made) || !std::isfinite(a) || !std::isfinite(b), Failure::input,
            "{} ** {} is no number", a, b);
    return made;
  }
  require(b != 0.0, Failure::input, "division by zero");
  if (sign == "/") return a / b;
  if (sign == "//") return std::round((a - floor_rest(a, b)) / b);
  if (sign == "%") return floor_rest(a, b);
  return std::nullopt;
}

/// A text or a list, `count` times; none: `value` is neither.
std::optional<Value> repeated(const Value& value, std::int64_t count) {
  const auto times = std::size_t(std::max<std::int64_t>(count, 0));
  if (const std::string* text = value.text()) {
    if (text->empty()) return value;
    require_size(times);  // the product of both fits
    require_size(text->size() * times);
    std::string made;
    for (std::size_t i = 0; i < times; ++i) made += *text;
    return made;
  }
  const List* list = value.list();
  if (list == nullptr) return std::nullopt;
  if (list->items.empty()) return value;
  require_size(times);  // the product of both fits
  charge(list->items.size() * times * sizeof(Value));
  std::vector<Value> made;
  for (std::size_t i = 0; i < times; ++i)
    made.insert(made.end(), list->items.begin(), list->items.end());
  return Value::list(std::move(made), list->tuple);
}

}  // namespace

Value arithmetic(std::string_view sign, const Value& a, const Value& b) {
  if (a.whole() && b.whole())
    if (auto made = of_whole(sign, *a.whole(), *b.whole())) return *made;
  if (a.number() && b.number())
    if (auto made = of_numbers(sign, *a.number(), *b.number())) return *made;
  if (sign == "+" && a.text() && b.text()) {
    require_size(a.text()->size() + b.text()->size());
    return *a.text() + *b.text();
  }
  if (sign == "+" && a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    charge((a.list()->items.size() + b.list()->items.size()) * sizeof(Value));
    std::vector<Value> made = a.list()->items;
    made.insert(made.end(), b.list()->items.begin(), b.list()->items.end());
    return Value::list(std::move(made), a.list()->tuple);
  }
  if (sign == "*")
    for (const auto& [value, count] : {std::pair(&a, b.whole()), std::pair(&b, a.whole())})
      if (count)
        if (auto made = repeated(*value, *count)) return *made;
  if (sign == "%" && a.text())
    return formatted(*a.text(), b.list() && b.list()->tuple ? b.list()->items : std::vector{b});
  fail(sign, a, b);
}

Value negated(const Value& value) {
  if (const double* number = value.as<double>()) return -*number;
  return arithmetic("-", 0, value);
}

bool comparison(std::string_view sign, const Value& a, const Value& b) {
  if (sign == "==") return a == b;
  if (sign == "!=") return !(a == b);
  if (sign == "in") return b.contains(a);
  if (sign == "not in") return !b.contains(a);
  if (a.undefined() || b.undefined()) fail(sign, a, b);
  const bool no_numbers =
      a.number() && b.number() && (std::isnan(*a.number()) || std::isnan(*b.number()));
  if (no_numbers) return false;
  const int order = a.compare(b);
  if (sign == "<") return order < 0;
  if (sign == "<=") return order <= 0;
  return sign == ">" ? order > 0 : order >= 0;
}

std::int64_t whole_of(const Value& value) {
  require(value.whole().has_value(), Failure::input, "expected a whole number, found '{}'",
          value.type());
  return *value.whole();
}

const std::string& text_of(const Value& value) {
  value.require_defined();
  require(value.text() != nullptr, Failure::input, "expected a text, found '{}'", value.type());
  return *value.text();
}

std::string formatted(std::string_view format, const std::vector<Value>& values) {
  std::string made;
  std::size_t next = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      made += format[i];
      continue;
    }
    std::size_t end = format.find_first_not_of("0123456789.-+ #", i + 1);
    require(end != format.npos, Failure::input, "the format '{}' is not complete", format);
    const std::string_view flags = format.substr(i + 1, end - i - 1);
    i = end;
    if (format[end] == '%') {
      made += '%';
      continue;
    }
    require_size(made.size());
    require(next < values.size(), Failure::input, "the format '{}' needs more values", format);
    const Value& value = values[next++];
    const char kind = format[end];
    if (flags.empty() && (kind == 's' || kind == 'r')) {
      made += kind == 's' ? value.str() : value.repr();
      continue;
    }
    // Signs, a width and a precision, in this order.
    const bool left = flags.starts_with('-'), zeros = flags.starts_with('0');
    std::string_view rest = flags.substr(left ? 1 : 0);
    const auto figures = [&](int otherwise) {
      int number = otherwise;
      const std::size_t count = std::min(rest.find_first_not_of("0123456789"), rest.size());
      require(count <= 3, Failure::input, "the format '{}' is too wide", format);
      if (count > 0) number = std::atoi(std::string(rest.substr(0, count)).c_str());
      rest.remove_prefix(count);
      return number;
    };
    const int width = figures(0);
    const bool point = rest.starts_with('.');
    if (point) rest.remove_prefix(1);
    const int precision = point ? figures(0) : 6;
    require(rest.empty() && value.number() && (kind == 'd' || kind == 'i' || kind == 'f'),
            Failure::input, "the format '%{}{}' is not supported for '{}'", flags, kind,
            value.type());
    const std::string number =
        kind == 'f' ? fmt::format("{:.{}f}", *value.number(), precision)
                    : fmt::format("{}", value.whole().value_or(std::int64_t(
                                            std::clamp(*value.number(), -9e18, 9e18))));
    const std::size_t missing =
        std::size_t(width) > number.size() ? std::size_t(width) - number.size() : 0;
    const bool minus = zeros && number.starts_with('-');
    if (left)
      made += number + std::string(missing, ' ');
    else if (zeros)
      made += (minus ? "-" : "") + std::string(missing, '0') + number.substr(minus ? 1 : 0);
    else
      made += std::string(missing, ' ') + number;
  }
  require(next == values.size() || values.empty(), Failure::input,
          "the format '{}' has fewer places than values", format);
  return made;
}

std::string with_replaced(std::string_view text, std::string_view from, std::string_view by,
                          std::int64_t most) {
  std::string made;
  if (from.empty()) {  // before each character, and at the end
    const std::u32string points = code_points(text);
    for (std::size_t i = 0; i <= points.size(); ++i) {
      if (most < 0 || std::int64_t(i) < most) made += by;
      require_size(made.size());
      if (i < points.size()) made += utf8({&points[i], 1});
    }
    return made;
  }
  for (;; --most) {
    const std::size_t at = most == 0 ? text.npos : text.find(from);
    made += text.substr(0, at);
    if (at == text.npos) return made;
    made += by;
    require_size(made.size());
    text.remove_prefix(at + from.size());
  }
}

std::string joined(const std::vector<Value>& values, std::string_view between) {
  std::string made;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) made += between;
    made += values[i].str();
    require_size(made.size());
  }
  return made;
}

}  // namespace brume::chat
