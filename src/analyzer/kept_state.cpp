#include "kept_state.hpp"

#include "plan/knobs.hpp"

namespace brume::analyzer {

KeptState kept_state(const model::Block& block, bool trains) {
  const auto knobs =
      plan::state_knobs<Expr>([](auto member) { return Expr::variable(plan::symbol(member)); });
  return plan::kept_state(knobs, model::layout_elements(block), trains);
}

}  // namespace brume::analyzer
