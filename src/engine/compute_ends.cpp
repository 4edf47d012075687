/// @file The first and the last segment, and the norms that all but the first have.
#include "compute.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rms_norm.hpp"

namespace brume::engine {

using kernels::Write;
using schedule::Role;

// --- norms --------------------------------------------------------------------------------------

template <class Storage>
void ComputeOf<Storage>::norm_forward(const Operands& o, const std::string& name, Matrix y) const {
  const Storage* w = weights(o);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_forward<Storage>(x, gain, eps_, y, row_statistic(o, name + ".rstd"),
                                              gain_base_);
  kernels::layer_norm_forward<Storage>(x, gain, vector(w, o.block(), name + ".bias"), eps_, y,
                                       row_statistic(o, name + ".mean"),
                                       row_statistic(o, name + ".rstd"));
}

template <class Storage>
void ComputeOf<Storage>::norm_again(const Operands& o, const std::string& name, Matrix y) const {
  const Storage* w = weights(o);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_apply<Storage>(x, gain, row_statistic(o, name + ".rstd"), y,
                                            gain_base_);
  kernels::layer_norm_apply<Storage>(x, gain, vector(w, o.block(), name + ".bias"),
                                     row_statistic(o, name + ".mean"),
                                     row_statistic(o, name + ".rstd"), y);
}

template <class Storage>
void ComputeOf<Storage>::norm_backward(const Operands& o, const std::string& name, ConstMatrix dy,
                                       ConstMatrix residual, Matrix dx) const {
  const Storage* w = weights(o);
  const Matrix x = stream(o, Role::input);
  const auto gain = vector(w, o.block(), name + ".gain");
  const kernels::Vector d_gain = vector_grads(o, name + ".gain");
  if (norm_kind_ == model::NormKind::rms)
    return kernels::rms_norm_backward<Storage>(dy, x, gain, row_statistic(o, name + ".rstd"),
                                               residual, dx, o.write(), d_gain, gain_base_);
  kernels::layer_norm_backward<Storage>(dy, x, gain, row_statistic(o, name + ".mean"),
                                        row_statistic(o, name + ".rstd"), residual, dx, o.write(),
                                        d_gain, vector_grads(o, name + ".bias"));
}

// --- embedding ----------------------------------------------------------------------------------

template <class Storage>
void ComputeOf<Storage>::embedding_forward(const Operands& o) const {
  const Storage* w = weights(o);
  // Tensor-parallel ranks' parts of the stream are summed: one of them adds the positions.
  const bool adds_positions = !rotary() && tp_rank_ == 0;
  kernels::embedding_forward<Storage>(
      tokens(o, Role::input), matrix(w, o.block(), "token"),
      adds_positions ? matrix(w, o.block(), "position") : ConstMatrix(), stream(o, Role::output),
      vocabulary_, embedding_scale_, documents(o));
}

template <class Storage>
void ComputeOf<Storage>::embedding_backward(const Operands& o) const {
  kernels::embedding_backward<Storage>(tokens(o, Role::input), stream(o, Role::gradient),
                                       matrix_grads(o, "token"), matrix_grads(o, "position"),
                                       vocabulary_, embedding_scale_, documents(o));
}

// --- head ---------------------------------------------------------------------------------------

template <class Storage>
auto ComputeOf<Storage>::head_table(const Operands& o) const -> ConstMatrix {
  const Storage* tied = o.optional<Storage>(Role::weights, 1);
  return tied ? ConstMatrix(tied, std::size_t(rows_), std::size_t(hidden_))
              : matrix(weights(o), o.block(), "weight");
}
template <class Storage>
kernels::Matrix ComputeOf<Storage>::head_table_grads(const Operands& o) const {
  float* tied = o.optional(Role::grads, 1);
  return tied ? rows(tied, rows_, hidden_) : matrix_grads(o, "weight");
}

template <class Storage>
void ComputeOf<Storage>::head_forward(const Operands& o, const StepScalars& step) const {
  const kernels::ConstTokens targets = tokens(o, Role::targets);
  const int count = targets.extent_int(0);
  const Matrix normed = rows(o.data<Storage>(Role::workspace), count, hidden_);
  const Matrix part = logits(o, targets.extent(0));
  norm_forward(o, "norm", normed);
  kernels::linear_forward<Storage>(normed, head_table(o), Write::replace, part);
  if (tp_ == 1)
    return kernels::cross_entropy<Storage>(part, targets, step.loss_scale, true, o.write(),
                                           o.data<double>(Role::loss), logits_cap_,
                                           o.data<double>(Role::loss) + 1);
  const std::int64_t columns = std::int64_t{kernels::num_statistics} * count;
  float* const mine = statistic(o, "statistics").data() + tp_rank_ * columns;
  kernels::cross_entropy_part<Storage>(part, targets, vocabulary_,
                                       rows(mine, count, kernels::num_statistics), logits_cap_);
}

/// Computes the second half of a forward whose logits are in parts.
template <class Storage>
void ComputeOf<Storage>::loss(const Operands& o, const StepScalars& step) const {
  const kernels::ConstTokens targets = tokens(o, Role::targets);
  const kernels::Matrix statistics =
      rows(statistic(o, "statistics").data(), tp_, kernels::num_statistics * targets.extent_int(0));
  kernels::cross_entropy_combine<Storage>(
      logits(o, targets.extent(0)), targets, vocabulary_, statistics, tp_rank_, step.loss_scale,
      o.write(), o.data<double>(Role::loss), logits_cap_, o.data<double>(Role::loss) + 1);
}

template <class Storage>
void ComputeOf<Storage>::head_backward(const Operands& o) const {
  // A tied table's gradient was cleared: the embedding adds to it too.
  const bool tied = o.task.find(Role::weights, 1) != nullptr;
  const kernels::Matrix d_table = head_table_grads(o);
  const Matrix d_input = stream(o, Role::gradient);
  const Matrix d_logits = logits(o, d_input.extent(0));
  const Matrix normed = rows(o.data<Storage>(Role::workspace), d_input.extent_int(0), hidden_);
  if (d_table.data() != nullptr) {
    norm_again(o, "norm", normed);
    kernels::linear_backward_weight<Storage>(d_logits, normed, tied ? Write::accumulate : o.write(),
                                             d_table);
  }
  kernels::linear_backward_input<Storage>(d_logits, head_table(o), Write::replace, normed);
  norm_backward(o, "norm", normed, ConstMatrix(), d_input);
}

template void ComputeOf<float>::norm_forward(const Operands&, const std::string&, Matrix) const;
template void ComputeOf<float>::norm_again(const Operands&, const std::string&, Matrix) const;
template void ComputeOf<float>::norm_backward(const Operands&, const std::string&, ConstMatrix,
                                              ConstMatrix, Matrix) const;
template void ComputeOf<float>::embedding_forward(const Operands&) const;
template void ComputeOf<float>::embedding_backward(const Operands&) const;
template void ComputeOf<float>::head_forward(const Operands&, const StepScalars&) const;
template void ComputeOf<float>::loss(const Operands&, const StepScalars&) const;
template void ComputeOf<float>::head_backward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::norm_forward(const Operands&, const std::string&,
                                                         Matrix) const;
template void ComputeOf<kernels::float16>::norm_forward(const Operands&, const std::string&,
                                                        Matrix) const;
template void ComputeOf<kernels::bfloat16>::norm_again(const Operands&, const std::string&,
                                                       Matrix) const;
template void ComputeOf<kernels::float16>::norm_again(const Operands&, const std::string&,
                                                      Matrix) const;
template void ComputeOf<kernels::bfloat16>::norm_backward(const Operands&, const std::string&,
                                                          ConstMatrix, ConstMatrix, Matrix) const;
template void ComputeOf<kernels::float16>::norm_backward(const Operands&, const std::string&,
                                                         ConstMatrix, ConstMatrix, Matrix) const;
template void ComputeOf<kernels::bfloat16>::embedding_forward(const Operands&) const;
template void ComputeOf<kernels::float16>::embedding_forward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::embedding_backward(const Operands&) const;
template void ComputeOf<kernels::float16>::embedding_backward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::head_forward(const Operands&, const StepScalars&) const;
template void ComputeOf<kernels::float16>::head_forward(const Operands&, const StepScalars&) const;
template void ComputeOf<kernels::bfloat16>::loss(const Operands&, const StepScalars&) const;
template void ComputeOf<kernels::float16>::loss(const Operands&, const StepScalars&) const;
template void ComputeOf<kernels::bfloat16>::head_backward(const Operands&) const;
template void ComputeOf<kernels::float16>::head_backward(const Operands&) const;

}  // namespace brume::engine
