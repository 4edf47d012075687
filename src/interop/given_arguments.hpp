/// @file Arguments of another program's command line, wherever they stand in a script.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace brume::interop {

/// The number that a text is, whole; none: it is another text.
template <class T>
std::optional<T> parsed(const std::string& text) {
  T number{};
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Arguments by name, without their dashes, and whether they were asked for.
class GivenArguments {
 public:
  /// @throws Error(input)  where there are none
  explicit GivenArguments(const std::string& path);

  template <class... Arguments>
  [[noreturn]] void refuse(fmt::format_string<Arguments...> format,
                           Arguments&&... arguments) const {
    throw Error(Failure::input, "{}: {}", path_,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  /// Whether it is there.
  bool has(const std::string& name);
  /// Its value, empty where it has none. @throws Error(input)  where there are several
  std::optional<std::string> text(const std::string& name);

  /// A number of at least `least`.
  template <class T>
  std::optional<T> number(const std::string& name, T least = T(1)) {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<T> number = parsed<T>(*value);
    if (!number || !(*number >= least))
      refuse("--{} must be a {}number of at least {}, found '{:.80}'", name,
             std::is_integral_v<T> ? "whole " : "", least, *value);
    return number;
  }

  template <class T>
  T needed(const std::string& name) {
    const std::optional<T> found = number<T>(name);
    if (!found) refuse("--{} is missing", name);
    return *found;
  }

  /// Those that were asked for and that the script may leave out, with their dashes.
  std::vector<std::string> in_branches() const;
  /// Those that nobody asked for, with their dashes.
  std::vector<std::string> others() const;

 private:
  std::string path_;
  std::map<std::string, std::set<std::string>> values_;
  std::set<std::string> asked_, in_branches_;
  std::map<std::string, std::string> ambiguous_;  ///< "$NAME": its values
};

}  // namespace brume::interop
