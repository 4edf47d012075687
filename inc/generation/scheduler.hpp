/// @file Decides which tokens of which sequences are computed in each pass.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "engine/generator.hpp"
#include "generation/sampling.hpp"

namespace brume::generation {

class KeyBlocks;

/// Sequences that are computed together. New ones begin as soon as there is room (continuous
/// batching); a prompt is computed in pieces, together with the next tokens of others, so that no
/// pass is longer than the longest one. Sequences take blocks of the key cache as they grow. When
/// none is left, the newest sequence gives its blocks back and is computed again later, in which no
/// token is lost. Keys of tokens with which a sequence before it began too, in whole blocks, are
/// not computed again while the cache has them.
///
/// If prompts have a cache of their own, phases of prompts and of next tokens take turns. A phase
/// of prompts fills that cache; at its end all keys go to the other one. Another one follows as
/// long as more sequences have room. Prompts of a phase share keys.
///
/// Deterministic: ranks that are told the same do the same.
class Scheduler {
 public:
  /// @param sizes               the generator's
  /// @param blocks_per_sequence Config::blocks_per_sequence()
  /// @param prompt_blocks       of a cache for prompts; 0: one cache and no phases
  /// @throws Error(input) when the longest sequence does not fit in a cache
  Scheduler(const model::Generation& sizes, int blocks_per_sequence, int prompt_blocks = 0);
  ~Scheduler();

  /// @param id      the caller's number for the sequence, any but one that is open
  /// @param prompt  at least one token
  void add(std::int64_t id, std::vector<std::int32_t> prompt);

  /// The next pass; without tokens when no sequence is open, or at the end of a phase of prompts.
  /// Its tables are valid until the next call.
  struct Pass {
    engine::GeneratorPass tokens = {};
    std::vector<std::int64_t> wanted = {};  ///< ids of the sequences that get logits, in order
    /// Whether it belongs to a phase of prompts, at whose end wanted sequences continue.
    bool prompts = false;
    /// The blocks of the other cache for the keys of the first blocks of the prompts', at that end.
    std::vector<std::int32_t> filled = {};
  };
  Pass next();

  /// Whether a phase of prompts is worth a change: half of the sequences' numbers and half of the
  /// blocks are free.
  bool wants_prompts() const;
  /// Lets the next pass begin one; otherwise one begins when nothing else is left to do.
  void begin_prompts() { in_prompts_ = !waiting_.empty(); }
  /// Whether a phase of prompts has not ended, or another one follows.
  bool in_prompts() const { return in_prompts_; }

  /// Each wanted sequence continues with a token, or ends.
  void append(std::int64_t id, std::int32_t token);
  void end(std::int64_t id);

  History history(std::int64_t id) const;
  int open() const { return int(waiting_.size() + running_.size()); }
  /// Sequences that could begin if they were there.
  int room() const { return std::max(0, 2 * sizes_.sequences - open()); }
  std::int64_t preemptions() const { return preemptions_; }
  std::int64_t shared_tokens() const { return shared_tokens_; }  ///< not computed: keys were there

 private:
  struct Sequence {
    std::int64_t id;
    std::vector<std::int32_t> tokens;
    std::int64_t prompt;   ///< so many first tokens were given
    int computed = 0;      ///< so many have keys in the cache
    int slot = -1;         ///< number among the generator's sequences; below 0: it waits
    bool answers = false;  ///< its prompt is computed, if phases are apart
    std::vector<std::int32_t> blocks = {};
    std::int64_t prefix = 0;  ///< KeyBlocks::Prefix of its whole blocks

    int left() const { return int(tokens.size()) - computed; }
  };
  template <class Running>
  static auto find(Running& running, std::int64_t id);
  void put_block(Sequence& sequence, int block);
  std::span<const std::int32_t> tokens_of_block(const Sequence& sequence, int number) const;
  bool reserve(Sequence& sequence, int tokens);
  void release(Sequence& sequence);
  void preempt_newest();
  bool begin_next();
  void add_prompts(Pass& pass, std::vector<engine::GeneratorPass::Token>& others);
  void add_tokens(Pass& pass, std::vector<engine::GeneratorPass::Token>& others);
  Pass made(Pass pass, const std::vector<engine::GeneratorPass::Token>& others) const;
  void add_piece(Sequence& sequence, int count, Pass& pass,
                 std::vector<engine::GeneratorPass::Token>& others);

  model::Generation sizes_;
  int blocks_per_sequence_;
  std::list<Sequence> waiting_;  ///< first to begin first
  std::list<Sequence> running_;  ///< oldest first
  std::unique_ptr<KeyBlocks> blocks_;
  std::vector<int> free_slots_;
  std::vector<std::int32_t> tables_;
  std::size_t prompt_blocks_;
  bool in_prompts_ = false;
  std::vector<std::int32_t> filled_;         ///< Pass::filled of this phase of prompts
  std::vector<std::int32_t> prompt_block_;   ///< the place of each block in `filled_`
  std::vector<std::int32_t> prompt_tables_;  ///< `tables_` of the prompts' cache
  std::int64_t preemptions_ = 0, shared_tokens_ = 0;
};

}  // namespace brume::generation
