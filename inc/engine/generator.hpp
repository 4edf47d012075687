/// @file Computes logits of sequences that grow, pass by pass.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "engine/settings.hpp"
#include "engine/slab.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::engine {

/// Tokens of a pass, in any order: all earlier tokens of their sequences must have been in an
/// earlier pass, or be in this one.
struct GeneratorPass {
  struct Token {
    std::int32_t token;
    std::int32_t sequence;  ///< number below Generation::sequences
    std::int32_t place;     ///< position in its sequence, from 0
  };
  std::vector<Token> tokens = {};
  int wanted = 0;  ///< logits are made of so many first tokens, at most one a sequence
  /// [Generation::sequences, Config::blocks_per_sequence()] blocks of the key cache that each
  /// sequence has, in the order of its tokens
  std::span<const std::int32_t> tables = {};
};

/// Plans that generation can run: the ranks that hold a model together, and copies of them.
///
/// @return  the plan with what only training needs left out
/// @throws Error(input) for stages whose data-parallel degrees differ, or that share devices
plan::Plan generating(plan::Plan plan);

/// Lengths that passes are padded to [tokens]: powers of two of the least that tensor-parallel
/// ranks cut evenly, up to the first one that holds `longest`.
std::vector<int> pass_lengths(const plan::Plan& plan, int longest);

/// Memory that a rank needs. @param model  Config::generates()
schedule::Arenas generator_bytes(const plan::Plan& plan, const model::Config& model, int rank);

/// The weights and key caches of one rank, and the passes over them. Ranks of one copy of the model
/// (all of a place along the data axes) call it together; copies do not wait for each other.
class Generator {
 public:
  /// Collective over `world`, which must live as long as the generator.
  ///
  /// @param plan   that `generating` returned
  /// @param model  Config::generates(); Generation::tokens is the longest pass
  /// @param lent   generator_bytes() of memory to use in place of the generator's own, all zero;
  ///               null: none
  /// @throws Error(resource) when memory cannot be had
  Generator(const plan::Plan& plan, const model::Config& model, const Settings& settings,
            comm::Communicator& world, const LentMemory* lent = nullptr);
  ~Generator();

  std::vector<Slab> slabs();  ///< the weights, to be filled before the first pass

  /// This rank's copy of the model: all its ranks, in order.
  comm::Communicator& copy();
  int copy_index() const;  ///< number of this rank's copy
  int sampler() const;     ///< the rank of copy() that gets logits

  /// Gives the keys in the first blocks of the cache to the same ranks' generator of another plan,
  /// in these blocks there. Collective over copy(), whose order of ranks both must share.
  void give_keys(Generator& to, std::span<const std::int32_t> blocks);

  /// Runs a pass. Collective over copy().
  /// @return  on the rank `sampler`, logits [wanted, V], capped where the model does that
  std::span<const float> run(const GeneratorPass& pass);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::engine
