#include "block_state.hpp"

namespace brume::analyzer {
namespace {

constexpr double alignment_elements = 16.0;

/// The end of a range that is offloaded, cut at whole cache lines.
Expr offloaded(const Expr& ratio, const Expr& range) {
  return floor(ratio * range / alignment_elements) * alignment_elements;
}

}  // namespace

Expr zero_level(const Variables& v) { return less(1.0, v.dp) * v.z; }

BlockState block_state(const model::Block& block) {
  const Variables v;
  const Expr whole = model::layout_elements(block), zero = zero_level(v);
  const auto from_level = [&](double level) {
    return whole / select(less(level - 0.5, zero), v.dp, 1.0);
  };
  const Expr weights = from_level(3), grads = from_level(2), stepped = from_level(1);
  return {.whole = whole,
          .weights = weights,
          .grads = grads,
          .stepped = stepped,
          .host_weights = offloaded(v.w, weights),
          .host_grads = offloaded(v.g, grads),
          .offloaded_moments = offloaded(v.o, stepped),
          .disk_moments = offloaded(v.od, stepped),
          .weights_staged = max(less(2.5, zero), less(0.0, v.w)),
          .grads_staged = max(less(1.5, zero), less(0.0, v.g))};
}

}  // namespace brume::analyzer
