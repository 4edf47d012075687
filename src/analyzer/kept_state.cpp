#include "kept_state.hpp"

#include "plan/knobs.hpp"

namespace brume::analyzer {

KeptState kept_state(const model::Block& block) {
  const auto knobs =
      plan::state_knobs<Expr>([](auto member) { return Expr::variable(plan::symbol(member)); });
  const auto [trained, frozen] = model::layout_elements(block);
  return plan::kept_state(knobs, plan::Elements<Expr>{trained, frozen});
}

StageBlocks::StageBlocks(const model::Config& model) {
  const std::vector<model::Block> all = model::blocks(model);
  embedding = all.front(), head = all.back();
  layer = frozen_layer = model::most_trained_layer(all);
  for (model::Parameter& parameter : frozen_layer.parameters) parameter.frozen = true;
}

}  // namespace brume::analyzer
