#include <algorithm>

#include "engine/optimizer.hpp"

namespace brume::engine {

UpdateRule update_rule(const Optimizer& optimizer, const model::Parameter& parameter) {
  const UpdateRule usual{1.0f, parameter.decays ? float(optimizer.weight_decay) : 0.0f};
  const auto group = std::ranges::find_if(optimizer.groups, [&](const ParameterGroup& candidate) {
    return model::fits(candidate.pattern, parameter.name);
  });
  if (group == optimizer.groups.end()) return usual;
  return {float(group->lr_scale), float(group->weight_decay.value_or(usual.weight_decay))};
}

}  // namespace brume::engine
