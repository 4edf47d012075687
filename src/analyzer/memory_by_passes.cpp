#include <algorithm>
#include <map>
#include <string>

#include "analyzer/analyzer.hpp"
#include "other_orders.hpp"
#include "plan/knobs.hpp"
#include "plan/passes.hpp"
#include "price/price.hpp"

namespace brume::analyzer {

Peaks interleaved_peaks(const plan::Plan& plan, int first, const std::vector<ChunkBytes>& chunks) {
  const plan::Rounds rounds = plan::rounds(plan);
  const int ahead = plan::passes_in_flight(rounds, plan.run_ahead, first);
  double bytes = 0.0;  // of all that is kept
  for (const ChunkBytes& chunk : chunks) bytes += chunk.persistent;
  Peaks peaks;
  for (int forwards = 0, backwards = 0; backwards < rounds.passes();) {
    const plan::Pass pass = plan::next_pass(forwards, backwards, ahead, rounds);
    const ChunkBytes& chunk = chunks[std::size_t(pass.chunk)];
    if (!pass.forward) bytes -= chunk.kept;
    double& peak = pass.forward ? peaks.forward : peaks.backward;
    peak =
        std::max(peak, bytes + (pass.forward ? chunk.forward : chunk.backward) - chunk.persistent);
    if (pass.forward) bytes += chunk.kept;
    ++(pass.forward ? forwards : backwards);
  }
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
  const plan::Stage& s = plan.stages[std::size_t(stage)];
  const auto seconds = [&](model::SegmentKind kind, price::Pass pass) {
    return price::segment_s(model, profile, kind, pass, s.microbatch, s.tp);
  };
  SecondPart part{};
  if (stage == 0) part.work_s = seconds(model::SegmentKind::embedding, price::Pass::backward);
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
    const model::Segment segment = model::segment(model, kind);
    kept += segment.product_grads_bytes() + model::stream_bytes(model);  // and the input
    if (!model.post_norms()) kept += model::stream_bytes(model);         // the output's gradient
    for (const model::Saved& saved : segment.saved)
      if (saved.for_weights && (stores || !saved.cheap)) kept += saved.bytes();
  });
  return kept.evaluate({{"b", s.microbatch}, {"tp", s.tp}});
}

Peaks split_peaks(const plan::Plan& plan, int stage, const ChunkBytes& bytes,
                  double between_parts) {
  const int ahead = plan::stage_in_flight(plan, stage), most = plan::stage_in_flight(plan, 0);
  // At the last layer of a first part, the stage's first one, all others have done theirs.
  const double others = 1.0 - 1.0 / plan.stages[std::size_t(stage)].layers;
  const double own = bytes.backward - bytes.persistent + others * (between_parts - bytes.kept);
  double kept = bytes.persistent;
  Peaks peaks;
  plan::Pass pass{};
  for (plan::Done done; done.weights < plan.microbatches; done.add(pass)) {
    pass = plan::next_split_pass(done, ahead, most, plan.microbatches);
    if (pass.weights) {
      kept -= between_parts;
    } else if (pass.forward) {
      peaks.forward = std::max(peaks.forward, kept + bytes.forward - bytes.persistent);
      kept += bytes.kept;
    } else {
      peaks.backward = std::max(peaks.backward, kept - bytes.kept + own);
      kept += between_parts - bytes.kept;
    }
  }
  return peaks;
}

}  // namespace brume::analyzer
