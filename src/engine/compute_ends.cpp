/// @file The first and the last segment, and the norms that all but the first have.
#include "compute.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rms_norm.hpp"

namespace brume::engine {

using kernels::ConstTokens;
using kernels::Write;
using schedule::Role;

// --- norms --------------------------------------------------------------------------------------

template <class Storage>
void ComputeOf<Storage>::norm_forward(const Operands& o, const std::string& name, Matrix y) const {
  const Storage* w = weights(o);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_forward<Storage>(x, gain, eps_, y, statistic(o, name + ".rstd"));
  kernels::layer_norm_forward<Storage>(x, gain, vector(w, o.block(), name + ".bias"), eps_, y,
                                       statistic(o, name + ".mean"), statistic(o, name + ".rstd"));
}

template <class Storage>
void ComputeOf<Storage>::norm_again(const Operands& o, const std::string& name, Matrix y) const {
  const Storage* w = weights(o);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_apply<Storage>(x, gain, statistic(o, name + ".rstd"), y);
  kernels::layer_norm_apply<Storage>(x, gain, vector(w, o.block(), name + ".bias"),
                                     statistic(o, name + ".mean"), statistic(o, name + ".rstd"), y);
}

template <class Storage>
void ComputeOf<Storage>::norm_backward(const Operands& o, const std::string& name, ConstMatrix dy,
                                       ConstMatrix residual, Matrix dx) const {
  const Storage* w = weights(o);
  float* g = o.data(Role::grads);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  const auto d_gain = vector(g, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_backward<Storage>(dy, x, gain, statistic(o, name + ".rstd"), residual,
                                               dx, o.write(), d_gain);
  kernels::layer_norm_backward<Storage>(dy, x, gain, statistic(o, name + ".mean"),
                                        statistic(o, name + ".rstd"), residual, dx, o.write(),
                                        d_gain, vector(g, o.block(), name + ".bias"));
}

// --- embedding ----------------------------------------------------------------------------------

template <class Storage>
void ComputeOf<Storage>::embedding_forward(const Operands& o) const {
  const Storage* w = weights(o);
  kernels::embedding_forward<Storage>(
      ConstTokens(o.data<std::int32_t>(Role::input), std::size_t(tokens_)),
      matrix(w, o.block(), "token"),
      rope_.empty() ? matrix(w, o.block(), "position") : ConstMatrix(), stream(o, Role::output));
}

template <class Storage>
void ComputeOf<Storage>::embedding_backward(const Operands& o) const {
  float* g = o.data(Role::grads);
  kernels::embedding_backward<Storage>(
      ConstTokens(o.data<std::int32_t>(Role::input), std::size_t(tokens_)),
      stream(o, Role::gradient), matrix(g, o.block(), "token"),
      rope_.empty() ? matrix(g, o.block(), "position") : kernels::Matrix());
}

// --- head ---------------------------------------------------------------------------------------

template <class Storage>
void ComputeOf<Storage>::head_forward(const Operands& o, const StepScalars& step) const {
  const Storage* w = weights(o);
  const Storage* tied = o.optional<Storage>(Role::weights, 1);
  const Matrix normed = stream(o, Role::workspace);
  const Matrix logits = saved(o, "d_logits", vocab_);
  norm_forward(o, "norm", normed);
  kernels::linear_forward<Storage>(
      normed,
      tied ? ConstMatrix(tied, std::size_t(vocab_), std::size_t(hidden_))
           : matrix(w, o.block(), "weight"),
      Write::replace, logits);
  const double loss = kernels::cross_entropy<Storage>(
      logits, ConstTokens(o.data<std::int32_t>(Role::targets), std::size_t(tokens_)),
      step.loss_scale, true);
  // Tensor-parallel ranks compute the same loss: one of them counts it.
  double& sum = *o.data<double>(Role::loss);
  sum = (o.task.replaces ? 0.0 : sum) + (place_.tp_rank == 0 ? loss : 0.0);
}

template <class Storage>
void ComputeOf<Storage>::head_backward(const Operands& o) const {
  const Storage* w = weights(o);
  float* g = o.data(Role::grads);
  const Storage* tied = o.optional<Storage>(Role::weights, 1);
  float* tied_grads = o.optional(Role::grads, 1);
  const Matrix d_logits = saved(o, "d_logits", vocab_);
  const Matrix normed = stream(o, Role::workspace);
  norm_again(o, "norm", normed);
  if (tied) {
    // The table's gradient was cleared: the embedding adds to it too.
    kernels::linear_backward_weight<Storage>(d_logits, normed, Write::accumulate,
                                             rows(tied_grads, vocab_, hidden_));
    kernels::linear_backward_input<Storage>(
        d_logits, ConstMatrix(tied, std::size_t(vocab_), std::size_t(hidden_)), Write::replace,
        normed);
  } else {
    kernels::linear_backward_weight<Storage>(d_logits, normed, o.write(),
                                             matrix(g, o.block(), "weight"));
    kernels::linear_backward_input<Storage>(d_logits, matrix(w, o.block(), "weight"),
                                            Write::replace, normed);
  }
  norm_backward(o, "norm", normed, ConstMatrix(), stream(o, Role::gradient));
}

template void ComputeOf<float>::norm_forward(const Operands&, const std::string&, Matrix) const;
template void ComputeOf<float>::norm_again(const Operands&, const std::string&, Matrix) const;
template void ComputeOf<float>::norm_backward(const Operands&, const std::string&, ConstMatrix,
                                              ConstMatrix, Matrix) const;
template void ComputeOf<float>::embedding_forward(const Operands&) const;
template void ComputeOf<float>::embedding_backward(const Operands&) const;
template void ComputeOf<float>::head_forward(const Operands&, const StepScalars&) const;
template void ComputeOf<float>::head_backward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::norm_forward(const Operands&, const std::string&,
                                                         Matrix) const;
template void ComputeOf<kernels::bfloat16>::norm_again(const Operands&, const std::string&,
                                                       Matrix) const;
template void ComputeOf<kernels::bfloat16>::norm_backward(const Operands&, const std::string&,
                                                          ConstMatrix, ConstMatrix, Matrix) const;
template void ComputeOf<kernels::bfloat16>::embedding_forward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::embedding_backward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::head_forward(const Operands&, const StepScalars&) const;
template void ComputeOf<kernels::bfloat16>::head_backward(const Operands&) const;

}  // namespace brume::engine
