#include "persistent_buffers.hpp"

namespace brume::schedule {
namespace {

/// Cuts off the last `offloaded` elements of `range`, and of these the last `on_disk`.
TieredState keep(ProgramBuilder& build, int block, Content content, Range range, double offloaded,
                 double on_disk = 0.0) {
  const std::int64_t away = std::int64_t(offloaded), last = std::int64_t(on_disk);
  const std::int64_t end = range.first + range.count;
  TieredState state{.device = {range.first, range.count - away},
                    .host = {end - away, away - last},
                    .disk = {end - last, last}};
  const bool weights = content == Content::weights, grads = content == Content::grads;
  const std::string name = weights ? "weights" : grads ? "grads" : "moments";
  const auto part = [&](const std::string& prefix, Tier tier, Range of) {
    return of.count > 0 ? build.add_part(prefix + name, tier, content, of, block, true)
                        : BufferId::none;
  };
  state.device_buffer = part("", Tier::device, state.device);
  state.host_buffer = part("host_", Tier::host, state.host);
  state.disk_buffer = part("disk_", Tier::disk, state.disk);
  return state;
}

BlockState make_block(const Context& context, ProgramBuilder& build, int block) {
  const plan::Stage& stage = context.stage_of(block);
  const model::Layout layout =
      model::layout(context.block(block), stage.tp, context.place.tp_rank, stage.dp);
  const plan::KeptState<double> kept = plan::kept_state(
      plan::state_knobs(stage), double(layout.elements), context.trains_block(block));
  const std::int64_t count = layout.elements / stage.shard_ranks();
  const Range whole{0, layout.elements},
      shard{plan::shard_place(stage, context.place.dp_rank).shard * count, count};
  const auto range = [&](bool is_sharded) { return is_sharded ? shard : whole; };
  const bool trains = context.trains_block(block);
  const auto trained = [&](Range of) { return trains ? of : Range{of.first, 0}; };
  const Range updated = range(context.sharded.optimizer);
  return {.whole = whole,
          .shard = updated,
          .partial_elements = layout.partial_elements,
          .weights = keep(build, block, Content::weights, range(context.sharded.weights),
                          kept.host_weights),
          .grads = keep(build, block, Content::grads, trained(range(context.sharded.grads)),
                        kept.host_grads),
          .moments = keep(build, block, Content::optimizer, trained(updated),
                          kept.offloaded_optimizer, kept.disk_optimizer),
          .weights_staged = kept.weights_staged > 0.0,
          .grads_staged = kept.grads_staged > 0.0};
}

}  // namespace

PersistentBuffers::PersistentBuffers(const Context& context, ProgramBuilder& build) {
  for (const auto& [block, stage] : context.stage_of_block)
    blocks_.emplace(block, make_block(context, build, block));

  if (context.model.tied_head) {
    const model::Layout largest =
        model::layout(context.block(0), context.stage.tp, 0, context.stage.dp);
    const model::Piece& table = largest.piece(context.block(0), ".token");
    token_table = {table.first, table.elements};
  }
  if (context.tied_across_stages() && context.holds_last_stage()) {
    const auto tied = [&](const char* name, Content content, std::int64_t element_bytes) {
      return build.add(name, Tier::device, content, token_table.count * element_bytes, 0, true,
                       token_table.first);
    };
    tied_weights =
        tied("tied.weights", Content::weights, model::weight_bytes(context.model.precision));
    if (context.trains_block(0)) tied_grads = tied("tied.grads", Content::grads, model::grad_bytes);
  }

  const auto rest = [&](const char* name, Content content, std::int64_t bytes) {
    return build.add(name, Tier::device, content, bytes, -1, true);
  };
  const std::int64_t all_batches = context.batch_bytes * context.plan.microbatches;
  if (context.holds_first_stage()) inputs = rest("inputs", Content::batch, all_batches);
  if (context.holds_last_stage()) {
    targets = rest("targets", Content::batch, all_batches);
    loss = rest("loss", Content::totals, 2 * sizeof(double));
  }
  if (context.model.isolated) documents = rest("documents", Content::batch, all_batches);
  totals = rest("totals", Content::totals, 2 * sizeof(double));
}

}  // namespace brume::schedule
