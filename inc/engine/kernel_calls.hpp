/// @file Kernel calls of an operator, by its kind: the one table that training and profiler read.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/cached_attention.hpp"
#include "kernels/experts.hpp"
#include "kernels/heads.hpp"
#include "kernels/latent.hpp"
#include "kernels/matmul.hpp"
#include "kernels/quantized.hpp"
#include "kernels/token_rows.hpp"
#include "model/model.hpp"

namespace brume::engine {

/// An operator with its operands resolved; a kind reads those that its kernels have. Empty views
/// are absent or not wanted.
template <class Storage>
struct KernelCall {
  using Matrix = kernels::MatrixOf<Storage>;
  using ConstMatrix = kernels::ConstMatrixOf<Storage>;
  using ConstVector = kernels::ConstVectorOf<Storage>;

  model::OperatorKind kind = {};
  Matrix read = {}, written = {};        ///< the same one: in place
  kernels::ConstTokens tokens = {};      ///< an embedding's tokens, or the targets of cross-entropy
  ConstMatrix weight = {};               ///< or the table of tokens
  kernels::QuantizedMatrix blocks = {};  ///< replaces `weight`
  ConstMatrix positions = {};
  ConstVector gain = {}, bias = {};
  ConstMatrix residual = {};  ///< added to `written`
  ConstVector sinks = {};
  /// Keys and values that attention reads, if `read` has not those of all tokens; parts that
  /// expand_keys widens, if `read` has turned keys.
  ConstMatrix keys = {};
  /// Biases of experts, for their columns of `written` from `first_biased` on.
  ConstMatrix experts_bias = {};
  int first_biased = 0;
  kernels::Vector mean = {}, rstd = {}, lse = {};
  kernels::Matrix logits = {};  ///< a router's, or a head's in generation
  kernels::Vector gates = {};
  kernels::Routes routes = {};
  kernels::TokenRows token_rows = {};
  kernels::Vector choices = {};    ///< choices of all ranks; none: they were read
  kernels::Vector of_tokens = {};  ///< gates in the order of tokens
  // Backward:
  Matrix d_read = {}, d_written = {};                     ///< gradients
  ConstMatrix d_residual = {};                            ///< added to `d_read`
  kernels::Write write_d_read = kernels::Write::replace;  ///< a product's way to write `d_read`
  kernels::Write write =
      kernels::Write::replace;  ///< the way to write gradients of parameters and the loss
  kernels::Matrix d_weight = {}, d_positions = {};
  kernels::Vector d_gain = {}, d_bias = {};
  kernels::Matrix d_logits = {};
  kernels::Vector d_gates = {};
  kernels::Write write_d_gates = kernels::Write::replace;  ///< an activation's way to write them
  kernels::Vector d_sinks = {};
  Matrix d_keys = {};
  kernels::Vector d_choices = {};
  kernels::Matrix d_experts_bias = {};
  // Attributes:
  float eps = 0.0f, gain_base = 0.0f;
  float scale = 1.0f;  ///< factor of an embedding, or of the loss
  float cap = 0.0f;    ///< bound of logits
  kernels::AttentionShape attention = {};
  kernels::KeyCache<Storage> cache = {};
  kernels::HeadBlocks heads = {};
  kernels::LatentShape latent = {};
  std::int64_t first_token = 0, num_tokens = 0;  ///< among those of all ranks
  kernels::ConstMatrix angles = {};
  int head_dim = 0;
  kernels::Documents documents = {};
  kernels::VocabularyPart vocabulary = {};
  kernels::Router router = {};
  kernels::RouterLoss router_loss = {};
  double *loss = nullptr, *misses = nullptr;

  void forward() const;
  void again() const;  ///< makes `written` again, from kept statistics
  void backward_input() const;
  void backward_weights() const;
  // A product with the GELU behind it, and with the one before it:
  void forward_with_gelu(Matrix activated) const;
  void backward_input_through_gelu(ConstMatrix gelu_read, Matrix d_gelu_read) const;

 private:
  /// The columns that experts' biases are added to.
  template <class Bias>
  Matrix biased(const Matrix& all, const Bias& bias) const {
    return kernels::columns<Storage>(all, first_biased, bias.extent_int(1));
  }
  kernels::Factors factors() const {
    return kind == model::OperatorKind::matmul_fp8 ? kernels::Factors::fp8
                                                   : kernels::Factors::stored;
  }
};

/// The model's router, without the correction of a layer.
kernels::Router router(const model::Config& model);

}  // namespace brume::engine
