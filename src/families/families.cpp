/// @file The list of families, and questions to all of them.
#include "families/families.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.hpp"
#include "rows.hpp"

namespace brume::families {

const std::vector<Family>& families() {
  static const std::vector<Family> all{gpt(), llama(), falcon(), neox(), gemma(), gpt_oss()};
  return all;
}

const Family& family(std::string_view name) {
  const auto found = std::ranges::find(families(), name, &Family::name);
  require(found != families().end(), Failure::bug, "no family is called \"{}\"", name);
  return *found;
}

std::string names(const std::function<bool(const Family&)>& has) {
  std::vector<std::string> all;
  for (const Family& one : families())
    if (has(one)) all.push_back(one.name);
  if (all.size() < 2) return fmt::format("{}", fmt::join(all, ""));
  const std::string last = all.back();
  all.pop_back();
  return fmt::format("{} and {}", fmt::join(all, ", "), last);
}

std::vector<std::string> activation_names(MlpKind mlp) {
  switch (mlp) {
    case MlpKind::gelu_tanh: return {"gelu_new", "gelu_pytorch_tanh"};
    case MlpKind::gelu_erf: return {"gelu"};
    case MlpKind::swiglu:
    case MlpKind::clamped_swiglu: return {"silu", "swish"};
    case MlpKind::geglu: return {"gelu_pytorch_tanh"};
  }
  return {};
}

}  // namespace brume::families
