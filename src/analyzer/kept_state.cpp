#include "kept_state.hpp"

#include "plan/knobs.hpp"

namespace brume::analyzer {

KeptState kept_state(const model::Config& model, const model::Block& block, bool host_update) {
  const auto knobs =
      plan::state_knobs<Expr>([](auto member) { return Expr::variable(plan::symbol(member)); },
                              model::expert_data_ranks(model));
  const auto [trained, frozen, dense, full_state] = model::layout_elements(model, block);
  KeptState s{
      plan::kept_state(knobs, plan::Elements<Expr>{trained, frozen}, plan::alignments(block))};
  s.dense = dense, s.full_state = full_state;
  s.fetched_grads = min(s.host_grads, s.optimizer);
  if (host_update)
    s.fetched_grads = max(s.fetched_grads - s.host_updated, 0.0);
  else
    s.host_updated = s.grads_down = 0.0;
  return s;
}

Expr KeptState::optimizer_bytes(const model::Config& model, const Expr& elements) const {
  const double full = model::optimizer_bytes(model), lean = model::lean_optimizer_bytes(model);
  if (full == lean) return full * elements;
  return lean * elements + (full - lean) * min(full_state, elements);
}

Expr KeptState::optimizer_bytes_before(const model::Config& model, const Expr& elements,
                                       const Expr& behind) const {
  const double full = model::optimizer_bytes(model);
  if (full == model::lean_optimizer_bytes(model)) return full * elements;
  const Expr end = optimizer - behind;
  return optimizer_bytes(model, end) - optimizer_bytes(model, end - elements);
}

Expr cut_matrix_elements(const model::Block& block) {
  auto function = remembering("cut_matrices", [block](Arguments x) {
    const int tp = int(std::lround(x[0])), ep = int(std::lround(x[1]));
    const auto [first, end] =
        model::cut_matrices(block, model::layout(block, tp, 0, 1, {ep}), tp, ep);
    return double(end - first);
  });
  return Expr::call(std::move(function), {Expr::variable("tp"), Expr::variable("ep")});
}

MatrixStepBytes matrix_step_bytes(const model::Config& model, const model::Block& block,
                                  const KeptState& s) {
  const std::int64_t workspace = model::matrix_workspace(model, block).bytes();
  if (workspace == 0) return {};
  constexpr double bytes = model::grad_bytes;
  const Expr apart = less(s.grads - s.host_grads, s.whole.trained);
  return {.directions = bytes * apart * s.whole.trained,
          .work = double(workspace) + bytes * Expr::variable("tp") * cut_matrix_elements(block)};
}

StageBlocks::StageBlocks(const model::Config& model, StageRole role) {
  const std::vector<model::Block> all = model::blocks(model, role.division(model::expert_axes));
  embedding = all.front(), head = all.back();
  layer = dense_layer = frozen_layer = model::most_trained_layer(model, all);
  if (role.dense > 0) dense_layer = model::most_trained_layer(model, all, true);
  if (role.dense > 0 && role.dense >= role.frozen_layers()) frozen_layer = dense_layer;
  for (model::Parameter& parameter : frozen_layer.parameters) parameter.frozen = true;
}

}  // namespace brume::analyzer
