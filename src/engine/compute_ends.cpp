/// @file The first and the last segment, and the norms that all but the first have.
#include "compute.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rms_norm.hpp"

namespace brume::engine {

using kernels::ConstMatrix;
using kernels::ConstTokens;
using kernels::Matrix;
using kernels::Write;
using schedule::Role;

// --- norms --------------------------------------------------------------------------------------

void Compute::norm_forward(const Operands& o, const std::string& name, Matrix y) const {
  const float* w = o.data(Role::weights);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_forward(x, gain, eps_, y, saved(o, name + ".rstd"));
  kernels::layer_norm_forward(x, gain, vector(w, o.block(), name + ".bias"), eps_, y,
                              saved(o, name + ".mean"), saved(o, name + ".rstd"));
}

void Compute::norm_again(const Operands& o, const std::string& name, Matrix y) const {
  const float* w = o.data(Role::weights);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_apply(x, gain, saved(o, name + ".rstd"), y);
  kernels::layer_norm_apply(x, gain, vector(w, o.block(), name + ".bias"), saved(o, name + ".mean"),
                            saved(o, name + ".rstd"), y);
}

void Compute::norm_backward(const Operands& o, const std::string& name, ConstMatrix dy,
                            ConstMatrix residual, Matrix dx) const {
  const float* w = o.data(Role::weights);
  float* g = o.data(Role::grads);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  const auto d_gain = vector(g, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_backward(dy, x, gain, saved(o, name + ".rstd"), residual, dx,
                                      o.write(), d_gain);
  kernels::layer_norm_backward(dy, x, gain, saved(o, name + ".mean"), saved(o, name + ".rstd"),
                               residual, dx, o.write(), d_gain,
                               vector(g, o.block(), name + ".bias"));
}

// --- embedding ----------------------------------------------------------------------------------

void Compute::embedding_forward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  kernels::embedding_forward(ConstTokens(o.data<std::int32_t>(Role::input), std::size_t(tokens_)),
                             matrix(w, o.block(), "token"),
                             rope_.empty() ? matrix(w, o.block(), "position") : ConstMatrix(),
                             stream(o, Role::output));
}

void Compute::embedding_backward(const Operands& o) const {
  float* g = o.data(Role::grads);
  kernels::embedding_backward(ConstTokens(o.data<std::int32_t>(Role::input), std::size_t(tokens_)),
                              stream(o, Role::gradient), matrix(g, o.block(), "token"),
                              rope_.empty() ? matrix(g, o.block(), "position") : Matrix());
}

// --- head ---------------------------------------------------------------------------------------

void Compute::head_forward(const Operands& o, const StepScalars& step) const {
  const float* w = o.data(Role::weights);
  const float* tied = o.optional(Role::weights, 1);
  const Matrix normed = stream(o, Role::workspace);
  const Matrix logits = rows(saved(o, "d_logits").data(), tokens_, vocab_);
  norm_forward(o, "norm", normed);
  kernels::linear_forward(normed,
                          tied ? ConstMatrix(tied, std::size_t(vocab_), std::size_t(hidden_))
                               : matrix(w, o.block(), "weight"),
                          Write::replace, logits);
  const double loss = kernels::cross_entropy(
      logits, ConstTokens(o.data<std::int32_t>(Role::targets), std::size_t(tokens_)),
      step.loss_scale, true);
  // Tensor-parallel ranks compute the same loss: one of them counts it.
  double& sum = *o.data<double>(Role::loss);
  sum = (o.task.replaces ? 0.0 : sum) + (place_.tp_rank == 0 ? loss : 0.0);
}

void Compute::head_backward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  float* g = o.data(Role::grads);
  const float* tied = o.optional(Role::weights, 1);
  float* tied_grads = o.optional(Role::grads, 1);
  const Matrix d_logits = rows(saved(o, "d_logits").data(), tokens_, vocab_);
  const Matrix normed = stream(o, Role::workspace);
  norm_again(o, "norm", normed);
  if (tied) {
    // The table's gradient was cleared: the embedding adds to it too.
    kernels::linear_backward_weight(d_logits, normed, Write::accumulate,
                                    rows(tied_grads, vocab_, hidden_));
    kernels::linear_backward_input(d_logits,
                                   ConstMatrix(tied, std::size_t(vocab_), std::size_t(hidden_)),
                                   Write::replace, normed);
  } else {
    kernels::linear_backward_weight(d_logits, normed, o.write(), matrix(g, o.block(), "weight"));
    kernels::linear_backward_input(d_logits, matrix(w, o.block(), "weight"), Write::replace,
                                   normed);
  }
  norm_backward(o, "norm", normed, ConstMatrix(), stream(o, Role::gradient));
}

}  // namespace brume::engine
