#include "passes.hpp"

#include <algorithm>

namespace brume::schedule {
namespace {

void append(std::vector<Operand>& operands, const std::vector<Operand>& more) {
  operands.insert(operands.end(), more.begin(), more.end());
}

}  // namespace

void Passes::run(const Slot& slot, const Slot* next) {
  switch (slot.kind) {
    case Slot::Kind::update: return update(slot);
    case Slot::Kind::forward: return forward(slot, next);
    case Slot::Kind::backward: return backward(slot, next);
    case Slot::Kind::weights: return weights(slot, next);
  }
}

void Passes::update(const Slot& slot) {
  const BufferId weights = stores_.weights.use(slot.block);
  stores_.optimizer.step_on_host(slot, weights);
  if (const Range here = persistent_.block(slot.block).device_updated(); here.count > 0) {
    std::vector<Operand> operands{updates(Role::weights, build_.elements(weights, here))};
    append(operands, stores_.gradients.use_in_update(slot.block));
    append(operands, stores_.optimizer.use(slot.block));
    operands.push_back(reads(Role::totals, persistent_.totals));
    build_.add(slot, Operation::optimizer_step, std::move(operands));
    matrix_step(slot, build_.elements(weights, here));
  }
  stores_.weights.gather(slot);
  if (slot.block == 0) stores_.tied.send(slot, stores_.weights);
}

void Passes::matrix_step(const Slot& slot, Part weights) {
  const std::vector<Operand> directions = stores_.gradients.bring_directions(slot);
  if (directions.empty()) return;
  const std::int64_t bytes =
      model::matrix_workspace(context_.model, context_.block(slot.block)).bytes();
  const BufferId workspace = build_.add(context_.block(slot.block).name + ".matrix_workspace",
                                        Tier::device, Content::workspace, bytes, slot.block);
  std::vector<Operand> operands{updates(Role::weights, weights)};
  append(operands, stores_.optimizer.use(slot.block));
  append(operands, directions);
  operands.push_back(writes(Role::workspace, workspace));
  build_.add(slot, Operation::matrix_step, std::move(operands));
}

// --- forward ------------------------------------------------------------------------------------

void Passes::forward(const Slot& slot, const Slot* next) {
  const bool embeds = context_.segment_kinds(slot.block).front() == SegmentKind::embedding;
  stores_.activations.begin(slot, embeds ? persistent_.inputs : stores_.streams.take(slot));
  segments_forward(slot, Operation::forward, next);
  if (context_.is_head(slot.block) && !context_.trains()) later_pieces(slot);
  stores_.activations.leave(slot);
  stores_.streams.leave(slot);
}

/// Runs the segments of a block, each from the output of the one before it. The last one's output
/// goes to the next block; where it is only recomputed nobody needs it.
void Passes::segments_forward(const Slot& slot, Operation operation, const Slot* next) {
  Activations& kept = stores_.activations;
  const std::vector<SegmentKind> kinds = context_.segment_kinds(slot.block);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const SegmentKind kind = kinds[i];
    const SegmentBytes& bytes = context_.segments.at(kind);
    const bool last = i + 1 == kinds.size();
    const bool head = context_.is_head(slot.block), logits = head && context_.generates();
    const bool made = !head && !(last && operation == Operation::recompute);
    const char* name = last ? "output" : "middle";
    if (bytes.tiled && operation == Operation::recompute) continue;  // see run_tiles_backward()
    bring(slot, kind);
    if (last && operation == Operation::forward) bring_first_beside(slot, next);
    BufferId output = logits ? persistent_.logits : BufferId::none;
    if (made) output = make_output(slot, kind, name);
    kept.make_saved(slot, kind);
    for (int tile = 0; tile < (bytes.tiled ? bytes.pieces : 1); ++tile)
      run_forward(slot, kind, operation, output, tile);
    if (bytes.tiled) kept.drop_saved(slot, kind);
    if (!made) continue;
    kept.drop_normed(slot, kind);
    const bool whole = bytes.sums || !bytes.cuts;
    const BufferId shard = whole ? stores_.streams.scatter(slot, kind, output, name) : output;
    if (bytes.sums)
      build_.add(slot, operation,
                 {reads(Role::input, kept.use(slot, kind)), updates(Role::output, shard)},
                 {.segment = kind, .run = int(bytes.forward_runs.size()) - 1});
    if (last)
      stores_.streams.put(slot, shard);
    else
      kept.put_input(slot, kinds[i + 1], shard);
  }
}

