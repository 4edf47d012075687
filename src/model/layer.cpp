/// @file Ranks that sum a segment's output, and runs between its exchanges.
#include "model/layer.hpp"

#include <algorithm>

namespace brume::model {

AxisSet sum_axes(SegmentKind kind) {
  return kind == SegmentKind::experts ? expert_axes : AxisSet(Axis::tp);
}

Expr sum_ranks(SegmentKind kind) {
  const Expr tp = Expr::variable("tp");
  return kind == SegmentKind::experts ? max(tp, Expr::variable("ep")) : tp;
}

/// Tensors in whose places an operator has its own, or their gradients. Nobody writes routes.
std::vector<TensorId> OnTheWay::places(const Operator& op) const {
  std::vector<TensorId> found;
  const auto add = [&](TensorId id) {
    const Tensor& tensor = segment_.tensor(id);
    found.insert(found.end(), {id, tensor.rows_of, tensor.gradient_of});
  };
  add(op.read), add(op.written);
  if (op.second) add(*op.second);
  if (op.gates) add(*op.gates);
  return found;
}

bool OnTheWay::meet(const Operator& op, bool exchanges) {
  const std::vector<TensorId> own = places(op);
  if (exchanges) {
    if (is_of_tokens(op.kind)) moved_.insert(moved_.end(), own.begin(), own.end());
    return false;
  }
  if (std::ranges::find_first_of(own, moved_) != own.end()) moved_.clear();
  return !moved_.empty();
}

namespace {

/// @param op_at  operators in the order of their calls
template <class OpAt>
std::vector<Run> runs(const Segment& segment, int count, const Split& split, const OpAt& op_at) {
  std::vector<Run> runs{{0, 0}};
  OnTheWay on_the_way(segment);
  for (int i = 0; i < count; ++i) {
    const Operator& op = op_at(i);
    const bool exchanges = is_exchange(op.kind) && split.size(op.axes) > 1;
    const bool beside = on_the_way.meet(op, exchanges);
    Run& run = runs.back();
    run.end = i;
    if (exchanges)
      runs.push_back({i + 1, i + 1});
    else if (run.first == i)
      run.beside = beside;
    else if (run.beside && !beside)
      runs.push_back({i, i});
  }
  runs.back().end = count;
  return runs;
}

}  // namespace

std::vector<Run> forward_runs(const Segment& segment, const Split& split) {
  return runs(segment, int(segment.operators.size()), split,
              [&](int i) -> const Operator& { return segment.operators[i]; });
}

std::vector<Run> backward_runs(const Segment& segment, const Split& split) {
  return runs(segment, int(segment.backward.size()), split,
              [&](int i) -> const Operator& { return segment.operators[segment.backward[i].op]; });
}

std::vector<TensorId> Segment::brought() const {
  std::vector<TensorId> ids;
  for (const Operator& op : operators)
    if (op.kind == OperatorKind::all_gather && tensor(op.written).brought)
      ids.push_back(op.written);
  return ids;
}

}  // namespace brume::model
