/// @file What Mist counts for one layer: its time from measured operators, its bytes.
#include "mist/counting.hpp"

#include <algorithm>

#include "units.hpp"

namespace brume::mist {
namespace {

constexpr double norm_bytes = 8.0;           ///< saved by one norm, per token
constexpr double flash_constant_bytes = 16;  ///< state of the random numbers
constexpr double softmax_constant_bytes = 4;

/// What the byte counts are made of.
struct TensorBytes {
  double stream;  ///< one activation of the residual stream
  double sharded_stream;
  double ffn;  ///< one activation of the MLP's middle
  double norm;
  double scores;     ///< attention probabilities; 0 with flash
  double attention;  ///< saved by attention itself: probabilities or log-sum-exp, and a constant
};

TensorBytes tensor_bytes(const Model& model, double microbatch, double tp) {
  const double tokens = microbatch * model.sequence;
  TensorBytes sizes{};
  sizes.stream = fp16_bytes * tokens * model.hidden;
  sizes.sharded_stream = sizes.stream / tp;
  sizes.ffn = fp16_bytes * tokens * model.ffn / tp;
  sizes.norm = norm_bytes * tokens;
  const double rows = tokens * model.heads / tp;
  sizes.scores = model.flash ? 0.0 : fp16_bytes * rows * model.sequence;
  sizes.attention =
      model.flash ? 4.0 * rows + flash_constant_bytes : sizes.scores + softmax_constant_bytes;
  return sizes;
}

double block_weights(const Model& model, double tp) {
  const double h = model.hidden;
  const double products = model.gated ? 3.0 : 2.0;
  const double norms = (model.gated ? 1.0 : 2.0) * (model.parallel ? 1.0 : 2.0);
  return fp16_bytes * (norms * h + (4.0 * h * h + products * h * model.ffn) / tp);
}

/// Norms, then attention, then MLP; llama saves three tensors of the MLP, gpt two.
LayerBytes serial_block(const TensorBytes& z, bool gated) {
  const double middle = (gated ? 3.0 : 2.0) * z.ffn;
  const double saved_beside = 4.0 * z.sharded_stream + z.attention;
  LayerBytes bytes;
  bytes.saved = 4.0 * z.stream + 2.0 * z.norm + saved_beside + middle;
  bytes.forward_peak = 6.0 * z.stream + 2.0 * z.norm + saved_beside + middle;
  bytes.backward_peak = bytes.forward_peak + z.ffn;
  if (gated) {
    const double at_activation = 5.0 * z.stream + 2.0 * z.norm + saved_beside + 5.0 * z.ffn;
    bytes.backward_peak = std::max(bytes.backward_peak, at_activation);
  }
  return bytes;
}

/// One norm feeds attention and MLP.
LayerBytes parallel_block(const TensorBytes& z) {
  const double saved_beside = 4.0 * z.sharded_stream + 2.0 * z.ffn;
  LayerBytes bytes;
  bytes.saved = 2.0 * z.stream + z.norm + saved_beside + z.attention;
  bytes.forward_peak = 5.0 * z.stream + z.norm + saved_beside + z.attention;
  bytes.backward_peak = std::max(5.0 * z.stream + z.norm + saved_beside,
                                 4.0 * z.stream + z.norm + saved_beside + z.ffn + z.attention);
  return bytes;
}

/// Scores, their softmax and, backward, its gradient beside what else lives then.
void add_softmax_peaks(const TensorBytes& z, bool parallel, LayerBytes& bytes) {
  bytes.forward_peak =
      std::max(bytes.forward_peak,
               2.0 * z.stream + z.norm + 5.0 * z.sharded_stream + z.scores + z.attention);
  const double beside = parallel ? z.stream + 2.0 * z.ffn : 0.0;
  const double at_softmax =
      3.0 * z.stream + z.norm + 3.0 * z.sharded_stream + 2.0 * z.scores + z.attention + beside;
  bytes.backward_peak = std::max(bytes.backward_peak, at_softmax);
}

}  // namespace

LayerTime layer_time(std::span<const Operator> operators, double accumulate_s) {
  LayerTime layer;
  layer.accumulate_s = accumulate_s;
  for (const Operator& op : operators) {
    const bool clipped = op.backward_s > 2.3 * op.forward_s;
    const double forward_s = op.forward_s + op.reduce_forward_s;
    const double backward_s = (clipped ? 2.0 * op.forward_s : op.backward_s) + op.reduce_backward_s;
    if (forward_s < 50e-6 || backward_s < 100e-6) continue;
    layer.forward_s += op.count * forward_s;
    layer.backward_s += op.count * backward_s;
    layer.reduce_forward_s += op.count * op.reduce_forward_s;
    layer.reduce_backward_s += op.count * op.reduce_backward_s;
  }
  return layer;
}

LayerBytes block_bytes(const Model& model, double microbatch, double tp) {
  const TensorBytes sizes = tensor_bytes(model, microbatch, tp);
  LayerBytes bytes = model.parallel ? parallel_block(sizes) : serial_block(sizes, model.gated);
  if (!model.flash) add_softmax_peaks(sizes, model.parallel, bytes);
  bytes.weights = block_weights(model, tp);
  bytes.saved_recomputed = bytes.output = sizes.stream;
  bytes.scores = sizes.scores;
  return bytes;
}

LayerBytes embedding_bytes(const Model& model, double microbatch) {
  LayerBytes bytes;
  bytes.weights = fp16_bytes * model.vocab * model.hidden;
  bytes.saved = 8.0 * microbatch * model.sequence;
  return bytes;
}

LayerBytes head_bytes(const Model& model, double microbatch, double tp) {
  const double tokens = microbatch * model.sequence;
  const double stream = fp16_bytes * tokens * model.hidden;
  const double logits = fp16_bytes * tokens * model.vocab / tp;
  LayerBytes bytes;
  bytes.weights = fp16_bytes * model.vocab * model.hidden / tp;
  bytes.output = fp16_bytes;
  bytes.saved = stream + logits + 11.0 * tokens;
  bytes.forward_peak = std::max(stream + 2.0 * logits + 19.0 * tokens, bytes.saved + bytes.output);
  bytes.backward_peak = std::max(bytes.saved + logits, 2.0 * stream + logits);
  return bytes;
}

}  // namespace brume::mist
