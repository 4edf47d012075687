#include "passes.hpp"

#include <algorithm>

namespace brume::schedule {
namespace {

void append(std::vector<Operand>& operands, const std::vector<Operand>& more) {
  operands.insert(operands.end(), more.begin(), more.end());
}

}  // namespace

Passes::Passes(const Store& store, Stores& stores) : Store(store), stores_(stores) {
  const model::HeadPieces pieces = model::head_pieces(context_.model);
  piece_tokens_ = context_.value(pieces.tokens);
  num_pieces_ = int(context_.value(pieces.count));
}

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
/// goes to the next block; where it is only recomputed nobody needs it. Of several ranks an output
/// takes the place of the input that was brought together.
void Passes::segments_forward(const Slot& slot, Operation operation, const Slot* next) {
  Activations& kept = stores_.activations;
  const std::vector<SegmentKind> kinds = context_.segment_kinds(slot.block);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const SegmentKind kind = kinds[i];
    const bool last = i + 1 == kinds.size();
    const bool head = context_.is_head(slot.block), logits = head && context_.generates();
    const bool made = !head && !(last && operation == Operation::recompute);
    const bool gathered = context_.sum_ranks(kind) > 1 && kind != SegmentKind::embedding;
    const bool cut = context_.segments.at(kind).cuts_output, in_place = gathered && !cut;
    const char* name = last ? "output" : "middle";
    const BufferId input = kept.use(slot, kind);
    if (last && operation == Operation::forward) kept.use_first_beside(next);
    BufferId output = logits ? persistent_.logits : BufferId::none;
    if (made)
      output = in_place ? input
               : cut    ? stores_.streams.make_shard(slot, name)
                        : stores_.streams.make(slot, kind, name);
    kept.make_saved(slot, kind);
    run_forward(slot, kind, operation, output);
    if (!made) continue;
    if (gathered) kept.overwritten(slot, kind);
    const BufferId shard = cut ? output : stores_.streams.scatter(slot, kind, output, name);
    if (last)
      stores_.streams.put(slot, shard);
    else
      kept.put_input(slot, kinds[i + 1], shard);
  }
}

/// The head's other pieces, in the buffers of the first one. A training's head is at once followed
/// by its backward, so each piece goes both ways before the next.
void Passes::later_pieces(const Slot& slot) {
  for (int piece = 1; piece < num_pieces_; ++piece) {
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
  if (output != BufferId::none) operands.push_back(writes(Role::output, output));
  if (head && context_.model.tied_head)
    operands.push_back(reads(Role::weights, stores_.tied.use(stores_.weights), 1));
  if (learns)
    operands.push_back(reads(Role::targets, tokens(persistent_.targets, slot, kind, piece)));
  add_documents(operands, slot, kind);
  add_cache(operands, slot, kind);
  if (whole_loss) operands.push_back(loss(first_loss));
  add_runs(slot, operation, std::move(operands), {.segment = kind, .replaces = first_loss},
           scratch);
  stores_.activations.release_shard();
  if (learns && !whole_loss) run_loss(slot, piece);
}

/// Tensor-parallel ranks know the loss of a token once they have the statistics of each one's part
/// of the logits, the last tensor that the head saves.
void Passes::run_loss(const Slot& slot, int piece) {
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, SegmentKind::head);
  const int last = int(saved.size()) - 1;
  const std::int64_t token_bytes = build_.buffer(saved.back()).bytes / piece_tokens_;
  const Part statistics{saved.back(), 0, token_bytes * tokens_of(piece)};
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
  if (context_.receives(slot))
    stores_.streams.put(slot,
                        stores_.streams.gather(slot, kinds.front(), stores_.streams.use(slot)));
  stores_.gradients.begin(slot);
  if (head) {
    stores_.tied.clear_grads(slot);
    stores_.streams.put(slot, stores_.streams.make(slot, SegmentKind::head, "gradient"));
  }
  if (context_.recomputes(slot.block)) segments_forward(slot, Operation::recompute, nullptr);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const bool last = i + 1 == kinds.size();
    stores_.activations.use(slot, kinds[i]);
    bring_beside(context_.segments.at(kinds[i]).backward_runs, [=, this, &slot, &kinds] {
      if (last)
        stores_.activations.use_first_beside(next);
      else if (context_.options.overlap)
        stores_.activations.use_beside(slot, kinds[i + 1]);
    });
    context_.splits(slot.block) ? run_backward_input(slot, kinds[i]) : run_backward(slot, kinds[i]);
    if (head) later_pieces(slot);
    if (kinds[i] != SegmentKind::embedding)
      stores_.streams.sum_gradient(slot, kinds[i],
                                   last ? std::nullopt : std::optional(kinds[i + 1]));
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
    if (kind == kinds.back()) stores_.activations.use_first_beside(next);
    context_.splits(slot.block) ? run_backward_weights(slot, kind) : run_backward(slot, kind);
  }
  stores_.gradients.leave(slot);
  stores_.activations.leave(slot);
}

