/// @file Tests by their names.
#include <map>
#include <string_view>

#include "characters.hpp"
#include "library.hpp"

namespace brume::chat {

Test find_test(std::string_view name) {
  // Other names of tests.
  static const std::map<std::string_view, std::string_view> names{
      {"==", "eq"}, {"equalto", "eq"}, {"!=", "ne"}, {"<", "lt"},          {"lessthan", "lt"},
      {"<=", "le"}, {">", "gt"},       {">=", "ge"}, {"greaterthan", "gt"}};
  static const std::map<std::string_view, Test> all{
      {"boolean", [](auto& v, auto&) { return v.template as<bool>() != nullptr; }},
      {"callable", [](auto& v, auto&) { return v.function() != nullptr; }},
      {"defined", [](auto& v, auto&) { return !v.undefined(); }},
      {"divisibleby",
       [](auto& v, auto& g) { return arithmetic("%", v, g.need(0, "num")) == Value(0); }},
      {"eq", [](auto& v, auto& g) { return v == g.need(0, "other"); }},
      {"even", [](auto& v, auto&) { return whole_of(v) % 2 == 0; }},
      {"false", [](auto& v, auto&) { return v.template as<bool>() && !v.truth(); }},
      {"filter", [](auto& v, auto&) { return v.text() && find_filter(*v.text()) != nullptr; }},
      {"float", [](auto& v, auto&) { return v.template as<double>() != nullptr; }},
      {"ge", [](auto& v, auto& g) { return comparison(">=", v, g.need(0, "other")); }},
      {"gt", [](auto& v, auto& g) { return comparison(">", v, g.need(0, "other")); }},
      {"in", [](auto& v, auto& g) { return comparison("in", v, g.need(0, "seq")); }},
      {"integer", [](auto& v, auto&) { return v.template as<std::int64_t>() != nullptr; }},
      {"iterable", [](auto& v, auto&) { return v.iterable(); }},
      {"le", [](auto& v, auto& g) { return comparison("<=", v, g.need(0, "other")); }},
      {"lower",
       [](auto& v, auto&) {
         return changed(v.str(), lower) == v.str() && changed(v.str(), upper) != v.str();
       }},
      {"lt", [](auto& v, auto& g) { return comparison("<", v, g.need(0, "other")); }},
      {"mapping", [](auto& v, auto&) { return v.dict() != nullptr; }},
      {"ne", [](auto& v, auto& g) { return !(v == g.need(0, "other")); }},
      {"none", [](auto& v, auto&) { return v.none(); }},
      {"number", [](auto& v, auto&) { return v.number().has_value(); }},
      {"odd", [](auto& v, auto&) { return whole_of(v) % 2 != 0; }},
      {"sameas",
       [](auto& v, auto& g) {
         return std::string_view(v.type()) == g.need(0, "other").type() && v == g.need(0, "other");
       }},
      {"sequence", [](auto& v, auto&) { return v.iterable(); }},
      {"string", [](auto& v, auto&) { return v.text() != nullptr; }},
      {"test", [](auto& v, auto&) { return v.text() && find_test(*v.text()) != nullptr; }},
      {"true", [](auto& v, auto&) { return v.template as<bool>() && v.truth(); }},
      {"undefined", [](auto& v, auto&) { return v.undefined() != nullptr; }},
      {"upper", [](auto& v, auto&) {
         return changed(v.str(), upper) == v.str() && changed(v.str(), lower) != v.str();
       }}};
  const auto other = names.find(name);
  const auto found = all.find(other == names.end() ? name : other->second);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace brume::chat
