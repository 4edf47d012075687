/// @file Blocks of the key cache, and the tokens whose keys they hold.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace brume::generation {

/// Hands out blocks. Sequences that begin with the same tokens share the blocks of these; a block
/// that nobody uses any more keeps its keys until it is needed for others, the one unused for the
/// longest time first.
class KeyBlocks {
 public:
  explicit KeyBlocks(int blocks);

  /// A number for all tokens up to the end of a block; `nothing` is before the first block.
  using Prefix = std::int64_t;
  static constexpr Prefix nothing = 0;

  /// A block whose keys are known.
  struct Known {
    int block = -1;  ///< below 0: none
    Prefix prefix = nothing;
  };
  /// The block of these tokens behind a prefix. Tokens are compared, not hashes of them.
  Known find(Prefix before, std::span<const std::int32_t> tokens) const;

  int available() const { return int(free_.size() + unused_.size()); }
  bool is_used(int block) const { return blocks_[block].users > 0; }
  int take();             ///< a block without keys; one must be available
  void share(int block);  ///< one that `find` found gets another user
  void release(int block);

  /// Says which tokens behind a prefix a block holds the keys of, from now on.
  /// @return the number of the prefix with them
  Prefix fill(int block, Prefix before, std::span<const std::int32_t> tokens);
  /// From now on nobody finds the keys that blocks hold.
  void forget();

 private:
  using Key = std::pair<Prefix, std::vector<std::int32_t>>;
  using Table = std::map<Key, Known>;
  struct Block {
    int users = 0;
    Table::iterator known;                 ///< the end of the table: nobody can find it
    std::list<int>::iterator unused = {};  ///< place among these, where it has no users
  };

  Table table_;
  std::vector<Block> blocks_;
  std::vector<int> free_;  ///< without keys
  std::list<int> unused_;  ///< with keys but without users, the first to go first
  Prefix last_ = nothing;
};

}  // namespace brume::generation
