#include "kept_state.hpp"

#include "plan/knobs.hpp"

namespace brume::analyzer {

KeptState kept_state(const model::Block& block, bool host_update) {
  const auto knobs =
      plan::state_knobs<Expr>([](auto member) { return Expr::variable(plan::symbol(member)); });
  const auto [trained, frozen] = model::layout_elements(block);
  KeptState s{plan::kept_state(knobs, plan::Elements<Expr>{trained, frozen})};
  s.fetched_grads = min(s.host_grads, s.optimizer);
  if (host_update)
    s.fetched_grads = max(s.fetched_grads - s.host_updated, 0.0);
  else
    s.host_updated = s.grads_down = 0.0;
  return s;
}

StageBlocks::StageBlocks(const model::Config& model) {
  const std::vector<model::Block> all = model::blocks(model);
  embedding = all.front(), head = all.back();
  layer = frozen_layer = model::most_trained_layer(all);
  for (model::Parameter& parameter : frozen_layer.parameters) parameter.frozen = true;
}

}  // namespace brume::analyzer
