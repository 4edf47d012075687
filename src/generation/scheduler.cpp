#include "generation/scheduler.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace brume::generation {

Scheduler::Scheduler(const model::Generation& sizes, int blocks_per_sequence)
    : sizes_(sizes),
      blocks_per_sequence_(blocks_per_sequence),
      tables_(std::size_t(sizes.sequences) * std::size_t(blocks_per_sequence)) {
  require(sizes.blocks >= blocks_per_sequence, Failure::input,
          "a key cache of {} has no room for one sequence of {} tokens",
          counted(sizes.blocks, "block"), blocks_per_sequence * sizes.block_tokens);
  for (int block = sizes.blocks; block-- > 0;) free_blocks_.push_back(block);
  for (int slot = sizes.sequences; slot-- > 0;) free_slots_.push_back(slot);
}

void Scheduler::add(std::int64_t id, std::vector<std::int32_t> prompt) {
  require(!prompt.empty(), Failure::bug, "sequence {} has no token", id);
  const auto given = std::ssize(prompt);
  waiting_.push_back({.id = id, .tokens = std::move(prompt), .prompt = given});
}

template <class Running>
auto Scheduler::find(Running& running, std::int64_t id) {
  const auto found = std::ranges::find(running, id, &Sequence::id);
  require(found != running.end(), Failure::bug, "sequence {} does not run", id);
  return found;
}

/// Takes the blocks that a sequence needs for so many first tokens. @return false if too few are
/// left, of which it takes none
bool Scheduler::reserve(Sequence& sequence, int tokens) {
  const auto needed = std::size_t(ceil_div(tokens, sizes_.block_tokens));
  if (needed > sequence.blocks.size() + free_blocks_.size()) return false;
  while (sequence.blocks.size() < needed) {
    const auto place = std::size_t(sequence.slot) * std::size_t(blocks_per_sequence_);
    tables_[place + sequence.blocks.size()] = free_blocks_.back();
    sequence.blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  return true;
}

void Scheduler::release(Sequence& sequence) {
  free_blocks_.insert(free_blocks_.end(), sequence.blocks.rbegin(), sequence.blocks.rend());
  free_slots_.push_back(sequence.slot);
  sequence.blocks.clear();
  sequence.slot = -1;
  sequence.computed = 0;
}

void Scheduler::preempt_newest() {
  release(running_.back());
  waiting_.splice(waiting_.begin(), running_, std::prev(running_.end()));
  ++preemptions_;
}

/// Begins the next waiting sequence if all of its tokens, and one more, have room.
bool Scheduler::begin_next() {
  if (waiting_.empty() || free_slots_.empty()) return false;
  Sequence& sequence = waiting_.front();
  const auto tokens = int(sequence.tokens.size()) + 1;
  if (std::size_t(ceil_div(tokens, sizes_.block_tokens)) > free_blocks_.size() && !running_.empty())
    return false;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  running_.splice(running_.end(), waiting_, waiting_.begin());
  return true;
}

/// Adds the next `count` tokens of a sequence to a pass: one that gets logits comes first.
void Scheduler::add_piece(Sequence& sequence, int count, Pass& pass,
                          std::vector<engine::GeneratorPass::Token>& others) {
  const bool wanted = count == sequence.left();
  for (int i = 0; i < count; ++i) {
    const int place = sequence.computed + i;
    auto& tokens = wanted && i + 1 == count ? pass.tokens.tokens : others;
    tokens.push_back({sequence.tokens[std::size_t(place)], sequence.slot, place});
  }
  sequence.computed += count;
  if (wanted) pass.wanted.push_back(sequence.id);
}

Scheduler::Pass Scheduler::next() {
  Pass pass;
  std::vector<engine::GeneratorPass::Token> others;
  int left = sizes_.tokens;
  const auto take = [&](std::list<Sequence>::iterator at, bool decodes) {
    if (left == 0 || at->left() == 0 || (at->left() == 1) != decodes) return;
    const int count = std::min(at->left(), left);
    add_piece(*at, count, pass, others);
    left -= count;
  };
  // Each sequence gets room for its tokens, the oldest first, at the cost of the newest.
  for (auto at = running_.begin(); at != running_.end();) {
    const int end = at->computed + std::min(at->left(), left);
    const bool newest = std::next(at) == running_.end();
    if (reserve(*at, end)) {
      ++at;
    } else {
      require(!newest || running_.size() > 1, Failure::bug, "a sequence alone has no room");
      preempt_newest();
      if (newest) break;
    }
  }
  // Next tokens first, so that prompts of others keep nobody waiting.
  for (const bool decodes : {true, false})
    for (auto at = running_.begin(); at != running_.end(); ++at) take(at, decodes);
  while (left > 0 && begin_next()) {
    const auto newest = std::prev(running_.end());
    if (!reserve(*newest, std::min(newest->left(), left))) {
      preempt_newest();
      break;
    }
    take(newest, newest->left() == 1);
  }
  pass.tokens.wanted = int(pass.wanted.size());
  pass.tokens.tokens.insert(pass.tokens.tokens.end(), others.begin(), others.end());
  pass.tokens.tables = tables_;
  return pass;
}

void Scheduler::append(std::int64_t id, std::int32_t token) {
  find(running_, id)->tokens.push_back(token);
}

void Scheduler::end(std::int64_t id) {
  const auto at = find(running_, id);
  release(*at);
  running_.erase(at);
}

History Scheduler::history(std::int64_t id) const {
  const auto at = find(running_, id);
  return {at->tokens, at->prompt};
}

}  // namespace brume::generation