void Passes::run_backward(const Slot& slot, SegmentKind kind, int piece) {
  const bool embeds = kind == SegmentKind::embedding, head = kind == SegmentKind::head;
  const bool replaces =
      piece == 0 && (slot.microbatch == 0 || persistent_.block(slot.block).grads_staged);
  const Part gradient = stream(stores_.streams.use(slot), kind, piece);

  std::vector<Operand> operands{input(slot, kind, piece)};
  if (!embeds) operands.push_back(reads(Role::weights, stores_.weights.use(slot.block)));
  add_grads(operands, slot, replaces && !embeds);  // an embedding adds to what was cleared
  add_saved(operands, slot, kind);
  const Scratch scratch{
      add_workspace(operands, slot, context_.segments.at(kind).backward_workspace)};
  operands.push_back(embeds ? reads(Role::gradient, gradient)
                     : head ? writes(Role::gradient, gradient)
                            : updates(Role::gradient, gradient));
  if (head && context_.model.tied_head) {
    operands.push_back(reads(Role::weights, stores_.tied.use(stores_.weights), 1));
    if (context_.model.trains_table())
      operands.push_back(updates(Role::grads, stores_.tied.use(stores_.gradients), 1));
  }
  add_documents(operands, slot, kind);
  add_runs(slot, Operation::backward, std::move(operands), {.segment = kind, .replaces = replaces},
           scratch);
  stores_.activations.release_shard();
}

/// Gradients of norms, and of the stream in a new buffer: the old one's, which is that of the
/// output of the last products unless a norm comes behind them, stays for the second part.
void Passes::run_backward_input(const Slot& slot, SegmentKind kind) {
  const SegmentBytes& bytes = context_.segments.at(kind);
  const bool replaces = slot.microbatch == 0;
  const BufferId gradient = stores_.streams.take(slot);
  const BufferId products =
      build_.add_made(slot, "product_grads", Content::saved, bytes.product_grads);
  const BufferId output = stores_.streams.make(slot, kind, "gradient");
  std::vector<Operand> operands{input(slot, kind, 0),
                                reads(Role::weights, stores_.weights.use(slot.block)),
                                reads(Role::gradient, gradient), writes(Role::output, output),
                                writes(Role::products, products)};
  add_grads(operands, slot, replaces);
  add_saved(operands, slot, kind);
  const Scratch scratch{
      add_workspace(operands, slot, bytes.backward_workspace - bytes.product_grads), products};
  add_documents(operands, slot, kind);
  add_runs(slot, Operation::backward_input, std::move(operands),
           {.segment = kind, .replaces = replaces}, scratch);
  stores_.activations.release_shard();
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
  add_grads(operands, slot, false);
  if (grads.of_output != BufferId::none) operands.push_back(reads(Role::gradient, grads.of_output));
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, kind);
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (saved[i] != BufferId::none && bytes.saved[i].for_weights)
      operands.push_back(reads(Role::saved, saved[i], int(i)));
  add_workspace(operands, slot, bytes.weights_workspace);
  build_.add(slot, Operation::backward_weights, std::move(operands),
             {.segment = kind, .replaces = slot.microbatch == 0});
  stores_.activations.release_shard();
}

// --- runs ---------------------------------------------------------------------------------------

/// Brings a later input together during a segment's longest run: a channel works in order, so an
/// exchange before that run would wait for it.
void Passes::bring_beside(const std::vector<model::Run>& runs, std::function<void()> bring) {
  if (runs.size() == 1) return bring();
  beside_ = std::move(bring);
}

