#include "layer_costs.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kept_state.hpp"
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
          of(&LayerCosts::backward_wait_s),
          of(&LayerCosts::hidden_tp_s),
          of(&LayerCosts::recompute_ahead_s),
          of(&LayerCosts::inputs_tp_s),
          of(&LayerCosts::ahead_tp_s),
          of(&LayerCosts::beside_forward_s),
          of(&LayerCosts::beside_backward_s),
          of(&LayerCosts::out_s),
          of(&LayerCosts::in_s),
          of(&LayerCosts::write_s),
          of(&LayerCosts::read_s)};
}

/// Exchanges of one segment, each in seconds.
struct Exchanges {
  Expr inputs_s = 0.0;       ///< gathers of what products read
  Expr input_grads_s = 0.0;  ///< sums of the gradients of that
  Expr sums_s = 0.0;         ///< of the output, or of what a norm reads before it
  Expr output_grads_s = 0.0, first_output_grad_s = 0.0;  ///< gathers; the one before all else
  bool adds = false;                                     ///< the stream to the sums
  Expr forward_s = 0.0, backward_s = 0.0, both_s = 0.0;  ///< others

  void hide(const Costs& costs, const model::Segment& segment, Recompute recompute);
  Exchanges(const model::Config& model, const Costs& costs, SegmentKind kind, Recompute recompute);
};

/// An exchange of one rank takes no time, so plans without it have the same list.
Exchanges::Exchanges(const model::Config& model, const Costs& costs, SegmentKind kind,
                     Recompute recompute) {
  using enum price::Collective;
  const model::AxisSet sums = model::sum_axes(kind);
  const model::Segment segment =
      model::segment(model, kind, costs.role().division(sums.with(model::Axis::cp)));
  const auto is_called = [&](const model::Operator& op, bool again) {
    return std::ranges::any_of(segment.backward, [&](const model::BackwardCall& call) {
      return call.again == again && &segment.operators[std::size_t(call.op)] == &op;
    });
  };
  const auto is_again = [&](const model::Operator& op) { return is_called(op, true); };
  for (const model::Operator& op : segment.operators) {
    if (!model::is_exchange(op.kind)) continue;
    if (model::is_of_tokens(op.kind)) {
      const Expr one_s = costs.collective(all_to_all, op.axes, op.expected_bytes);
      const bool sends = op.kind == model::OperatorKind::send_rows;
      (sends ? forward_s : sums_s) += one_s;
      (sends ? backward_s : output_grads_s) += is_again(op) ? 2.0 * one_s : one_s;
      adds |= !sends;
      continue;
    }
    const bool scatters = op.kind == model::OperatorKind::reduce_scatter;
    const model::Tensor& whole =
        segment.tensor(op.kind == model::OperatorKind::all_gather ? op.written : op.read);
    const Expr bytes = whole.elements() * double(whole.element_bytes);
    const auto exchange_s = [&](price::Collective which) {
      return costs.collective(which, op.axes, bytes);
    };
    if (whole.brought) {
      inputs_s += exchange_s(all_gather);
      input_grads_s += exchange_s(reduce_scatter);
    } else if (scatters) {
      sums_s += exchange_s(reduce_scatter);
      output_grads_s += exchange_s(all_gather);
      adds = op.written == model::TensorId::output;
      if (adds) first_output_grad_s = exchange_s(all_gather);
    } else if (op.kind == model::OperatorKind::all_gather) {
      forward_s += exchange_s(all_gather);
      if (is_again(op) && recompute != Recompute::none) backward_s += exchange_s(all_gather);
      if (is_called(op, false)) backward_s += exchange_s(reduce_scatter);
    } else {
      both_s += exchange_s(all_to_all);
    }
  }
  if (std::ranges::any_of(segment.operators, model::is_of_tokens, &model::Operator::kind))
    hide(costs, segment, recompute);
}

