#include "layer_costs.hpp"

#include <utility>
#include <vector>

#include "plan/rules.hpp"

namespace brume::analyzer {

using model::Recompute, model::SegmentKind;

namespace {

/// Costs whose parts are of(part).
template <class Of>
LayerCosts by_part(const Of& of) {
  return {of(&LayerCosts::forward_s),
          of(&LayerCosts::backward_s),
          of(&LayerCosts::forward_tp_s),
          of(&LayerCosts::backward_tp_s),
          of(&LayerCosts::forward_wait_s),
          of(&LayerCosts::backward_wait_s),
          of(&LayerCosts::hidden_tp_s),
          of(&LayerCosts::arriving_tp_s),
          of(&LayerCosts::recompute_ahead_s),
          of(&LayerCosts::inputs_tp_s),
          of(&LayerCosts::beside_forward_s),
          of(&LayerCosts::beside_backward_s),
          of(&LayerCosts::out_s),
          of(&LayerCosts::in_s),
          of(&LayerCosts::write_s),
          of(&LayerCosts::read_s)};
}

LayerCosts costs_of(const model::Config& model, const Costs& costs, Recompute recompute,
                    model::LayerKind kind_of_layer) {
  const std::vector<SegmentKind> kinds =
      model::segment_kinds(model, model::BlockKind::layer, kind_of_layer);
  const Pass backward = recompute == Recompute::none ? Pass::stored_backward : Pass::backward;
  const auto all = [&](Pass pass) {
    Expr sum = 0.0;
    for (SegmentKind kind : kinds) sum += costs.segment(kind, pass);
    return sum;
  };
  const auto gather_s = [&](SegmentKind kind) {
    return costs.of_stream(price::Collective::all_gather, kind);
  };
  const auto scatter_s = [&](SegmentKind kind) {
    return costs.of_stream(price::Collective::reduce_scatter, kind);
  };
  Expr gathers_s = 0.0, scatters_s = 0.0, gradient_sums_s = 0.0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    gathers_s += gather_s(kinds[i]);
    scatters_s += scatter_s(kinds[i]);
    gradient_sums_s += costs.gradient_sum(kinds[i], i > 0 ? kinds[i - 1] : kinds.back());
  }
  // Exchanges within a segment. A forward that sums terms there does not sum them at its end.
  struct Exchanges {
    Expr sums_s = 0.0, gathers_s = 0.0, others_s = 0.0;  // of a forward, of a backward, of both
    Expr forward_s = 0.0;                                // gathers of a forward, besides sums
  };
  const auto within = [&](SegmentKind kind) {
    Exchanges found;
    // An exchange of one rank takes no time, so plans that cut no sequence have the same list.
    const model::Segment segment = model::segment(model, kind, costs.sharing());
    for (const model::Operator& op : segment.operators)
      if (op.kind == model::OperatorKind::reduce_scatter) {
        found.sums_s += scatter_s(kind);
        found.gathers_s += gather_s(kind);
      } else if (op.kind == model::OperatorKind::all_gather) {
        const model::Tensor& whole = segment.tensor(op.written);
        const Expr bytes = whole.elements() * double(whole.element_bytes);
        const Expr gather_s = costs.collective(price::Collective::all_gather, op.axes, bytes);
        found.forward_s += gather_s;
        if (recompute != Recompute::none) found.gathers_s += gather_s;
        found.gathers_s += costs.collective(price::Collective::reduce_scatter, op.axes, bytes);
      } else if (op.kind == model::OperatorKind::all_to_all) {
        const model::Tensor& read = segment.tensor(op.read);
        found.others_s += costs.collective(price::Collective::all_to_all, op.axes,
                                           read.elements() * double(read.element_bytes));
      }
    return found;
  };
  // While a segment of a backward computes, the input of the next one is brought together.
  const auto beside = [&](SegmentKind kind, Pass pass, SegmentKind next) {
    const Expr alone_s = costs.segment(kind, pass);
    return costs.overlapped(alone_s, gather_s(next), 0.0, 0.0) - alone_s;
  };
  // The last sum of the gradient before this layer's backward, and the input that this begins with.
  const Expr arriving_sum_s = costs.gradient_sum(kinds.front(), kinds.back());
  const SegmentKind first = recompute == Recompute::full ? kinds.front() : kinds.back();
  const Variables v(model);
  const Expr moved = moved_bytes(model, recompute, costs.sharing(), v.a);
  const Expr to_disk = moved_bytes(model, recompute, costs.sharing(), v.ad);
  LayerCosts layer{.forward_s = all(Pass::forward),
                   .backward_s = all(backward),
                   .forward_tp_s = gathers_s + scatters_s,
                   .backward_tp_s = gradient_sums_s,
                   .forward_wait_s = scatter_s(kinds.back()) + gather_s(kinds.front()),
                   .backward_wait_s = arriving_sum_s,
                   .hidden_tp_s = 0.0,
                   .arriving_tp_s = 0.0,
                   .recompute_ahead_s = 0.0,
                   .inputs_tp_s = gathers_s,
                   .beside_forward_s = beside(kinds.back(), Pass::forward, first),
                   .beside_backward_s = beside(kinds.front(), backward, first),
                   .out_s = costs.copy_out(moved),
                   .in_s = costs.copy_in(moved),
                   .write_s = costs.disk_write(to_disk),
                   .read_s = costs.disk_read(to_disk)};
  for (SegmentKind kind : kinds) {
    if (kind != kinds.front()) layer.backward_s += beside(kind, backward, kinds.front());
    const Exchanges exchanges = within(kind);
    layer.forward_tp_s += exchanges.forward_s + exchanges.others_s;
    layer.backward_tp_s += exchanges.gathers_s + exchanges.others_s;
    if (recompute == Recompute::full)
      layer.backward_tp_s += exchanges.forward_s + exchanges.others_s;
  }
  if (recompute == Recompute::full) {
    layer.backward_s += all(Pass::recompute);
    // The last one's output is not made.
    layer.backward_tp_s +=
        gathers_s - gather_s(kinds.front()) + scatters_s - scatter_s(kinds.back());
    layer.backward_tp_s += within(kinds.back()).sums_s;
    // The first segment is recomputed without waiting for the gradient, which is still on its way.
    const Expr first_s = costs.segment(kinds.front(), Pass::recompute);
    layer.hidden_tp_s = min(arriving_sum_s, first_s);
    layer.arriving_tp_s = min(gather_s(kinds.back()), first_s);
    layer.recompute_ahead_s =
        select(less(1.0, model::sum_ranks(kinds.back())),
               max(first_s - gather_s(kinds.back()), 0.0), all(Pass::recompute));
  }
  return layer;
}

}  // namespace