/// Terms of the sum of several ranks take the place of a normed input that is not kept.
BufferId Passes::make_output(const Slot& slot, SegmentKind kind, const char* name) {
  const SegmentBytes& bytes = context_.segments.at(kind);
  if (bytes.cuts && !bytes.sums) return stores_.streams.make_shard(slot, name);
  const std::vector<BufferId>* const normed = stores_.activations.normed(slot, kind);
  return bytes.sums && normed ? normed->front() : stores_.streams.make(slot, kind, name);
}

// --- one segment's forward ----------------------------------------------------------------------

/// The head's other pieces, in the buffers of the first one. A training's head is at once followed
/// by its backward, so each piece goes both ways before the next.
void Passes::later_pieces(const Slot& slot) {
  for (int piece = 1; piece < context_.segments.at(SegmentKind::head).pieces; ++piece) {
    run_forward(slot, SegmentKind::head, Operation::forward, BufferId::none, piece);
    if (slot.kind == Slot::Kind::backward) run_backward(slot, SegmentKind::head, piece);
  }
}

void Passes::run_forward(const Slot& slot, SegmentKind kind, Operation operation, BufferId output,
                         int piece) {
  const bool head = kind == SegmentKind::head, learns = head && !context_.generates(),
             whole_loss = learns && context_.stage.tp == 1;
  const bool first_loss = whole_loss && slot.microbatch == 0 && piece == 0;
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, kind);
  std::vector<Operand> operands{input(slot, kind, piece),
                                reads(Role::weights, stores_.weights.use(slot.block))};
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (saved[i] != BufferId::none) operands.push_back(writes(Role::saved, saved[i], int(i)));
  const Scratch scratch{
      add_workspace(operands, slot, context_.segments.at(kind).forward_workspace)};
  if (output != BufferId::none)
    operands.push_back(writes(Role::output, context_.segments.at(kind).tiled
                                                ? stream(output, kind, piece)
                                                : Part(output)));
  add_normed(operands, slot, kind);
  if (head && context_.model.tied_head)
    operands.push_back(reads(Role::weights, stores_.tied.use(stores_.weights), 1));
  if (learns)
    operands.push_back(reads(Role::targets, tokens(persistent_.targets, slot, kind, piece)));
  add_documents(operands, slot, kind);
  add_cache(operands, slot, kind);
  if (whole_loss) operands.push_back(loss(first_loss));
  add_runs(slot, operation, std::move(operands), {.segment = kind, .replaces = first_loss},
           scratch);
  if (learns && !whole_loss) run_loss(slot, piece);
}

/// Tensor-parallel ranks know the loss of a token once they have the statistics of each one's part
/// of the logits, the last tensor that the head saves.
void Passes::run_loss(const Slot& slot, int piece) {
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, SegmentKind::head);
  const int last = int(saved.size()) - 1;
  const std::int64_t token_bytes =
      build_.buffer(saved.back()).bytes / context_.segments.at(SegmentKind::head).piece_tokens;
  const Part statistics{saved.back(), 0, token_bytes * tokens_of(SegmentKind::head, piece)};
  const bool first = slot.microbatch == 0 && piece == 0;
  build_.add(slot, Operation::all_gather, {updates(Role::destination, statistics)},
             {.segment = SegmentKind::head, .group = model::Axis::tp});
  build_.add(slot, Operation::loss,
             {updates(Role::saved, saved[last - 1], last - 1), reads(Role::saved, statistics, last),
              reads(Role::targets, tokens(persistent_.targets, slot, SegmentKind::head, piece)),
              loss(first)},
             {.segment = SegmentKind::head, .replaces = first});
}

// --- backward -----------------------------------------------------------------------------------

void Passes::backward(const Slot& slot, const Slot* next) {
  const bool head = context_.is_head(slot.block);
  std::vector<SegmentKind> kinds = context_.segment_kinds(slot.block);
  std::ranges::reverse(kinds);
  bring_gradient(slot, kinds.front());
  stores_.gradients.begin(slot);
  if (head) {
    stores_.tied.clear_grads(slot);
    stores_.streams.put(slot, stores_.streams.make(slot, SegmentKind::head, "gradient"));
  }
  if (context_.recomputes(slot.block)) segments_forward(slot, Operation::recompute, nullptr);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const bool last = i + 1 == kinds.size();
    bring_gradient(slot, kinds[i]);
    bring(slot, kinds[i]);
    bring_beside(context_.segments.at(kinds[i]).backward_runs, [=, this, &slot, &kinds] {
      if (last)
        bring_first_beside(slot, next);
      else if (context_.options.overlap)
        bring(slot, kinds[i + 1]);
    });
    if (context_.segments.at(kinds[i]).tiled)
      run_tiles_backward(slot, kinds[i]);
    else
      context_.splits(slot.block) ? run_backward_input(slot, kinds[i])
                                  : run_backward(slot, kinds[i]);
    if (head) later_pieces(slot);
    if (head && context_.passes_gradient_on(slot.block))
      stores_.streams.put(slot, stores_.streams.scatter(slot, SegmentKind::head,
                                                        stores_.streams.use(slot), "gradient"));
  }
  stores_.streams.leave(slot);
  if (!context_.splits(slot.block)) stores_.gradients.leave(slot);
  stores_.activations.leave(slot);
}