/// Takes off the time in which tokens travel while a run beside them computes.
void Exchanges::hide(const Costs& costs, const model::Segment& segment, Recompute recompute) {
  // Only the ranks that divide experts exchange anything here.
  const model::Split split{.ep = 2, .dispatch_tokens = 1};
  const auto of = [&](const std::vector<model::Run>& runs, Pass pass, const auto& op_at,
                      Expr& sends_s, Expr& returns_s) {
    for (std::size_t run = 1; run < runs.size(); ++run) {
      if (!runs[run].beside) continue;
      const model::Operator& op = op_at(runs[run - 1].end);
      const Expr exchange_s =
          costs.collective(price::Collective::all_to_all, op.axes, op.expected_bytes);
      const Expr run_s = costs.segment(segment.kind, pass, int(run));
      (op.kind == model::OperatorKind::send_rows ? sends_s : returns_s) +=
          costs.overlapped(run_s, exchange_s, 0.0, 0.0) - run_s - exchange_s;
    }
  };
  const std::vector<model::Operator>& operators = segment.operators;
  const auto of_forward = [&](int i) -> const model::Operator& {
    return operators[std::size_t(i)];
  };
  const auto of_backward = [&](int i) -> const model::Operator& {
    return of_forward(segment.backward[std::size_t(i)].op);
  };
  of(model::forward_runs(segment, split), Pass::forward, of_forward, forward_s, sums_s);
  of(model::backward_runs(segment, split),
     recompute == Recompute::none ? Pass::stored_backward : Pass::backward, of_backward, backward_s,
     output_grads_s);
}

LayerCosts costs_of(const model::Config& model, const Costs& costs, Recompute recompute,
                    model::LayerKind kind_of_layer, const Expr& ahead) {
  const std::vector<SegmentKind> kinds =
      model::segment_kinds(model, model::BlockKind::layer, kind_of_layer);
  const Pass backward = recompute == Recompute::none ? Pass::stored_backward : Pass::backward;
  const bool full = recompute == Recompute::full;
  std::vector<Exchanges> exchanges;
  for (const SegmentKind kind : kinds) exchanges.emplace_back(model, costs, kind, recompute);
  const Exchanges &front = exchanges.front(), &back = exchanges.back();
  const auto is_tiled = [&](SegmentKind kind) {
    return model::is_tiled(kind, costs.role().division({}));
  };
  const auto all = [&](Pass pass) {
    Expr sum = 0.0;
    for (SegmentKind kind : kinds) {
      const bool remakes = pass == Pass::stored_backward && is_tiled(kind);
      sum += costs.segment(kind, remakes ? Pass::backward : pass);
    }
    return sum;
  };
  // While a segment of a backward computes, the input of the next one is brought together, unless
  // the layer keeps it.
  const auto brought_s = [&](const Exchanges& next) {
    return recompute == Recompute::none ? Expr(0.0) : next.inputs_s;
  };
  const auto beside = [&](SegmentKind kind, Pass pass, const Expr& inputs_s) {
    const Expr alone_s = costs.segment(kind, pass);
    return costs.overlapped(alone_s, inputs_s, 0.0, 0.0) - alone_s;
  };
  const Expr first_inputs_s = brought_s(full ? front : back);
  // The norm before that needs no time of its own while ranks exchange what is at work.
  const auto norm_beside = [&](SegmentKind next, const Expr& exchange_s) {
    return recompute == Recompute::none ? Expr(0.0) : min(costs.norms_again(next), exchange_s);
  };
  // A tile is made again just before its backward, in every layer.
  Expr tiles_again_s = 0.0;
  for (SegmentKind kind : kinds)
    if (is_tiled(kind)) tiles_again_s += costs.segment(kind, Pass::recompute);
  const SegmentKind first = full ? kinds.front() : kinds.back();
  const Variables v(model);
  const Expr moved = moved_bytes(model, recompute, costs.role(), v.a);
  const Expr to_disk = moved_bytes(model, recompute, costs.role(), v.ad);
  LayerCosts layer{.forward_s = all(Pass::forward),
                   .backward_s = all(backward),
                   .forward_tp_s = 0.0,
                   .backward_tp_s = (1.0 - ahead) * first_inputs_s,
                   .backward_wait_s = back.first_output_grad_s,
                   .hidden_tp_s = 0.0,
                   .recompute_ahead_s = 0.0,
                   .inputs_tp_s = 0.0,
                   .ahead_tp_s = ahead * first_inputs_s,
                   .beside_forward_s = beside(kinds.back(), Pass::forward, ahead * first_inputs_s) -
                                       ahead * norm_beside(first, back.inputs_s),
                   .beside_backward_s = beside(kinds.front(), backward, ahead * first_inputs_s) -
                                        ahead * norm_beside(first, front.output_grads_s),
                   .out_s = costs.copy_out(moved),
                   .in_s = costs.copy_in(moved),
                   .write_s = costs.disk_write(to_disk),
                   .read_s = costs.disk_read(to_disk)};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Exchanges& own = exchanges[i];
    layer.forward_tp_s += own.inputs_s + own.sums_s + own.forward_s + own.both_s;
    layer.backward_tp_s += own.output_grads_s + own.input_grads_s + own.backward_s + own.both_s;
    layer.inputs_tp_s += brought_s(own);
    if (i > 0) layer.backward_s += beside(kinds[i], backward, brought_s(exchanges[i - 1]));
    if (i > 0 && !full)
      layer.backward_s = layer.backward_s - norm_beside(kinds[i - 1], own.output_grads_s);
    if (!full) continue;
    layer.backward_tp_s += own.forward_s + own.both_s;
    if (i > 0) layer.backward_tp_s += own.inputs_s;
    // The last one's output is not made, but what a norm reads before it is.
    if (&own != &back || !own.adds) layer.backward_tp_s += own.sums_s;
  }
  if (full) {
    layer.backward_s += all(Pass::recompute);
    // The first segment is recomputed without waiting for the gradient, which is still on its way.
    const Expr first_s = costs.segment(kinds.front(), Pass::recompute);
    layer.hidden_tp_s = ahead * min(back.first_output_grad_s, first_s);
    layer.recompute_ahead_s = select(less(1.0, model::sum_ranks(kinds.back())),
                                     ahead * max(first_s - back.first_output_grad_s, 0.0),
                                     all(Pass::recompute) - tiles_again_s);
  } else {
    layer.backward_s += tiles_again_s;
  }
  return layer;
}

}  // namespace

