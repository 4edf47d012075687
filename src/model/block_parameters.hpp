/// @file Parameters of each kind of block, and the order in which they lie.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.hpp"

namespace brume::model {

Block embedding_block(const Config& m);
Block layer_block(const Config& m, int layer);
Block head_block(const Config& m);

/// [V, C], a row a token; tp cuts the vocabulary.
Parameter token_table(Module module, const Config& m);

/// Adapters' parameters of a layer in the order of targets. All layers of a kind have them, because
/// a kind of segments has one list of operators.
std::vector<Parameter> adapter_parameters(const Config& m, int layer, bool has_experts);

/// Features from which queries are made.
std::int64_t query_inputs(const Config& m);
/// Rows of latent attention's kv_up.
std::int64_t still_and_values(const Config& m);

/// Whether a parameter has less optimizer state than most: of whole matrices, or in blocks.
bool has_lean_state(const Parameter& parameter);

/// Indices of a block's parameters in the order of its layout: what is frozen last; before that,
/// what may be partial over tp first, and experts last.
std::vector<std::size_t> layout_order(const Block& block);

}  // namespace brume::model
