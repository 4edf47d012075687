/// @file How one stage may lie on its devices: what a search tries, and so what a profile measures.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "model/model.hpp"

namespace brume::plan {

/// Whether a list of the search allows a value; an empty list allows all.
template <class T>
bool allows(const std::vector<T>& list, T value) {
  return list.empty() || std::ranges::find(list, value) != list.end();
}

/// Whether a search tries ranks that share sequences: only for long ones, unless it lists them.
bool allows_cp(const model::Config& model, const deck::SearchKeys& search, int cp);

/// A stage's devices and how it is split over them.
struct StageShape {
  int nodes = 1;  ///< mesh: within a node, or whole nodes
  int devices_per_node = 1;
  int dp = 1;
  int cp = 1;
  int tp = 1;
  int ep = 1;
  int microbatch = 1;  ///< sequences per microbatch and data-parallel rank
  int gather_keys = 0;
  int dispatch_tokens = 0;
  int mlp_tiles = 1;

  int devices() const { return nodes * devices_per_node; }
  bool operator==(const StageShape&) const = default;
};

/// All shapes that a search may give a stage on nodes of one group, by rising tp, cp, dp,
/// microbatch.
///
/// ep is 1, or for a model with experts tp or a multiple of it. cp is 1 where sequences are short,
/// unless the search lists it. tp divides heads, FFN or experts, tokens, quantized rows between
/// their blocks and the devices of a node that the stage uses, or is a multiple of these where the
/// search lists it; dp times the microbatch divides the batch. An empty list of the search allows
/// all values within a node; of microbatches all up to 32.
std::vector<StageShape> stage_shapes(const model::Config& model, int global_batch,
                                     const hardware::Cluster& cluster, int group,
                                     const deck::SearchKeys& search);

/// Says why tp ranks, or ep ranks with whole experts, cannot have parts of a model's tensors: "tp =
/// 2 must divide ..."; empty if they can.
std::string tensor_fault(const model::Config& model, int tp, int ep = 1);

/// Says why ranks of a stage cannot share sequences: "cp = 2 must divide ..."; empty where they
/// can.
std::string context_fault(const model::Config& model, const model::Split& split);

/// Says why kernels of GPUs cannot attend to sequences of which a rank has all queries, or those of
/// its tokens if ranks gather keys; empty if they can.
std::string device_fault(const model::Config& model, const model::Split& split);

/// The same of ranks that repeat no key head and have two parts of a sequence each, as in
/// Megatron-LM.
std::string paired_context_fault(const model::Config& model, int cp, int tp);

/// Says why ranks of a stage cannot send tokens to the ranks of their experts; empty where they
/// can.
std::string dispatch_fault(const model::Split& split);

/// Says why a rank cannot work on a dense MLP in so many tiles of tokens: "mlp_tiles must be ...";
/// empty if it can.
std::string tile_fault(const model::Config& model, const model::Split& split);

/// Whether a pipeline of `num_stages` on this cluster may have a stage of `devices`: every other
/// stage needs one device at least, or exactly as many where the search asks for equal stages.
bool may_hold(int num_stages, int devices, const hardware::Cluster& cluster,
              const deck::SearchKeys& search);

}  // namespace brume::plan