LayerCosts select(const Expr& condition, const LayerCosts& yes, const LayerCosts& no) {
  return by_part([&](Expr LayerCosts::*part) { return select(condition, yes.*part, no.*part); });
}

LayerCosts layer_costs(const model::Config& model, const Costs& costs, Recompute recompute,
                       const Expr& dense) {
  const auto counts = model::layer_counts(model);
  if (counts.size() == 1) return costs_of(model, costs, recompute, counts[0].first);
  LayerCosts mean{};
  for (const auto& [kind, count] : counts) {
    const LayerCosts one = costs_of(model, costs, recompute, kind);
    const int alike =
        kind.dense ? model.first_dense_layers : model.num_layers - model.first_dense_layers;
    const Expr share = (kind.dense ? dense : 1.0 - dense) * (double(count) / alike);
    mean = by_part([&](Expr LayerCosts::*part) { return mean.*part + share * one.*part; });
  }
  return mean;
}

Expr moved_bytes(const model::Config& model, Recompute recompute, model::Sharing sharing,
                 const Expr& ratio) {
  const auto kept = [&](model::Sharing list) {
    return model::kept_tensors(model, recompute, {}, list);
  };
  const auto bytes = [whole = kept(model::Sharing::none), cut = kept(sharing),
                      sharing](Arguments x) {
    const model::Split split = split_of(x.subspan(1), sharing);
    return plan::moved_tensors(split.cp > 1 ? cut : whole, x[0], split).bytes;
  };
  const Variables v(model);
  std::vector<Expr> arguments = v.split(model);
  arguments.insert(arguments.begin(), ratio);
  const char* const name = recompute == Recompute::full   ? "moved_inputs"
                           : recompute == Recompute::none ? "moved_stored"
                                                          : "moved_activations";
  return Expr::call(remembering(name, bytes), std::move(arguments));
}

}  // namespace brume::analyzer
