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
  const ShellScript script = shell_script(as_text(bytes));
  const std::vector<ShellWord>& words = script.words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i].text;
    if (!word.starts_with("--")) continue;
    const std::size_t equals = word.find('=');
    std::string name = word.substr(2, equals - std::min<std::size_t>(equals, 2));
    std::ranges::replace(name, '_', '-');  // torchrun takes both
    const bool has_next = i + 1 < words.size() && !words[i + 1].text.starts_with("--");
    values_[name].insert(equals != std::string::npos ? word.substr(equals + 1)
                         : has_next                  ? words[i + 1].text
                                                     : "");
    if (words[i].in_branch) in_branches_.insert(name);
  }
  for (const auto& [name, values] : script.ambiguous) {
    ambiguous_["$" + name] = fmt::format("{:.200}", fmt::format("{}", fmt::join(values, ", ")));
    for (const std::string& value : values)
      if (value.starts_with("--"))
        refuse(
            "${} has arguments by branch (if, case, a loop or a test): found {}. Write the ones "
            "that you mean",
            name, ambiguous_["$" + name]);
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
  if (const auto branches = ambiguous_.find(*values.begin()); branches != ambiguous_.end())
    refuse(
        "--{} is {}, which has several values by branch (if, case, a loop or a test): found {}. "
        "Write the one that you mean",
        name, branches->first, branches->second);
  if (values.begin()->find('$') != std::string::npos)
    refuse("--{} is {:.80}, to which the file gives no value: write it there", name,
           *values.begin());
  return *values.begin();
}

std::vector<std::string> GivenArguments::in_branches() const {
  std::vector<std::string> names;
  for (const std::string& name : in_branches_)
    if (asked_.contains(name)) names.push_back("--" + name);
  return names;
}

std::vector<std::string> GivenArguments::others() const {
  std::vector<std::string> names;
  for (const auto& [name, values] : values_)
    if (!asked_.contains(name)) names.push_back("--" + name);
  return names;
}

}  // namespace brume::interop
