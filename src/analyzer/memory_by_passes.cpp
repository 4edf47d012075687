#include <algorithm>
#include <map>
#include <string>

#include "analyzer/analyzer.hpp"
#include "other_orders.hpp"
#include "plan/knobs.hpp"
#include "price/price.hpp"

namespace brume::analyzer {

Peaks peaks_by_passes(const plan::Plan& plan, int first, const std::vector<ChunkBytes>& chunks) {
  double bytes = 0.0;  // kept
  Peaks peaks;
  for (const ChunkBytes& chunk : chunks) {
    bytes += chunk.persistent;
    peaks.forward = std::max(peaks.forward, chunk.persistent + chunk.first_forward);
  }
  plan::RankPasses(plan.order, plan.shape(), first).each([&](const plan::Pass& pass) {
    const ChunkBytes& chunk = chunks[pass.chunk];
    if (pass.weights) {
      bytes -= chunk.between_parts;
    } else if (pass.forward) {
      peaks.forward = std::max(peaks.forward, bytes + chunk.forward);
      bytes += chunk.kept;
    } else {
      peaks.backward = std::max(peaks.backward, bytes - chunk.kept + chunk.backward);
      bytes += chunk.between_parts - chunk.kept;
    }
  });
  return peaks;
}

namespace {

/// Calls `visit` with each segment of a stage's layers, and whether its layer is stored.
void each_segment(const plan::Stage& s, const model::Config& model, const auto& visit) {
  for (int layer = 0; layer < s.layers; ++layer)
    for (const model::SegmentKind kind : model::segment_kinds(
             model, model::BlockKind::layer, model.layer_kind(s.first_layer + layer)))
      visit(kind, layer < s.stored_layers);
}

}  // namespace

SecondPart second_part(const plan::Plan& plan, int stage, const model::Config& model,
                       const hardware::Profile& profile) {
  const plan::Stage& s = plan.stages[stage];
  const auto seconds = [&](model::SegmentKind kind, price::Pass pass) {
    return price::segment_s(model, profile, kind, pass, s.split());
  };
  SecondPart part{};
  if (stage == 0 && s.layers > 0)
    part.work_s = seconds(model::SegmentKind::embedding, price::Pass::backward);
  each_segment(s, model, [&](model::SegmentKind kind, bool stores) {
    part.work_s += seconds(
        kind, stores ? price::Pass::stored_backward_weights : price::Pass::backward_weights);
    ++part.tasks;
  });
  return part;
}

double between_parts_bytes(const plan::Stage& s, const model::Config& model) {
  model::Expr kept = 0.0;
  each_segment(s, model, [&](model::SegmentKind kind, bool stores) {
    const model::Segment segment = model::segment(model, kind, s.split().division());
    const double inputs = double(std::max<std::size_t>(segment.brought().size(), 1));
    kept += segment.product_grads_bytes() + inputs * model::stream_bytes(model, kind);
    if (!model.post_norms()) kept += model::stream_bytes(model, kind);  // the output's gradient
    for (const model::Saved& saved : segment.saved)
      if (saved.for_weights && (stores || !saved.cheap)) kept += saved.bytes();
  });
  return kept.evaluate(s.split().values());
}

}  // namespace brume::analyzer
