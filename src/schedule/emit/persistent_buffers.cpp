#include "persistent_buffers.hpp"

namespace brume::schedule {
namespace {

/// Cuts off the last `offloaded` elements of `range`, of these the last `host_updated`, and of what
/// is left of these the last `on_disk`.
TieredState keep(ProgramBuilder& build, int block, Content content, const std::string& name,
                 Range range, double offloaded, double on_disk = 0.0, double host_updated = 0.0) {
  const std::int64_t stepped = std::int64_t(host_updated), away = std::int64_t(offloaded) - stepped,
                     last = std::int64_t(on_disk);
  const std::int64_t end = range.first + range.count - stepped;
  TieredState state{.device = {range.first, range.count - stepped - away},
                    .host = {end - away, away - last},
                    .disk = {end - last, last},
                    .host_updated = {end, stepped}};
  const auto part = [&](const std::string& prefix, Tier tier, Range of) {
    return of.count > 0 ? build.add_part(prefix + name, tier, content, of, block, true)
                        : BufferId::none;
  };
  state.device_buffer = part("", Tier::device, state.device);
  state.host_buffer = part("host_", Tier::host, state.host);
  state.disk_buffer = part("disk_", Tier::disk, state.disk);
  state.host_updated_buffer = part("host_updated_", Tier::host, state.host_updated);
  return state;
}

BlockState make_block(const Context& context, ProgramBuilder& build, int block) {
  const plan::Stage& stage = context.stage_of(block);
  const model::Layout layout = context.layout(block);
  const Range whole{0, layout.elements}, trained{0, layout.trained_elements},
      frozen{trained.count, whole.count - trained.count};
  const plan::KeptState<double> kept = plan::kept_state(
      plan::state_knobs(stage), plan::Elements<double>{double(trained.count), double(frozen.count)},
      plan::alignments(context.block(block)));
  const int shard = context.place.at[model::Axis::shard];
  const auto kept_range = [&](Range all, bool is_sharded) {
    const std::int64_t count = all.count / stage.shard_ranks();
    return is_sharded ? Range{all.first + shard * count, count} : all;
  };
  const bool sharded_weights = context.sharded.weights, staged = kept.weights_staged > 0.0;
  const Range updated = kept_range(trained, context.sharded.optimizer);
  BlockState state{.whole = whole,
                   .trained = trained,
                   .frozen = frozen,
                   .shard = updated,
                   .partial_elements = layout.partial_elements,
                   .dense_elements = layout.dense_elements,
                   .weights = {},
                   .grads = {},
                   .moments = {},
                   .weights_staged = staged,
                   .grads_staged = trained.count > 0 && kept.grads_staged > 0.0};
  const auto keep_weights = [&](const char* name, Range all, double on_host) {
    if (all.count > 0)
      state.weights.push_back(
          keep(build, block, Content::weights, name, kept_range(all, sharded_weights), on_host));
  };
  if (staged) {
    keep_weights("weights", trained, kept.host_weights.trained);
    keep_weights("frozen_weights", frozen, kept.host_weights.frozen);
  } else {
    keep_weights("weights", whole, 0.0);
  }
  state.grads = keep(build, block, Content::grads, "grads",
                     kept_range(trained, context.sharded.grads), kept.host_grads);
  state.moments = keep(build, block, Content::optimizer, "moments", updated,
                       kept.offloaded_optimizer, kept.disk_optimizer, kept.host_updated);
  return state;
}

}  // namespace

PersistentBuffers::PersistentBuffers(const Context& context, ProgramBuilder& build) {
  for (const auto& [block, stage] : context.stage_of_block)
    blocks_.emplace(block, make_block(context, build, block));

  if (context.model.tied_head) {
    const model::Layout largest =
        model::layout(context.block(0), context.stage.tp, 0, context.stage.state_ranks());
    const model::Piece& table = largest.piece(context.block(0), ".token");
    token_table = {table.first, table.elements};
  }
  if (context.tied_across_stages() && context.holds_last_stage()) {
    const auto tied = [&](const char* name, Content content, std::int64_t element_bytes) {
      return build.add(name, Tier::device, content, token_table.count * element_bytes, 0, true,
                       token_table);
    };
    tied_weights =
        tied("tied.weights", Content::weights, model::weight_bytes(context.model.precision));
    if (context.model.trains_table())
      tied_grads = tied("tied.grads", Content::grads, model::grad_bytes);
  }

  const auto rest = [&](const char* name, Content content, std::int64_t bytes) {
    return build.add(name, Tier::device, content, bytes, -1, true);
  };
  const std::int64_t all_batches = context.batch_bytes * context.plan.microbatches;
  if (context.generates()) {
    // Programs of passes of several sizes have the same weights and caches, so sizes come behind.
    const std::int64_t cache_bytes = context.value(model::cache_bytes(context.model));
    for (const auto& [block, stage] : context.stage_of_block)
      if (context.is_layer(block))
        caches[block] = build.add(context.block(block).name + ".cache", Tier::device,
                                  Content::cache, cache_bytes, block, true);
    const std::int64_t tables_bytes = std::int64_t{context.model.generation.sequences} *
                                      context.model.blocks_per_sequence() *
                                      std::int64_t(sizeof(std::int32_t));
    tables = rest("tables", Content::batch, tables_bytes);
    sequences = rest("sequences", Content::batch, all_batches);
    if (context.holds_last_stage()) {
      const model::Segment head = model::segment(context.model, SegmentKind::head);
      const model::Tensor& made = head.tensor(model::TensorId::output);
      logits = rest("logits", Content::batch, context.value(made.elements()) * made.element_bytes);
    }
  }
  if (context.holds_first_stage()) inputs = rest("inputs", Content::batch, all_batches);
  if (context.holds_last_stage() && !context.generates()) {
    targets = rest("targets", Content::batch, all_batches);
    const int sequences =
        context.model.pairs ? context.plan.microbatches * context.stage.microbatch : 0;
    loss = rest("loss", Content::totals, std::int64_t{1 + sequences} * 2 * sizeof(double));
  }
  if (context.model.isolated)
    documents =
        rest("documents", Content::batch, context.sequences_bytes * context.plan.microbatches);
  if (context.generates()) return;
  totals = rest("totals", Content::totals, 2 * sizeof(double));
}

}  // namespace brume::schedule
