#include "given_arguments.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/files.hpp"
#include "shell_words.hpp"

namespace brume::interop {
namespace {

constexpr std::int64_t most_script_bytes = std::int64_t{1} << 20;

}  // namespace

GivenArguments::GivenArguments(const std::string& path) : path_(path) {
  const Bytes bytes = read_file(path, Failure::input, most_script_bytes);
  const std::vector<std::string> words = shell_words(as_text(bytes));
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) continue;
    const std::size_t equals = words[i].find('=');
    std::string name = words[i].substr(2, equals - std::min<std::size_t>(equals, 2));
    std::ranges::replace(name, '_', '-');  // torchrun takes both
    const bool has_next = i + 1 < words.size() && !words[i + 1].starts_with("--");
    values_[name].insert(equals != std::string::npos ? words[i].substr(equals + 1)
                         : has_next                  ? words[i + 1]
                                                     : "");
  }
  require(!values_.empty(), Failure::input, "{}: holds no arguments that begin with --", path);
}

bool GivenArguments::has(const std::string& name) {
  asked_.insert(name);
  return values_.contains(name);
}

std::optional<std::string> GivenArguments::text(const std::string& name) {
  if (!has(name)) return std::nullopt;
  const std::set<std::string>& values = values_.at(name);
  if (values.size() > 1)
    refuse("--{} is given several values: {:.200}", name,
           fmt::format("{}", fmt::join(values, ", ")));
  constexpr std::size_t longest = 1000;
  if (values.begin()->size() > longest)
    refuse("--{} is given {} characters, at most {} are read", name, values.begin()->size(),
           longest);
  if (values.begin()->starts_with('$'))
    refuse("--{} is {:.80}, to which the file gives no value: write it there", name,
           *values.begin());
  return *values.begin();
}

std::vector<std::string> GivenArguments::others() const {
  std::vector<std::string> names;
  for (const auto& [name, values] : values_)
    if (!asked_.contains(name)) names.push_back("--" + name);
  return names;
}

}  // namespace brume::interop
