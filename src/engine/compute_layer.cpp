/// @file A layer's segments: the kernels of the branches that model::branches names.
#include "base/error.hpp"
#include "compute.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/swiglu.hpp"

namespace brume::engine {

using kernels::Write;
using model::BranchKind;
using schedule::Role;

namespace {

std::string norm_name(const model::Branch& branch) { return "norm" + std::to_string(branch.norm); }

const char* output_name(const model::Branch& branch) {
  return branch.kind == BranchKind::attention ? "attention.out" : "mlp.out";
}

}  // namespace

template <class Storage>
int ComputeOf<Storage>::input_width(BranchKind kind) const {
  const Linear& last = inputs_of(kind).back();
  return last.first_column + last.columns;
}

// --- forward ------------------------------------------------------------------------------------

template <class Storage>
void ComputeOf<Storage>::layer_forward(const Operands& o) const {
  const SegmentParts& segment = segments_.at(o.task.segment);
  Storage* const room =
      gelu_goes_with_product(o) ? stream(o, Role::output).data() : o.data<Storage>(Role::workspace);
  Matrix normed;
  int norm = 0;
  for (const model::Branch& branch : segment.branches) {
    if (branch.norm != norm) {
      normed = kept_or(o, norm_name(branch) + ".out", hidden_, room);
      norm_forward(o, norm_name(branch), normed);
    }
    norm = branch.norm;
    project(o, branch.kind, normed);
  }
  if (segment.branches.front().kind == BranchKind::attention) attend(o);
  if (o.task.find(Role::output) || post_norms_) write_output(o);
}

/// The branch's first product with its bias; queries and keys turned by their positions unless
/// norms come first.
template <class Storage>
void ComputeOf<Storage>::project(const Operands& o, BranchKind kind, ConstMatrix normed) const {
  const bool attention = kind == BranchKind::attention;
  const Storage* w = weights(o);
  const Matrix out = saved(o, attention ? "qkv" : "wide", input_width(kind));
  if (!attention && gelu_goes_with_product(o))
    return kernels::gelu_affine_forward<Storage>(
        normed, matrix(w, o.block(), "mlp.in.weight"), bias(w, o.block(), "mlp.in"), out,
        kept_or(o, "activated", ffn_tp_, o.data<Storage>(Role::workspace)), factors_);
  for (const Linear& linear : inputs_of(kind)) {
    const Matrix own = kernels::columns<Storage>(out, linear.first_column, linear.columns);
    kernels::affine_forward<Storage>(normed, matrix(w, o.block(), linear.name + ".weight"),
                                     bias(w, o.block(), linear.name), {}, own, factors_);
  }
  if (attention && !qk_norm_) turn(o, out);
}

template <class Storage>
auto ComputeOf<Storage>::normed_heads(const Operands& o, const Matrix& qkv) const
    -> std::array<NormedHeads, 2> {
  const kernels::Vector rstd = statistic(o, "qk.rstd");
  const std::int64_t q = std::int64_t{tokens_} * attention_.heads;
  const std::int64_t k = std::int64_t{tokens_} * attention_.keys();
  const int q_width = attention_.heads * attention_.head_dim;
  return {{{"attention.q_norm", kernels::columns<Storage>(qkv, 0, q_width), part(rstd.data(), q)},
           {"attention.k_norm",
            kernels::columns<Storage>(qkv, q_width, attention_.keys() * attention_.head_dim),
            part(rstd.data() + q, k)}}};
}

/// What attention reads: what is kept or, where queries and keys have norms, these and the values,
/// made where they are kept or at `room`.
template <class Storage>
auto ComputeOf<Storage>::attention_input(const Operands& o, Storage* room) const -> Matrix {
  const Matrix kept = saved(o, "qkv", attention_.width());
  if (!qk_norm_) return kept;
  const Matrix qkv = kept_or(o, "qk.out", attention_.width(), room);
  kernels::copy<Storage>(ConstVector(kept.data(), kept.size()),
                         kernels::VectorOf<Storage>(qkv.data(), qkv.size()));
  for (const NormedHeads& heads : normed_heads(o, qkv))
    kernels::rms_norm_forward<Storage>(
        heads.columns, vector(weights(o), o.block(), std::string(heads.norm) + ".gain"), eps_,
        heads.columns, heads.rstd, gain_base_);
  turn(o, qkv);
  return qkv;
}

template <class Storage>
void ComputeOf<Storage>::attend(const Operands& o) const {
  const Matrix qkv = attention_input(o, o.data<Storage>(Role::workspace));
  const Matrix attended = saved(o, "attended", attended_tp_);
  kernels::attention_forward<Storage>(attention(o), qkv, attended, statistic(o, "lse"));
}

/// In a segment that is an MLP alone the norm's output lies where the segment's will, so that the
/// workspace is free for gelu's: not where that takes its input's place.
template <class Storage>
bool ComputeOf<Storage>::gelu_goes_with_product(const Operands& o) const {
  const std::vector<model::Branch>& branches = segments_.at(o.task.segment).branches;
  return mlp_kind_ == model::MlpKind::gelu_tanh && branches.size() == 1 &&
         branches.front().kind == BranchKind::mlp && o.task.find(Role::output) &&
         stream(o, Role::output).data() != stream(o, Role::input).data();
}

template <class Storage>
void ComputeOf<Storage>::activate(ConstMatrix wide, Matrix a) const {
  switch (mlp_kind_) {
    case model::MlpKind::gelu_tanh: return kernels::gelu_forward<Storage>(wide, {}, a);
    case model::MlpKind::gelu_erf: return kernels::gelu_erf_forward<Storage>(wide, {}, a);
    case model::MlpKind::swiglu: return kernels::swiglu_forward<Storage>(wide, a);
    case model::MlpKind::geglu: return kernels::geglu_forward<Storage>(wide, a);
  }
}

/// output = residual + sum over branches of bias + inner W^T on tensor-parallel rank 0, the sum of
/// inner W^T on the others: together they are the new residual stream.
template <class Storage>
void ComputeOf<Storage>::write_output(const Operands& o) const {
  const std::vector<model::Branch>& branches = segments_.at(o.task.segment).branches;
  const Storage* w = weights(o);
  if (post_norms_) return write_normed_output(o, branches.front());
  const Matrix output = stream(o, Role::output);
  const bool carries_residual = tp_rank_ == 0;
  ConstMatrix so_far = carries_residual ? ConstMatrix(stream(o, Role::input)) : ConstMatrix();
  for (const model::Branch& branch : branches) {
    const std::string name = output_name(branch);
    kernels::affine_forward<Storage>(
        inner_of(o, branch.kind), matrix(w, o.block(), name + ".weight"),
        carries_residual ? bias(w, o.block(), name) : ConstVector(), so_far, output, factors_);
    so_far = output;
  }
}

/// What a branch's last product reads: of an MLP, made where it is kept or in the workspace.
template <class Storage>
auto ComputeOf<Storage>::inner_of(const Operands& o, BranchKind kind) const -> Matrix {
  if (kind == BranchKind::attention) return saved(o, "attended", attended_tp_);
  const Matrix inner = kept_or(o, "activated", ffn_tp_, o.data<Storage>(Role::workspace));
  if (!gelu_goes_with_product(o)) activate(saved(o, "wide", input_width(kind)), inner);
  return inner;
}

/// output = input + norm(inner W^T). A recompute whose output nobody reads makes what a backward
/// needs of it.
template <class Storage>
void ComputeOf<Storage>::write_normed_output(const Operands& o, const model::Branch& branch) const {
  const Storage* w = weights(o);
  const std::string norm = "post_" + norm_name(branch);
  const Matrix product = saved(o, norm + ".in", hidden_);
  kernels::linear_forward<Storage>(
      inner_of(o, branch.kind), matrix(w, o.block(), std::string(output_name(branch)) + ".weight"),
      Write::replace, product, factors_);
  const bool wanted = o.task.find(Role::output) != nullptr;
  kernels::rms_norm_forward<Storage>(
      product, vector(w, o.block(), norm + ".gain"), eps_,
      wanted ? stream(o, Role::output) : rows(o.data<Storage>(Role::workspace), tokens_, hidden_),
      row_statistic(o, norm + ".rstd"), gain_base_,
      wanted ? ConstMatrix(stream(o, Role::input)) : ConstMatrix());
}

// --- backward -----------------------------------------------------------------------------------

/// First what leads from the output's gradient to those of all first products, which stay; then, a
/// norm at a time, through these products and the norm to the input's gradient. In two parts the
/// first one leaves gradients of linear layers to the second, and what these need in a buffer of
/// its own: each kernel reads the same numbers as in one.
template <class Storage>
void ComputeOf<Storage>::layer_backward(const Operands& o) const {
  const std::vector<model::Branch>& branches = segments_.at(o.task.segment).branches;
  const Storage* w = weights(o);
  Storage* const workspace = o.data<Storage>(Role::workspace);
  Storage* rest = o.task.find(Role::products) ? o.data<Storage>(Role::products) : workspace;
  std::vector<Matrix> gradients;
  for (const model::Branch& branch : branches) {
    gradients.push_back(rows(rest, tokens_, input_width(branch.kind)));
    rest += gradients.back().size();
  }
  // Of the second part, where it is not that of a norm's input.
  const Matrix stream_gradient = o.task.find(Role::gradient) ? stream(o, Role::gradient) : Matrix();
  ConstMatrix dy = stream_gradient;
  if (post_norms_) {
    const std::string norm = "post_" + norm_name(branches.front());
    const Matrix product_gradient = rows(rest, tokens_, hidden_);
    rest += product_gradient.size();
    if (makes_input(o))
      kernels::rms_norm_backward<Storage>(
          dy, saved(o, norm + ".in", hidden_), vector(w, o.block(), norm + ".gain"),
          row_statistic(o, norm + ".rstd"), ConstMatrix(), product_gradient, o.write(),
          vector_grads(o, norm + ".gain"), gain_base_);
    dy = product_gradient;
  }
  Storage* const scratch = o.task.find(Role::products) ? workspace : rest;
  const Matrix normed = rows(scratch, tokens_, hidden_);
  for (std::size_t i = 0; i < branches.size(); ++i)
    if (branches[i].kind == BranchKind::attention)
      attention_inner_backward(o, dy, gradients[i], scratch);
    else
      mlp_inner_backward(o, dy, gradients[i], scratch);

  // What comes past the branches is tensor-parallel rank 0's to pass on; after the first norm the
  // gradient holds its part.
  const Matrix d_input = o.task.find(Role::output) ? stream(o, Role::output) : stream_gradient;
  ConstMatrix residual = tp_rank_ == 0 ? ConstMatrix(stream_gradient) : ConstMatrix();
  for (std::size_t first = 0, last = 0; first < branches.size(); first = last) {
    while (last < branches.size() && branches[last].norm == branches[first].norm) ++last;
    const std::string name = norm_name(branches[first]);
    if (makes_weights(o)) {
      const Matrix inputs = kept_or(o, name + ".out", hidden_, normed.data());
      if (!keeps(o, name + ".out")) norm_again(o, name, inputs);
      for_inputs(branches, gradients, first, last, [&](const std::string& input, Matrix gradient) {
        linear_backward_parameters(o, input, gradient, inputs);
      });
    }
    if (!makes_input(o)) continue;
    Write write = Write::replace;
    for_inputs(branches, gradients, first, last, [&](const std::string& input, Matrix gradient) {
      kernels::linear_backward_input<Storage>(gradient, matrix(w, o.block(), input + ".weight"),
                                              write, normed, factors_);
      write = Write::accumulate;
    });
    norm_backward(o, name, normed, residual, d_input);
    residual = d_input;
  }
}

/// Calls `each` with every first product of some branches and the gradient of its output.
template <class Storage>
template <typename Each>
void ComputeOf<Storage>::for_inputs(const std::vector<model::Branch>& branches,
                                    const std::vector<Matrix>& gradients, std::size_t first,
                                    std::size_t last, Each each) const {
  for (std::size_t i = first; i < last; ++i)
    for (const Linear& linear : inputs_of(branches[i].kind))
      each(linear.name,
           kernels::columns<Storage>(gradients[i], linear.first_column, linear.columns));
}

template <class Storage>
void ComputeOf<Storage>::attention_inner_backward(const Operands& o, ConstMatrix dy, Matrix d_qkv,
                                                  Storage* scratch) const {
  const Storage* w = weights(o);
  const Matrix attended = saved(o, "attended", attended_tp_);
  if (makes_weights(o)) linear_backward_parameters(o, "attention.out", dy, attended);
  if (!makes_input(o)) return;
  const Matrix d_attended = rows(scratch, tokens_, attended_tp_);
  const Matrix qkv = qk_norm_ && keeps(o, "qk.out")
                         ? saved(o, "qk.out", attention_.width())
                         : attention_input(o, scratch + d_attended.size());
  kernels::linear_backward_input<Storage>(dy, matrix(w, o.block(), "attention.out.weight"),
                                          Write::replace, d_attended, factors_);
  kernels::attention_backward<Storage>(attention(o), qkv, attended, statistic(o, "lse"), d_attended,
                                       d_qkv);
  if (rotary())
    kernels::rope_backward<Storage>(rope_table(o), attention_.head_dim, turned(d_qkv),
                                    documents(o));
  if (!qk_norm_) return;
  const auto kept = normed_heads(o, saved(o, "qkv", attention_.width()));
  const auto gradients = normed_heads(o, d_qkv);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::string gain = std::string(kept[i].norm) + ".gain";
    kernels::rms_norm_backward<Storage>(
        gradients[i].columns, kept[i].columns, vector(w, o.block(), gain), kept[i].rstd,
        ConstMatrix(), gradients[i].columns, o.write(), vector_grads(o, gain), gain_base_);
  }
}

