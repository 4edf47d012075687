#include "key_blocks.hpp"

#include "base/error.hpp"

namespace brume::generation {

KeyBlocks::KeyBlocks(int blocks) {
  blocks_.assign(std::size_t(blocks), {.known = table_.end()});
  for (int block = blocks; block-- > 0;) free_.push_back(block);
}

KeyBlocks::Known KeyBlocks::find(Prefix before, std::span<const std::int32_t> tokens) const {
  const auto found = table_.find(Key{before, {tokens.begin(), tokens.end()}});
  return found == table_.end() ? Known{} : found->second;
}

int KeyBlocks::take() {
  require(available() > 0, Failure::bug, "no block of the key cache is left");
  int block = 0;
  if (free_.empty()) {
    block = unused_.front();
    unused_.pop_front();
    Block& taken = blocks_[block];
    table_.erase(taken.known);
    taken.known = table_.end();
  } else {
    block = free_.back();
    free_.pop_back();
  }
  blocks_[block].users = 1;
  return block;
}

void KeyBlocks::share(int block) {
  Block& shared = blocks_[block];
  if (shared.users++ == 0) unused_.erase(shared.unused);
}

void KeyBlocks::release(int block) {
  Block& released = blocks_[block];
  if (--released.users > 0) return;
  if (released.known == table_.end())
    free_.push_back(block);
  else
    released.unused = unused_.insert(unused_.end(), block);
}

KeyBlocks::Prefix KeyBlocks::fill(int block, Prefix before, std::span<const std::int32_t> tokens) {
  const auto [at, is_new] =
      table_.try_emplace(Key{before, {tokens.begin(), tokens.end()}}, Known{block, last_ + 1});
  if (is_new) {
    ++last_;
    blocks_[block].known = at;
  }
  return at->second.prefix;
}

void KeyBlocks::forget() {
  table_.clear();
  for (Block& block : blocks_) block.known = table_.end();
  free_.insert(free_.end(), unused_.begin(), unused_.end());
  unused_.clear();
}

}  // namespace brume::generation
