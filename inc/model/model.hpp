/// @file The transformer as data: blocks, parameters, operators and what they save, as expressions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "symbolic/expr.hpp"

namespace brume::model {

using symbolic::Expr;

enum class Family { gpt };

/// Number format of weights and activations. Gradients are summed, and optimizer state is kept, in
/// fp32 whatever it is.
enum class Precision { fp32, bf16, fp16 };

/// Bytes of an element, by what it belongs to.
inline constexpr int token_bytes = 4;
inline constexpr int grad_bytes = 4;
constexpr int weight_bytes(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }
constexpr int activation_bytes(Precision precision) { return weight_bytes(precision); }
/// Of a parameter: two moments, and below fp32 a master weight.
constexpr int optimizer_bytes(Precision precision) { return precision == Precision::fp32 ? 8 : 12; }

/// Sizes of a model, all per whole model (not per rank).
struct Config {
  Family family = Family::gpt;
  int num_layers = 0;
  int hidden_size = 0;  ///< C
  int num_heads = 0;    ///< H
  int ffn_size = 0;     ///< F
  int seq_len = 0;      ///< T [tokens]
  int vocab_size = 0;   ///< V
  bool tied_head = true;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  Precision precision = Precision::fp32;

  int head_dim() const { return hidden_size / num_heads; }
};

/// @param precision  training.precision of the deck
Config config(const deck::ModelKeys& keys, std::string_view precision);

// --- parameters ---------------------------------------------------------------------------------

enum class Init { zeros, ones, normal };

/// One parameter tensor of the whole model.
struct Parameter {
  std::string name;                 ///< "layers.3.attention.qkv.weight"
  std::vector<std::int64_t> shape;  ///< global
  int split_dim = -1;       ///< dimension that tensor parallelism cuts; -1: every tp rank holds all
  bool tp_partial = false;  ///< each tp rank's gradient is a part of the sum
  bool decays = false;      ///< weight decay applies
  Init init = Init::zeros;
  double std = 0.0;              ///< of a normal initialisation
  std::int64_t first_index = 0;  ///< global index of its first element, for initial values

  std::int64_t elements() const;
};

/// A parameter's piece on one tp rank, and where it lies in the block's flat buffers.
struct Piece {
  int parameter;                     ///< index into Block::parameters
  std::vector<std::int64_t> shape;   ///< local
  std::vector<std::int64_t> offset;  ///< of the piece in the global tensor
  std::int64_t first;                ///< first element in the flat block
  std::int64_t elements;
};

enum class BlockKind { embedding, layer, head };

/// The unit of placement, sharding, prefetch and update: the embedding, one layer, or the head.
struct Block {
  BlockKind kind;
  int layer = -1;    ///< for a layer
  std::string name;  ///< "embedding", "layers.3", "head"
  std::vector<Parameter> parameters;
};

/// All blocks of a model: embedding, layers in order, head. A tied head has no token table of its
/// own.
std::vector<Block> blocks(const Config& config);

/// The flat buffer of a block on one tp rank. Partial gradients come first, so that one small
/// all-reduce covers them; each piece starts at a multiple of 16 elements, the whole is a multiple
/// of `shards` * 16 so that ZeRO can cut it into equal aligned shards.
struct Layout {
  std::vector<Piece> pieces;      ///< in flat order
  std::int64_t partial_elements;  ///< leading elements whose gradients are partial over tp
  std::int64_t elements;          ///< all, padding included

  /// The piece of the parameter whose name ends in `suffix`. @throws Error(bug)
  const Piece& piece(const Block& block, std::string_view suffix) const;
};
Layout layout(const Block& block, int tp, int tp_rank, int shards);

/// Elements of the flat buffer as an expression in variables "tp" and "dp" (shards).
Expr layout_elements(const Block& block);

// --- segments -----------------------------------------------------------------------------------
// A segment maps the residual stream [N, C] to the next one; with tp > 1 each tp rank computes a
// part of the sum and an all-reduce of its output follows. Its backward maps d output to d input
// alike.

enum class SegmentKind { embedding, attention, mlp, head };
const char* name(SegmentKind kind);

/// What an operator is, for the profile: its kind and dims name a row of measured times.
enum class OperatorKind {
  matmul,
  attention,
  layer_norm,
  gelu,
  pointwise,
  embedding,
  cross_entropy,
  adamw
};
const char* name(OperatorKind kind);

/// One operator of a segment. Dims, FLOPs and bytes are expressions in "b" (microbatch) and "tp".
/// Dims by kind: matmul {M, N, K}; attention {batch, T, heads, head_dim}; layer_norm, gelu {N, C};
/// pointwise {elements}; embedding {N, C, V}; cross_entropy {N, V}; adamw {elements}.
struct Operator {
  std::string name;
  OperatorKind kind;
  std::vector<Expr> dims;
  Expr forward_flops;
  Expr backward_flops;
  Expr forward_bytes;  ///< read and written in fp32
  Expr backward_bytes;
};

/// A tensor that a segment's forward keeps for its backward, beside its input.
struct Saved {
  std::string name;
  Expr elements;  ///< on one tp rank, in "b" and "tp"
};

struct Segment {
  SegmentKind kind;
  std::vector<Operator> operators;
  std::vector<Saved> saved;          ///< in the order in which kernels expect them
  Expr forward_workspace_elements;   ///< scratch during forward, beside input, saved, output
  Expr backward_workspace_elements;  ///< scratch during backward, beside input, saved, d
                                     ///< output, d input
};

Segment segment(const Config& config, SegmentKind kind);

/// Segments of a block in forward order: one, or attention and mlp for a layer.
std::vector<SegmentKind> segment_kinds(BlockKind kind);

/// A tensor of a layer that is kept from forward to backward: a segment's input, or one it saved.
struct Kept {
  SegmentKind segment;
  int saved;  ///< index into Segment::saved; -1: the segment's input
  Expr elements;
};

/// What a layer keeps, in the order in which activation offload takes it: with ratio a the longest
/// prefix that holds at most a of all elements moves to the host. A recomputed layer keeps its
/// input.
std::vector<Kept> kept_tensors(const Config& config, bool recomputed);

/// Elements of the residual stream, b T C.
Expr stream_elements(const Config& config);

std::int64_t num_parameters(const Config& config);
/// Model FLOPs of one sequence, forward and backward, recomputation not counted.
double flops_per_sequence(const Config& config);

/// Initial value of a parameter element, by its place in the whole model: the same under every
/// plan. Normal values by Box-Muller over a counter-based generator.
float initial_value(const Parameter& parameter, std::int64_t element, std::uint64_t seed);

}  // namespace brume::model