template <class Storage>
void ComputeOf<Storage>::mlp_inner_backward(const Operands& o, ConstMatrix dy, Matrix d_wide,
                                            Storage* scratch) const {
  const Storage* w = weights(o);
  const Matrix wide = saved(o, "wide", input_width(BranchKind::mlp));
  const Matrix d_activated = rows(scratch, tokens_, ffn_tp_);
  const ConstMatrix weight = matrix(w, o.block(), "mlp.out.weight");
  if (makes_weights(o)) {
    const Matrix activated = kept_or(o, "activated", ffn_tp_, scratch);
    if (!keeps(o, "activated") && trains(o.block(), "mlp.out.weight")) activate(wide, activated);
    linear_backward_parameters(o, "mlp.out", dy, activated);
  }
  if (!makes_input(o)) return;
  if (mlp_kind_ == model::MlpKind::gelu_tanh)
    return kernels::gelu_affine_backward<Storage>(dy, weight, wide, d_wide, factors_);
  kernels::linear_backward_input<Storage>(dy, weight, Write::replace, d_activated, factors_);
  switch (mlp_kind_) {
    case model::MlpKind::gelu_tanh: return;
    case model::MlpKind::gelu_erf:
      return kernels::gelu_erf_backward<Storage>(wide, {}, d_activated, d_wide);
    case model::MlpKind::swiglu:
      return kernels::swiglu_backward<Storage>(wide, d_activated, d_wide);
    case model::MlpKind::geglu: return kernels::geglu_backward<Storage>(wide, d_activated, d_wide);
  }
}

template <class Storage>
void ComputeOf<Storage>::linear_backward_parameters(const Operands& o, const std::string& name,
                                                    ConstMatrix dy, ConstMatrix x) const {
  kernels::affine_backward_parameters<Storage>(dy, x, o.write(), matrix_grads(o, name + ".weight"),
                                               vector_grads(o, name + ".bias"), factors_);
}

template void ComputeOf<float>::layer_forward(const Operands&) const;
template void ComputeOf<float>::layer_backward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::layer_forward(const Operands&) const;
template void ComputeOf<kernels::float16>::layer_forward(const Operands&) const;
template void ComputeOf<kernels::bfloat16>::layer_backward(const Operands&) const;
template void ComputeOf<kernels::float16>::layer_backward(const Operands&) const;

}  // namespace brume::engine
