/// @file Parameters of a model, and the blocks that they belong to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/quantization.hpp"
#include "model/axes.hpp"
#include "model/config.hpp"
#include "model/layer.hpp"
#include "model/optimizers.hpp"

namespace brume::model {

enum class Init { zeros, ones, normal, uniform };

/// One parameter tensor of the whole model.
struct Parameter {
  ParameterId id;
  std::string name = {};            ///< "layers.3.attention.qkv.weight"
  std::vector<std::int64_t> shape;  ///< global
  int split_dim = -1;   ///< dimension that tensor parallelism cuts, see cut(); -1: every tp rank
                        ///< holds all
  int split_heads = 0;  ///< along split_dim, kept whole; every tp rank holds all that tp does not
                        ///< divide. 0: any tp
  int expert_dim = -1;  ///< dimension that expert parallelism cuts in place of split_dim
  bool tp_partial = false;  ///< each tp rank's gradient is a part of the sum
  bool decays = false;      ///< weight decay applies
  Init init = Init::zeros;
  double std = 0.0;       ///< standard deviation of a random initialisation, of mean 0
  bool frozen = false;    ///< not trained
  bool balanced = false;  ///< ... but steps move it by the experts' loads
  bool in_fp32 = false;   ///< kept in fp32 in every precision; never trained
  Quantization quantization = Quantization::none;  ///< format of its rows
  /// Elements of flat buffers that a quantized block takes, or a value that is not quantized.
  int block_elements = 1;
  /// matrix: an update works on each matrix of the last two dimensions of `shape` alone
  UpdateUnit unit = UpdateUnit::element;
  bool blocked_moments = false;  ///< its moments are quantized: blocks of consecutive elements
  std::int64_t first_index = 0;  ///< global index of its first element, for initial values

  std::int64_t elements() const;
  int block_values() const { return quantization == Quantization::none ? 1 : quantized_block; }
  /// Elements of flat buffers in which `values` of it are stored: whole blocks if it is quantized.
  std::int64_t stored_elements(std::int64_t values) const {
    return values / block_values() * block_elements;
  }
  /// Values that `elements` of flat buffers hold.
  std::int64_t stored_values(std::int64_t elements) const {
    return elements / block_elements * block_values();
  }
  bool splits(int tp) const {
    return split_dim >= 0 && (split_heads == 0 || split_heads % tp == 0);
  }
  int cut_dim(int ep) const { return ep > 1 && expert_dim >= 0 ? expert_dim : split_dim; }
  bool is_partial(int tp) const { return tp_partial || (split_dim >= 0 && !splits(tp)); }
  /// Whether tensor-parallel ranks have parts of the same matrices.
  bool cuts_matrices(int tp, int ep) const {
    return tp > 1 && splits(tp) && cut_dim(ep) + 2 >= int(shape.size());
  }
};

enum class BlockKind { embedding, layer, head };

/// The unit of placement, sharding, prefetch and update: the embedding, one layer, or the head.
struct Block {
  BlockKind kind;
  int layer = -1;    ///< layer index, for a layer
  std::string name;  ///< "embedding", "layers.3", "head"
  std::vector<Parameter> parameters;

  bool trains() const { return !std::ranges::all_of(parameters, &Parameter::frozen); }
  /// Axes along which ranks hold the same weights and compute with different tokens. Gradients are
  /// summed over their group, and ZeRO shards state over it.
  AxisSet reduction_axes() const { return state_axes; }
};

/// All blocks of a model: embedding, layers in order, head. A tied head has no token table of its
/// own.
std::vector<Block> blocks(const Config& config);
/// The blocks of ranks that divide segments so. If they send tokens to the ranks of their experts,
/// each has the whole shared expert, and its own tokens' part of the gradients.
std::vector<Block> blocks(const Config& config, const Division& division);

/// The layer whose gradients and optimizer state have most bytes: closed forms take it for every
/// layer that has a backward.
///
/// @param dense  of the layers without experts where others have them, else of the others
const Block& most_trained_layer(const Config& config, const std::vector<Block>& blocks,
                                bool dense = false);

/// Whether all layers train the same parameters: else closed forms, which take a layer for all, are
/// not exact.
bool trains_layers_alike(const Config& config);
/// ... and all have the same parameters.
inline bool are_layers_alike(const Config& config) {
  return config.first_dense_layers == 0 && trains_layers_alike(config);
}

/// Whether a pattern of a group of parameters fits one's name: * ? [] as a shell has them for
/// files.
bool fits(const std::string& pattern, const std::string& name);

std::int64_t num_parameters(const Config& config);
/// Parameters that a token meets: of the experts only those that it chooses.
std::int64_t num_active_parameters(const Config& config);
/// Values that are kept in quantized blocks.
std::int64_t num_quantized(const Config& config);
/// Trained parameters whose moments are in blocks.
std::int64_t num_blocked_moments(const Config& config);
/// Names of the parameters that no step changes.
std::set<std::string> frozen_names(const Config& config);
/// How many parameters are frozen, and what that saves; empty where all are trained.
std::string frozen_text(const Config& config);

/// Initial value of a parameter element, by its place in the whole model: the same under every
/// plan. Normal values by Box-Muller over a counter-based generator.
float initial_value(const Parameter& parameter, std::int64_t element, std::uint64_t seed);

}  // namespace brume::model
