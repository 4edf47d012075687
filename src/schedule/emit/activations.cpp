#include "stores.hpp"

namespace brume::schedule {
namespace {

/// Copies of whole buffers.
std::vector<Operand> pairs(const std::vector<BufferId>& from, const std::vector<BufferId>& to) {
  std::vector<Operand> operands;
  for (std::size_t i = 0; i < from.size(); ++i) {
    operands.push_back(reads(Role::source, from[i], int(i)));
    operands.push_back(writes(Role::destination, to[i], int(i)));
  }
  return operands;
}

}  // namespace

Activations::Activations(const Store& store, Streams& streams) : Store(store), streams_(streams) {
  for (int index : context_.stages)
    for (const auto& [kind, layers] : model::layer_counts(context_.model))
      for (const model::Recompute recompute : model::all_recomputes) {
        const plan::Stage& stage = context_.plan.stages[index];
        std::vector<model::Kept> kept =
            model::kept_tensors(context_.model, recompute, kind, context_.stage.split().division());
        const auto count = [&](double ratio) {
          return plan::moved_tensors(kept, ratio, stage.split()).count;
        };
        const int moved = count(stage.act_offload_ratio), to_disk = count(stage.act_disk_ratio);
        kept.erase(kept.begin() + moved, kept.end());
        offload_[{index, kind, recompute}] = {std::move(kept), to_disk};
      }
}

// --- in a slot ----------------------------------------------------------------------------------

void Activations::begin(const Slot& slot, BufferId input) {
  Kept& kept = kept_[key(slot)];
  kept.drained = !context_.offloads(slot.block);
  kept.input[context_.segment_kinds(slot.block).front()] = input;
}

void Activations::put_input(const Slot& slot, SegmentKind kind, BufferId input) {
  kept_.at(key(slot)).input[kind] = input;
}

void Activations::make_saved(const Slot& slot, SegmentKind kind) {
  if (has_saved(slot, kind)) return;
  std::vector<BufferId> saved;
  const SegmentBytes& segment = context_.segments.at(kind);
  const bool all = context_.recompute(slot.block) == model::Recompute::none && !segment.tiled;
  for (const SegmentBytes::Saved& tensor : segment.saved)
    saved.push_back(all || !tensor.cheap
                        ? build_.add_made(slot, tensor.name, Content::saved, tensor.bytes)
                        : BufferId::none);
  kept_.at(key(slot)).saved[kind] = std::move(saved);
}

BufferId Activations::use(const Slot& slot, SegmentKind kind) {
  Kept& kept = kept_.at(key(slot));
  const BufferId input = kept.input.at(kind);
  if (context_.sum_ranks(kind) == 1 || kind != SegmentKind::head) return input;
  if (kept.whole == BufferId::none) kept.whole = streams_.gather(slot, kind, input);
  return kept.whole;
}

std::vector<BufferId>* Activations::normed(const Slot& slot, SegmentKind kind) {
  const auto kept = kept_.find(key(slot));
  if (kept == kept_.end()) return nullptr;
  const auto found = kept->second.normed.find(kind);
  return found == kept->second.normed.end() ? nullptr : &found->second;
}

void Activations::leave(const Slot& slot) {
  if (slot.kind == Slot::Kind::weights ||
      (slot.kind == Slot::Kind::backward && !context_.splits(slot.block))) {
    kept_.erase(key(slot));
  } else if (slot.kind == Slot::Kind::forward && context_.recomputes(slot.block)) {
    Kept& kept = kept_.at(key(slot));
    const SegmentKind first = context_.segment_kinds(slot.block).front();
    kept.input = {{first, kept.input.at(first)}};
    kept.saved.clear();
    kept.normed.clear();
  }
}

// --- to the host and back -----------------------------------------------------------------------

/// @return where the tensors that offload moves for a block are now; may be assigned
std::vector<BufferId*> Activations::moved(const Slot& slot) {
  Kept& kept = kept_.at(key(slot));
  std::vector<BufferId*> tensors;
  for (const model::Kept& tensor : offload(slot.block).moved)
    tensors.push_back(tensor.saved < 0 ? &kept.input.at(tensor.segment)
                                       : &kept.saved.at(tensor.segment)[tensor.saved]);
  return tensors;
}

/// A buffer for the same elsewhere.
BufferId Activations::twin(BufferId of, const char* suffix, Tier tier, const Slot& slot) {
  const Buffer buffer = build_.buffer(of);
  return build_.add(buffer.name + suffix, tier, Content::saved, buffer.bytes, slot.block);
}

bool Activations::prefetch(const Slot& slot) {
  if (slot.kind != Slot::Kind::backward || !context_.offloads(slot.block)) return true;
  const auto found = kept_.find(key(slot));
  if (found == kept_.end() || !found->second.drained) return false;
  Kept& kept = found->second;
  if (kept.on_host.empty()) return true;
  read(slot);
  kept.unwritten = 0;  // what comes back before it is written need not be
  std::vector<BufferId> back;
  for (BufferId* tensor : moved(slot))
    back.push_back(*tensor = twin(kept.on_host[back.size()], ".back", Tier::device, slot));
  build_.add(slot, Operation::copy_in, pairs(kept.on_host, back));
  kept.on_host.clear();
  return true;
}

void Activations::drain(const Slot& slot) {
  if (slot.kind != Slot::Kind::forward || !context_.offloads(slot.block)) return;
  const auto found = kept_.find(key(slot));
  if (found == kept_.end() || found->second.drained) return;
  Kept& kept = found->second;
  kept.drained = true;
  std::vector<BufferId> leaving;
  for (const BufferId* tensor : moved(slot)) {
    leaving.push_back(*tensor);
    kept.on_host.push_back(twin(*tensor, ".host", Tier::host, slot));
  }
  if (leaving.empty()) return;
  kept.unwritten = offload(slot.block).to_disk;
  build_.add(slot, Operation::copy_out, pairs(leaving, kept.on_host));
}

// --- to the disk and back -----------------------------------------------------------------------

void Activations::write(const Slot& slot) {
  if (slot.kind != Slot::Kind::forward) return;
  const auto found = kept_.find(key(slot));
  if (found == kept_.end() || found->second.unwritten == 0) return;
  Kept& kept = found->second;
  const std::vector staged(kept.on_host.begin(), kept.on_host.begin() + kept.unwritten);
  for (BufferId buffer : staged) kept.on_disk.push_back(twin(buffer, ".disk", Tier::disk, slot));
  kept.unwritten = 0;
  build_.add(slot, Operation::write, pairs(staged, kept.on_disk));
}

void Activations::read(const Slot& slot) {
  const auto found = kept_.find(key(slot));
  if (slot.kind != Slot::Kind::backward || found == kept_.end()) return;
  Kept& kept = found->second;
  if (kept.on_disk.empty()) return;
  for (std::size_t i = 0; i < kept.on_disk.size(); ++i)
    kept.on_host[i] = twin(kept.on_disk[i], ".read", Tier::host, slot);
  build_.add(slot, Operation::read, pairs(kept.on_disk, kept.on_host));
  kept.on_disk.clear();
}

}  // namespace brume::schedule
