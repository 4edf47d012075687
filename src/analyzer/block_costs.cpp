#include "block_costs.hpp"

#include <utility>

#include "kept_state.hpp"

namespace brume::analyzer {

using model::grad_bytes;

Load& Load::operator+=(const Load& other) {
  compute_s += other.compute_s;
  tp_s += other.tp_s;
  wait_s += other.wait_s;
  copies_s += other.copies_s;
  moves_s += other.moves_s;
  sums_s += other.sums_s;
  reduce_s += other.reduce_s;
  gather_s += other.gather_s;
  weights_in_s += other.weights_in_s;
  in_s += other.in_s;
  out_s += other.out_s;
  read_s += other.read_s;
  write_s += other.write_s;
  host_s += other.host_s;
  down_s += other.down_s;
  return *this;
}

Load operator+(Load a, const Load& b) { return a += b; }

Load operator*(const Expr& factor, const Load& load) {
  return {factor * load.compute_s, factor * load.tp_s,     factor * load.wait_s,
          factor * load.copies_s,  factor * load.moves_s,  factor * load.sums_s,
          factor * load.reduce_s,  factor * load.gather_s, factor * load.weights_in_s,
          factor * load.in_s,      factor * load.out_s,    factor * load.read_s,
          factor * load.write_s,   factor * load.host_s,   factor * load.down_s};
}

Expr window(const Costs& costs, const Load& load) {
  const Expr moved_s = load.copies_s + load.moves_s + load.sums_s;
  const Expr compute_s = load.compute_s + max(moved_s - load.wait_s, 0.0);
  const auto shared = [&](Costs::Transfer transfer, const Expr& all_s) {
    const Expr share = costs.compute_share(transfer, compute_s, load.tp_s);
    return std::pair(share * all_s, (1.0 - share) * all_s);
  };
  using enum Costs::Transfer;
  const auto [comm_s, comm_beside_tp_s] = shared(over_dp, load.reduce_s + load.gather_s);
  const auto [in_s, in_beside_tp_s] = shared(in, load.weights_in_s + load.in_s);
  const auto [out_s, out_beside_tp_s] = shared(out, load.out_s);
  const Expr together =
      costs.overlapped(compute_s, comm_s, in_s, out_s) +
      costs.overlapped(0.0, max(load.tp_s, comm_beside_tp_s), in_beside_tp_s, out_beside_tp_s);
  const Expr before_s = max(max(load.weights_in_s, load.copies_s), load.reduce_s);
  Expr all = max(together, before_s + load.moves_s + load.gather_s);
  if (costs.disk()) all = max(all, load.read_s + load.write_s);
  return costs.host_update() ? max(all, load.host_s) : all;
}

namespace {

/// The rank that steps the host's part of the weights or gradients and one that steps the device's
/// wait for each other: each transfer is that of the rank with most of it. The first forward needs
/// what is frozen too.
Load update(const model::Config& model, const Costs& costs, const model::Block& block,
            const KeptState& s) {
  const double weight_bytes = model::weight_bytes(model.precision);
  const Expr device_weights = s.weights_staged * (s.weights.trained - s.host_weights.trained);
  const Expr frozen_weights = s.weights_staged * (s.weights.frozen - s.host_weights.frozen);
  const bool fp32 = model.precision == model::Precision::fp32;
  const Expr moments_bytes =
      s.optimizer_bytes_before(model, s.offloaded_optimizer - s.host_updated, s.host_updated);
  const Expr disk_bytes = s.optimizer_bytes_before(model, s.disk_optimizer, s.host_updated);
  const bool matrices = model::matrix_workspace(model, block).bytes() > 0;
  const Expr directions_bytes =
      matrices ? grad_bytes * Expr::variable("tp") * cut_matrix_elements(block) : Expr(0.0);
  const Expr sharded_weights = Variables(model).sharded().weights;
  const Expr down_s =
      costs.host_update()
          ? costs.copy_out(grad_bytes * s.grads_down + (fp32 ? weight_bytes : 0.0) * s.host_updated)
          : Expr(0.0);
  const Expr host_s = costs.host_update(s.host_updated);
  const model::UpdateUnit unit = matrices ? model::UpdateUnit::matrix : model::UpdateUnit::element;
  return {
      .tp_s = matrices ? costs.collective(price::Collective::all_gather, model::Axis::tp,
                                          directions_bytes)
                       : Expr(0.0),
      .moves_s = costs.optimizer(s.optimizer - s.host_updated, unit) + costs.matrix_step(block) +
                 (costs.host_is_apart() ? Expr(0.0) : host_s) +
                 costs.copy(weight_bytes * (min(device_weights, s.optimizer) + frozen_weights)) +
                 costs.copy(weight_bytes * device_weights),
      .gather_s = (matrices ? costs.weight_gather(grad_bytes * s.whole.trained) : Expr(0.0)) +
                  costs.weight_gather(weight_bytes * s.whole.trained) +
                  costs.weight_gather(weight_bytes * sharded_weights * s.whole.frozen),
      .in_s = costs.copy_in(weight_bytes *
                            (min(s.host_weights.trained, s.optimizer) + s.host_weights.frozen)) +
              costs.copy_in(grad_bytes * s.fetched_grads) + costs.copy_in(moments_bytes) +
              costs.copy_in(weight_bytes * s.host_updated),
      .out_s = down_s + costs.copy_out(moments_bytes) +
               costs.copy_out(weight_bytes * s.host_weights.trained),
      .read_s = costs.disk_read(disk_bytes),
      .write_s = costs.disk_write(disk_bytes),
      .host_s = costs.host_is_apart() ? host_s : Expr(0.0),
      .down_s = down_s};
}

}  // namespace

BlockCosts mean(const Expr& share, const BlockCosts& one, const BlockCosts& other) {
  const auto of = [&](const auto& a, const auto& b) { return share * a + (1.0 - share) * b; };
  return {of(one.update, other.update),         of(one.weights, other.weights),
          of(one.kept_grads, other.kept_grads), of(one.grads, other.grads),
          of(one.last_grads, other.last_grads), of(one.grads_staged, other.grads_staged)};
}

BlockCosts block_costs(const model::Config& model, const Costs& costs, const model::Block& block) {
  const double weight_bytes = model::weight_bytes(model.precision);
  const Variables v(model);
  const KeptState s = kept_state(model, block, costs.host_update());
  const plan::Elements<Expr>&kept = s.weights, &on_host = s.host_weights;
  const Expr later = less(1.0, v.G);  // some microbatch comes before the last
  const plan::Sharded<Expr> shards = v.sharded();
  const Expr& reduced = s.whole.trained;
  const Expr fresh_bytes = grad_bytes * s.grads_staged * s.grads;
  return {
      .update = block.trains() ? update(model, costs, block, s) : Load{},
      .weights = {.copies_s =
                      costs.copy(weight_bytes * s.weights_staged *
                                 (kept.trained - on_host.trained + kept.frozen - on_host.frozen)),
                  .gather_s = costs.weight_gather(weight_bytes * shards.weights * s.whole.trained) +
                              costs.weight_gather(weight_bytes * shards.weights * s.whole.frozen),
                  .weights_in_s = costs.copy_in(weight_bytes * (on_host.trained + on_host.frozen))},
      .kept_grads = {.in_s = later * costs.copy_in(grad_bytes * s.host_grads)},
      .grads = {.sums_s = costs.clear_or_add(fresh_bytes),
                .reduce_s = costs.gradient_reduction(grad_bytes * shards.grads * reduced),
                .out_s = costs.copy_out(grad_bytes * s.host_grads)},
      .last_grads = {.sums_s = later * costs.clear_or_add(fresh_bytes) +
                               costs.copy(grad_bytes * s.grads_staged * min(s.optimizer, s.grads)),
                     .reduce_s = costs.dense_reduction(grad_bytes * min(s.dense, s.optimizer)) +
                                 costs.gradient_reduction(grad_bytes * reduced) +
                                 costs.replica_reduction(grad_bytes * reduced),
                     .out_s = costs.copy_out(grad_bytes * min(s.host_grads, s.optimizer))},
      .grads_staged = s.grads_staged};
}

}  // namespace brume::analyzer
