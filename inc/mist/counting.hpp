/// @file Mist's own counting of time and memory, to compare our analyzer and tuner with it.
#pragma once

#include <array>
#include <span>
#include <vector>

namespace brume::mist {

/// Time of a transfer: gib / gib_per_s + latency_s.
struct Link {
  double gib_per_s = 1.0;
  double latency_s = 0.0;
};

/// Slowdown of each resource in each set of two or more: first all four, then the triples
/// CNH CND CHD NHD, then the pairs CN CH CD NH ND HD; within a set in the order C N H D
/// (compute, network, host to device, device to host).
using Slowdowns = std::array<double, 28>;

struct Hardware {
  std::array<std::array<Link, 4>, 4> links;  ///< [log2 nodes][log2 ranks per node], 1 to 8
  Link copy_in;
  Link copy_out;
  Slowdowns slowdowns;
  double memory_gib = 0.0;
};

enum class Collective { all_gather, reduce_scatter, all_reduce };

/// Time until all four are done when started together [s].
///
/// While the set Q is unfinished, q in Q runs 1 / sigma_q(Q) of its speed; at most 1e-8 s is
/// absent.
/// @source Mist (EuroSys'25), interference model with 28 factors
double overlapped_s(const Slowdowns& slowdowns, std::array<double, 4> alone_s);

/// w (gib / k (q - 1) / q + beta), q = nodes * ranks, w = 1, 1.1 and 2.1; 0 for q = 1 or no data.
/// @param ranks  of the group on each node; as nodes a power of two
double collective_s(const Hardware& hardware, Collective kind, double gib, int nodes, int ranks);

/// A message to the next stage, which lies on another node or on the same one; no latency.
double send_s(const Hardware& hardware, double gib, bool between_nodes);

double copy_s(const Link& link, double gib);

/// One measured operator of a layer, and the time of its collectives over tp.
struct Operator {
  int count = 1;  ///< how often it stands in the layer
  double forward_s = 0.0;
  double backward_s = 0.0;
  double reduce_forward_s = 0.0;
  double reduce_backward_s = 0.0;
};

/// Times of one layer; `reduce` is the part of them that its collectives over tp take.
struct LayerTime {
  double forward_s = 0.0;
  double backward_s = 0.0;
  double reduce_forward_s = 0.0;
  double reduce_backward_s = 0.0;
  double accumulate_s = 0.0;  ///< adding its gradients to those of earlier microbatches
};

/// Sum over the operators. A backward above 2.3 forward counts as 2 forward; an operator below
/// 50 us forward or 100 us backward, collectives included, does not count at all.
LayerTime layer_time(std::span<const Operator> operators, double accumulate_s);

/// Mist counts three kinds of layers: gpt, llama and falcon.
struct Model {
  bool gated = false;     ///< llama: SwiGLU and RMS norms
  bool parallel = false;  ///< falcon: attention beside MLP, from one norm
  bool flash = false;     ///< fused attention: no matrix of scores
  double hidden = 0;
  double ffn = 0;
  double heads = 0;
  double sequence = 2048;
  double vocab = 50304;
};

/// Bytes of one layer on one rank; `saved`, peaks and `output` belong to one microbatch.
struct LayerBytes {
  double weights = 0;  ///< fp16, and as much again for gradients; six times as much for optimizer
  double saved = 0;
  double saved_recomputed = 0;  ///< when only its input is kept
  double forward_peak = 0;
  double backward_peak = 0;
  double output = 0;
  double scores = 0;  ///< buffer of attention scores, one for all layers
};

LayerBytes block_bytes(const Model& model, double microbatch, double tp);
LayerBytes embedding_bytes(const Model& model, double microbatch);
LayerBytes head_bytes(const Model& model, double microbatch, double tp);

/// How a layer's work and state are spread.
struct Strategy {
  int microbatch = 1;
  int dp = 1;
  int tp = 1;
  bool shard_weights = false;
  bool shard_grads = false;
  bool shard_optimizer = true;
  double offload_weights = 0.0;  ///< ratios held on the host
  double offload_grads = 0.0;
  double offload_optimizer = 0.0;
  double offload_saved = 0.0;

  bool operator==(const Strategy&) const = default;
};

struct Stage {
  int layers = 1;
  int recomputed = 0;
  int nodes = 1;
  int ranks_per_node = 1;
  Strategy strategy;
  LayerTime block;
};

struct Case {
  Model model;
  Hardware hardware;
  int microbatches = 1;
  std::vector<Stage> stages;
  Strategy ends;  ///< strategy of embedding and head
  LayerTime embedding;
  LayerTime head;
};

struct StagePrediction {
  double stable_s = 0.0;  ///< t: a middle microbatch
  double delta_s = 0.0;   ///< d: what the first and the last add
  double peak_forward_mib = 0.0;
  double peak_backward_mib = 0.0;
  double needed_mib = 0.0;  ///< the larger peak with a margin for fragmentation
};

struct Prediction {
  double iteration_s = 0.0;
  std::vector<StagePrediction> stages;
};

/// Memory that stages may use: 0.88 of all.
double usable_mib(const Hardware& hardware);

/// G t + d for one stage, else sum t + (G - 1) max t + max_i (d_i - sum_{j<i} t_j).
/// @throws Error (input) for stages without layers or with more recomputed layers than layers
Prediction predict(const Case& mist);

}  // namespace brume::mist