/// The second part of a layer's backward; all of an embedding's.
void Passes::weights(const Slot& slot, const Slot* next) {
  stores_.gradients.begin(slot);
  std::vector<SegmentKind> kinds = context_.segment_kinds(slot.block);
  std::ranges::reverse(kinds);
  for (const SegmentKind kind : kinds) {
    if (kind == kinds.back()) bring_first_beside(slot, next);
    context_.splits(slot.block) ? run_backward_weights(slot, kind) : run_backward(slot, kind);
  }
  stores_.gradients.leave(slot);
  stores_.activations.leave(slot);
}

void Passes::run_backward(const Slot& slot, SegmentKind kind, int piece) {
  const bool embeds = kind == SegmentKind::embedding, head = kind == SegmentKind::head;
  const bool replaces =
      piece == 0 && (slot.microbatch == 0 || persistent_.block(slot.block).grads_staged);
  const bool cuts = context_.segments.at(kind).cuts;
  const BufferId shard = stores_.streams.use(slot);
  bring_gradient(slot, kind);
  const BufferId all = std::exchange(whole_gradient_, {}).value_or(shard);
  const Part gradient = cuts ? Part(all) : stream(all, kind, piece);

  std::vector<Operand> operands{input(slot, kind, piece)};
  if (!embeds) operands.push_back(reads(Role::weights, stores_.weights.use(slot.block)));
  add_grads(operands, slot, replaces && !embeds);  // an embedding adds to what was cleared
  add_saved(operands, slot, kind);
  const Scratch scratch{
      add_workspace(operands, slot, context_.segments.at(kind).backward_workspace)};
  operands.push_back(embeds || cuts ? reads(Role::gradient, gradient)
                     : head         ? writes(Role::gradient, gradient)
                                    : updates(Role::gradient, gradient));
  if (cuts) operands.push_back(updates(Role::output, shard));
  add_normed(operands, slot, kind);
  if (head && context_.model.tied_head) {
    operands.push_back(reads(Role::weights, stores_.tied.use(stores_.weights), 1));
    if (context_.model.trains_table())
      operands.push_back(updates(Role::grads, stores_.tied.use(stores_.gradients), 1));
  }
  add_documents(operands, slot, kind);
  add_runs(slot, Operation::backward, std::move(operands), {.segment = kind, .replaces = replaces},
           scratch);
}

/// Makes each tile's tensors again and takes it back at once, in the buffers of the first one.
void Passes::run_tiles_backward(const Slot& slot, SegmentKind kind) {
  stores_.activations.make_saved(slot, kind);
  for (int tile = 0; tile < context_.segments.at(kind).pieces; ++tile) {
    run_forward(slot, kind, Operation::recompute, BufferId::none, tile);
    run_backward(slot, kind, tile);
  }
}

/// Gradients of norms and of the stream. The gradient of the output of the last products stays for
/// the second part unless a norm comes behind them: so one rank has a new buffer for the stream's.
void Passes::run_backward_input(const Slot& slot, SegmentKind kind) {
  const SegmentBytes& bytes = context_.segments.at(kind);
  const bool replaces = slot.microbatch == 0;
  const BufferId shard = stores_.streams.take(slot);
  const BufferId gradient = std::exchange(whole_gradient_, {}).value_or(shard);
  const BufferId products =
      build_.add_made(slot, "product_grads", Content::saved, bytes.product_grads);
  const BufferId output = bytes.cuts ? shard : stores_.streams.make(slot, kind, "gradient");
  std::vector<Operand> operands{
      input(slot, kind, 0), reads(Role::weights, stores_.weights.use(slot.block)),
      reads(Role::gradient, gradient),
      bytes.cuts ? updates(Role::output, output) : writes(Role::output, output),
      writes(Role::products, products)};
  add_normed(operands, slot, kind);
  add_grads(operands, slot, replaces);
  add_saved(operands, slot, kind);
  const Scratch scratch{
      add_workspace(operands, slot, bytes.backward_workspace - bytes.product_grads), products};
  add_documents(operands, slot, kind);
  add_runs(slot, Operation::backward_input, std::move(operands),
           {.segment = kind, .replaces = replaces}, scratch);
  stores_.streams.put(slot, output);
  const bool made_by_norm = context_.model.post_norms();
  stores_.activations.keep(slot, kind, {made_by_norm ? BufferId::none : gradient, products});
}

