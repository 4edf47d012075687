#include "generation/scheduler.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "key_blocks.hpp"

namespace brume::generation {

Scheduler::Scheduler(const model::Generation& sizes, int blocks_per_sequence, int prompt_blocks)
    : sizes_(sizes),
      blocks_per_sequence_(blocks_per_sequence),
      blocks_(std::make_unique<KeyBlocks>(sizes.blocks)),
      tables_(std::size_t(sizes.sequences) * std::size_t(blocks_per_sequence)),
      prompt_blocks_(std::size_t(prompt_blocks)),
      prompt_block_(std::size_t(sizes.blocks)),
      prompt_tables_(tables_.size()) {
  for (const int blocks : {sizes.blocks, prompt_blocks > 0 ? prompt_blocks : sizes.blocks})
    require(blocks >= blocks_per_sequence, Failure::input,
            "a key cache of {} has no room for one sequence of {} tokens", counted(blocks, "block"),
            blocks_per_sequence * sizes.block_tokens);
  for (int slot = sizes.sequences; slot-- > 0;) free_slots_.push_back(slot);
}

Scheduler::~Scheduler() = default;

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
  const std::int64_t needed = ceil_div(tokens, sizes_.block_tokens);
  if (needed > std::ssize(sequence.blocks) + blocks_->available()) return false;
  while (std::ssize(sequence.blocks) < needed) {
    const int block = blocks_->take();
    if (in_prompts_) {
      prompt_block_[block] = std::int32_t(filled_.size());
      filled_.push_back(block);
    }
    put_block(sequence, block);
  }
  return true;
}

void Scheduler::put_block(Sequence& sequence, int block) {
  const auto place = std::size_t(sequence.slot) * std::size_t(blocks_per_sequence_);
  tables_[place + sequence.blocks.size()] = block;
  if (in_prompts_) prompt_tables_[place + sequence.blocks.size()] = prompt_block_[block];
  sequence.blocks.push_back(block);
}

std::span<const std::int32_t> Scheduler::tokens_of_block(const Sequence& sequence,
                                                         int number) const {
  const auto size = std::size_t(sizes_.block_tokens);
  return std::span(sequence.tokens).subspan(std::size_t(number) * size, size);
}

void Scheduler::release(Sequence& sequence) {
  // The last blocks go first, because the others are of use without them.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block)
    blocks_->release(*block);
  free_slots_.push_back(sequence.slot);
  sequence.blocks.clear();
  sequence.slot = -1;
  sequence.computed = 0;
  sequence.answers = false;
  sequence.prefix = KeyBlocks::nothing;
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
  // The last token is always computed, because it gives the logits.
  const auto most_shared = (std::ssize(sequence.tokens) - 1) / sizes_.block_tokens;
  std::vector<KeyBlocks::Known> shared;
  int unused = 0;
  while (std::ssize(shared) < most_shared) {
    const KeyBlocks::Known next =
        blocks_->find(shared.empty() ? KeyBlocks::nothing : shared.back().prefix,
                      tokens_of_block(sequence, int(shared.size())));
    if (next.block < 0) break;
    unused += blocks_->is_used(next.block) ? 0 : 1;
    shared.push_back(next);
  }
  const std::int64_t needed =
      ceil_div(std::ssize(sequence.tokens) + 1, sizes_.block_tokens) - std::ssize(shared);
  if (needed > blocks_->available() - unused && !running_.empty()) return false;
  if (in_prompts_ && filled_.size() + std::size_t(needed) > prompt_blocks_ && !filled_.empty())
    return false;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  for (const KeyBlocks::Known& one : shared) {
    blocks_->share(one.block);
    put_block(sequence, one.block);
    sequence.prefix = one.prefix;
  }
  sequence.computed = int(shared.size()) * sizes_.block_tokens;
  shared_tokens_ += sequence.computed;
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
    tokens.push_back({sequence.tokens[place], sequence.slot, place});
  }
  const int first = sequence.computed / sizes_.block_tokens;
  sequence.computed += count;
  if (!sequence.answers)  // of phases apart, only prompts have their keys in the prompts' cache
    for (int block = first; block < sequence.computed / sizes_.block_tokens; ++block)
      sequence.prefix =
          blocks_->fill(sequence.blocks[block], sequence.prefix, tokens_of_block(sequence, block));
  if (wanted) pass.wanted.push_back(sequence.id);
}

bool Scheduler::wants_prompts() const {
  return prompt_blocks_ > 0 && !waiting_.empty() &&
         2 * std::ssize(free_slots_) >= sizes_.sequences &&
         2 * blocks_->available() >= sizes_.blocks;
}

/// Pieces of prompts, whose sequences get room for all of their tokens as they begin.
void Scheduler::add_prompts(Pass& pass, std::vector<engine::GeneratorPass::Token>& others) {
  int left = sizes_.tokens;
  const auto take = [&](Sequence& sequence) {
    if (left == 0 || sequence.answers) return;
    const int count = std::min(sequence.left(), left);
    add_piece(sequence, count, pass, others);
    left -= count;
    sequence.answers = sequence.left() == 0;
  };
  for (Sequence& sequence : running_) take(sequence);
  while (left > 0 && begin_next()) {
    Sequence& newest = running_.back();
    require(reserve(newest, int(std::ssize(newest.tokens))), Failure::bug,
            "a prompt has no room for its keys");
    take(newest);
  }
}

/// The next tokens of running sequences, and where phases are together pieces of prompts.
void Scheduler::add_tokens(Pass& pass, std::vector<engine::GeneratorPass::Token>& others) {
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
  if (prompt_blocks_ > 0) return;
  while (left > 0 && begin_next()) {
    const auto newest = std::prev(running_.end());
    if (!reserve(*newest, newest->computed + std::min(newest->left(), left))) {
      preempt_newest();
      break;
    }
    take(newest, newest->left() == 1);
  }
}

Scheduler::Pass Scheduler::made(Pass pass,
                                const std::vector<engine::GeneratorPass::Token>& others) const {
  pass.tokens.wanted = int(pass.wanted.size());
  pass.tokens.tokens.insert(pass.tokens.tokens.end(), others.begin(), others.end());
  pass.tokens.tables = pass.prompts ? prompt_tables_ : tables_;
  return pass;
}

Scheduler::Pass Scheduler::next() {
  Pass pass;
  std::vector<engine::GeneratorPass::Token> others;
  if (prompt_blocks_ > 0 && (in_prompts_ || running_.empty())) {
    pass.prompts = in_prompts_ = true;
    add_prompts(pass, others);
    pass = made(std::move(pass), others);
    if (!pass.tokens.tokens.empty()) return pass;
    if (!filled_.empty()) {
      pass.filled = std::exchange(filled_, {});
      blocks_->forget();  // the prompts' cache gets other keys
      in_prompts_ = !waiting_.empty();
      return pass;
    }
    pass.prompts = in_prompts_ = false;  // nothing has room
  }
  add_tokens(pass, others);
  return made(std::move(pass), others);
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
