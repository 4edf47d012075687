/// @file Checked reading of YAML: every refusal names file, line and key.
#pragma once

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace brume::interop {

/// One value of a YAML file and the way to it.
class YamlValue {
 public:
  YamlValue(YAML::Node node, std::string file, std::string path)
      : node_(std::move(node)), file_(std::move(file)), path_(std::move(path)) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    const int line = node_.IsDefined() ? node_.Mark().line + 1 : 0;
    throw Error(Failure::input, "{}{}: '{}' {}", file_, line > 0 ? fmt::format(":{}", line) : "",
                path_, fmt::format(format, std::forward<Args>(args)...));
  }

  bool has(const std::string& key) const { return find(key).IsDefined() && !find(key).IsNull(); }

  YamlValue operator[](const std::string& key) const {
    YamlValue value(find(key), file_, path_.empty() ? key : path_ + "." + key);
    if (!value.node_.IsDefined()) value.refuse("is missing");
    return value;
  }

  std::vector<YamlValue> list() const {
    if (!node_.IsSequence() || node_.size() > 100000) refuse("must be a list");
    std::vector<YamlValue> items;
    for (std::size_t i = 0; i < node_.size(); ++i)
      items.emplace_back(node_[i], file_, fmt::format("{}[{}]", path_, i));
    return items;
  }

  std::string text() const {
    if (!node_.IsScalar()) refuse("must be a plain value");
    if (node_.Scalar().find("${") != std::string::npos)
      refuse("holds a reference: give the resolved configuration, as Hydra prints it");
    return node_.Scalar();
  }

  /// Truth as Python has it: words like `ftrue` are true.
  bool flag() const {
    static const std::set<std::string> no{"",   "0",  "0.0", "false", "False", "FALSE", "no",
                                          "No", "NO", "off", "Off",   "OFF",   "null",  "~"};
    return !node_.IsNull() && !no.contains(text());
  }

  double number(double min, double max) const {
    const std::string said = text();
    double value = 0.0;
    if (said == "true" || said == "True")
      value = 1.0;  // flags among numbers
    else if (said != "false" && said != "False" && !YAML::convert<double>::decode(node_, value))
      refuse("must be a number, found '{:.40}'", said);
    if (!(value >= min && value <= max))
      refuse("must be from {:g} to {:g}, found {:.40}", min, max, said);
    return value;
  }

  int integer(int min, int max) const {
    const double value = number(min, max);
    if (value != std::floor(value)) refuse("must be an integer, found {:g}", value);
    return int(value);
  }

  std::vector<double> numbers() const {
    std::vector<double> values;
    for (const YamlValue& item : list()) values.push_back(item.number(-1e300, 1e300));
    return values;
  }

 private:
  /// yaml-cpp takes the first of doubled keys without a word.
  YAML::Node find(const std::string& key) const {
    if (!node_.IsMap()) refuse("must be a table with '{}'", key);
    YAML::Node found(YAML::NodeType::Undefined);
    bool met = false;
    for (const auto& item : node_) {
      if (!item.first.IsScalar() || item.first.Scalar() != key) continue;
      if (met) refuse("has '{}' twice", key);
      met = true;
      found.reset(item.second);
    }
    return found;
  }

  YAML::Node node_;
  std::string file_;
  std::string path_;
};

}  // namespace brume::interop