/// Gradients of linear layers, beside those of norms, which the first part has made.
void Passes::run_backward_weights(const Slot& slot, SegmentKind kind) {
  const SegmentBytes& bytes = context_.segments.at(kind);
  const Activations::ProductGrads& grads = stores_.activations.grads(slot, kind);
  std::vector<Operand> operands{input(slot, kind, 0),
                                reads(Role::weights, stores_.weights.use(slot.block)),
                                reads(Role::products, grads.others)};
  add_normed(operands, slot, kind);
  add_grads(operands, slot, false);
  if (grads.of_output != BufferId::none) operands.push_back(reads(Role::gradient, grads.of_output));
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, kind);
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (saved[i] != BufferId::none && bytes.saved[i].for_weights)
      operands.push_back(reads(Role::saved, saved[i], int(i)));
  add_workspace(operands, slot, bytes.weights_workspace);
  build_.add(slot, Operation::backward_weights, std::move(operands),
             {.segment = kind, .replaces = slot.microbatch == 0});
}

// --- operands -----------------------------------------------------------------------------------

std::int64_t Passes::tokens_of(SegmentKind kind, int piece) const {
  const std::int64_t most = context_.segments.at(kind).piece_tokens;
  return std::min(most, all_tokens() - piece * most);
}

/// The part of a microbatch's stream that a segment works on in one task.
Part Passes::stream(BufferId buffer, SegmentKind kind, int piece) const {
  const SegmentBytes& segment = context_.segments.at(kind);
  if (segment.piece_tokens >= all_tokens()) return {buffer, 0, segment.stream_bytes};
  const std::int64_t token_bytes = segment.stream_bytes / all_tokens();
  return {buffer, piece * segment.piece_tokens * token_bytes, tokens_of(kind, piece) * token_bytes};
}

/// The same of its tokens, in a buffer of all microbatches'.
Part Passes::tokens(BufferId buffer, const Slot& slot, SegmentKind kind, int piece) const {
  const std::int64_t first = slot.microbatch * context_.batch_bytes;
  const std::int64_t most = context_.segments.at(kind).piece_tokens;
  if (most >= all_tokens()) return {buffer, first, context_.batch_bytes};
  return {buffer, first + piece * most * model::token_bytes,
          tokens_of(kind, piece) * model::token_bytes};
}

Operand Passes::input(const Slot& slot, SegmentKind kind, int piece) {
  const BufferId buffer = stores_.activations.use(slot, kind);
  if (context_.segments.at(kind).cuts) return reads(Role::input, buffer);
  return reads(Role::input, kind == SegmentKind::embedding ? tokens(buffer, slot, kind)
                                                           : stream(buffer, kind, piece));
}

/// @param first  nothing was added to the loss so far
Operand Passes::loss(bool first) const {
  return first ? writes(Role::loss, persistent_.loss) : updates(Role::loss, persistent_.loss);
}

/// A block of which nothing is trained has none.
void Passes::add_grads(std::vector<Operand>& operands, const Slot& slot, bool replaces) {
  if (!context_.updates(slot.block)) return;
  const BufferId grads = stores_.gradients.use(slot.block);
  operands.push_back(replaces ? writes(Role::grads, grads) : updates(Role::grads, grads));
}

/// Experts with more copies of tokens than there is room for make tensors again in their place.
void Passes::add_saved(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind) const {
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, kind);
  const bool again = kind == SegmentKind::experts && context_.stage.ep > 1;
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (saved[i] != BufferId::none)
      operands.push_back(again ? updates(Role::saved, saved[i], int(i))
                               : reads(Role::saved, saved[i], int(i)));
}

void Passes::add_documents(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind) {
  if (context_.model.reads_documents(kind))
    operands.push_back(reads(Role::documents,
                             Part(persistent_.documents, slot.microbatch * context_.sequences_bytes,
                                  context_.sequences_bytes)));
}

/// In generation attention reads the keys of earlier tokens, and keeps new ones.
void Passes::add_cache(std::vector<Operand>& operands, const Slot& slot, SegmentKind kind) {
  if (!context_.generates() || !model::attends(kind)) return;
  operands.push_back(updates(Role::cache, persistent_.caches.at(slot.block)));
  operands.push_back(reads(Role::sequences, persistent_.sequences));
  operands.push_back(reads(Role::tables, persistent_.tables));
}

BufferId Passes::add_workspace(std::vector<Operand>& operands, const Slot& slot,
                               std::int64_t bytes) {
  if (bytes == 0) return BufferId::none;
  const BufferId workspace =
      build_.add("workspace", Tier::device, Content::workspace, bytes, slot.block);
  operands.push_back(writes(Role::workspace, workspace));
  return workspace;
}

}  // namespace brume::schedule