LayerCosts select(const Expr& condition, const LayerCosts& yes, const LayerCosts& no) {
  return by_part([&](Expr LayerCosts::*part) { return select(condition, yes.*part, no.*part); });
}

LayerCosts layer_costs(const model::Config& model, const Costs& costs, Recompute recompute,
                       const Expr& dense, const Expr& ahead) {
  const auto counts = model::layer_counts(model);
  if (counts.size() == 1) return costs_of(model, costs, recompute, counts[0].first, ahead);
  LayerCosts mean{};
  for (const auto& [kind, count] : counts) {
    const LayerCosts one = costs_of(model, costs, recompute, kind, ahead);
    const int alike =
        kind.dense ? model.first_dense_layers : model.num_layers - model.first_dense_layers;
    const Expr share = (kind.dense ? dense : 1.0 - dense) * (double(count) / alike);
    mean = by_part([&](Expr LayerCosts::*part) { return mean.*part + share * one.*part; });
  }
  return mean;
}

Expr brings_ahead(const model::Config& model, const model::Block& layer, bool host_update,
                  bool moves) {
  const Expr ready = 1.0 - kept_state(model, layer, host_update).weights_staged;
  return moves ? ready * (1.0 - less(0.0, Variables(model).a)) : ready;
}

Expr moved_bytes(const model::Config& model, Recompute recompute, const StageRole& role,
                 const Expr& ratio) {
  using Lists = std::map<model::Division, std::vector<model::Kept>>;
  const auto bytes = [model, recompute, role, lists = std::make_shared<Lists>()](Arguments x) {
    const model::Split split = split_of(x.subspan(1), role);
    std::vector<model::Kept>& kept = (*lists)[split.division()];
    if (kept.empty()) kept = model::kept_tensors(model, recompute, {}, split.division());
    return plan::moved_tensors(kept, x[0], split).bytes;
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
