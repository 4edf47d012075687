/// @file Ranks that sum a segment's output, and runs between its exchanges.
#include "model/layer.hpp"

namespace brume::model {

AxisSet sum_axes(SegmentKind kind) {
  return kind == SegmentKind::experts ? expert_axes : AxisSet(Axis::tp);
}

Expr sum_ranks(SegmentKind kind) {
  const Expr tp = Expr::variable("tp");
  return kind == SegmentKind::experts ? max(tp, Expr::variable("ep")) : tp;
}

namespace {

/// @param op_at  operators in the order of their calls
template <class OpAt>
std::vector<Run> runs(int count, const Split& split, const OpAt& op_at) {
  std::vector<Run> runs{{0, 0}};
  for (int i = 0; i < count; ++i)
    if (const Operator& op = op_at(i); is_exchange(op.kind) && split.size(op.axes) > 1) {
      runs.back().end = i;
      runs.push_back({i + 1, i + 1});
    }
  runs.back().end = count;
  return runs;
}

}  // namespace

std::vector<Run> forward_runs(const Segment& segment, const Split& split) {
  return runs(int(segment.operators.size()), split,
              [&](int i) -> const Operator& { return segment.operators[i]; });
}

std::vector<Run> backward_runs(const Segment& segment, const Split& split) {
  return runs(int(segment.backward.size()), split,
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