/// Adds a task for each run of a pass over a segment, with the exchanges between them. A later run
/// finds what an earlier one made; a forward's last one makes the output.
void Passes::add_runs(const Slot& slot, Operation operation, std::vector<Operand> operands,
                      const TaskDetails& details, const Scratch& scratch) {
  const SegmentBytes& segment = context_.segments.at(details.segment);
  const bool forward = operation == Operation::forward || operation == Operation::recompute;
  const auto& runs = forward ? segment.forward_runs : segment.backward_runs;
  const auto& exchanges = forward ? segment.forward_exchanges : segment.backward_exchanges;
  const auto longest =
      std::ranges::max_element(runs, {}, [](const model::Run& run) { return run.end - run.first; });
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (beside_ && runs.begin() + std::ptrdiff_t(run) == longest) std::exchange(beside_, {})();
    const bool last = run + 1 == runs.size();
    std::vector<Operand> own = operands;
    if (forward && !last)
      std::erase_if(own, [](const Operand& o) { return o.role == Role::output; });
    if (forward && last && segment.cuts_output)
      *std::ranges::find(own, Role::input, &Operand::role) =
          reads(Role::input, stores_.activations.shard(slot, details.segment));
    TaskDetails of_run = details;
    of_run.run = int(run);
    if (runs[run].first < runs[run].end || last)
      build_.add(slot, operation, std::move(own), of_run);
    for (Operand& operand : operands) operand.reads |= operand.writes;
    if (!last) exchange(slot, exchanges[run], details.segment, scratch);
  }
}

void Passes::exchange(const Slot& slot, const SegmentExchange& exchange, SegmentKind kind,
                      const Scratch& scratch) {
  const std::vector<BufferId>& saved = stores_.activations.saved(slot, kind);
  const SegmentBytes& segment = context_.segments.at(kind);
  const auto part = [&](const TensorPlace& place) {
    if (place.saved >= 0 && saved[place.saved] != BufferId::none) return Part(saved[place.saved]);
    if (place.among_products && scratch.products != BufferId::none)
      return Part(scratch.products, place.first_byte, place.bytes);
    const std::int64_t elsewhere = scratch.products == BufferId::none ? 0 : segment.product_grads;
    return Part(scratch.workspace, place.first_byte - elsewhere, place.bytes);
  };
  if (exchange.again && exchange.whole.saved >= 0 && saved[exchange.whole.saved] != BufferId::none)
    return;
  std::vector<Operand> operands{updates(Role::destination, part(exchange.whole))};
  if (exchange.part)
    operands = {updates(Role::source, part(exchange.whole)),
                writes(Role::destination, part(*exchange.part))};
  build_.add(slot, exchange.operation, std::move(operands),
             {.segment = kind, .group = exchange.axes});
}

// --- operands -----------------------------------------------------------------------------------

std::int64_t Passes::tokens_of(int piece) const {
  const std::int64_t all = context_.batch_bytes / model::token_bytes;
  return std::min(piece_tokens_, all - piece * piece_tokens_);
}

/// The part of a microbatch's stream that a segment works on in one task: for the head a piece.
Part Passes::stream(BufferId buffer, SegmentKind kind, int piece) const {
  const std::int64_t bytes = context_.segments.at(kind).stream_bytes;
  if (kind != SegmentKind::head) return {buffer, 0, bytes};
  const std::int64_t token_bytes = bytes / (context_.batch_bytes / model::token_bytes);
  return {buffer, piece * piece_tokens_ * token_bytes, tokens_of(piece) * token_bytes};
}

/// The same of its tokens, in a buffer of all microbatches'.
Part Passes::tokens(BufferId buffer, const Slot& slot, SegmentKind kind, int piece) const {
  const std::int64_t first = slot.microbatch * context_.batch_bytes;
  if (kind != SegmentKind::head) return {buffer, first, context_.batch_bytes};
  return {buffer, first + piece * piece_tokens_ * model::token_bytes,
          tokens_of(piece) * model::token_bytes};
}

Operand Passes::input(const Slot& slot, SegmentKind kind, int piece) {
  const BufferId buffer = stores_.activations.use(slot, kind);
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
