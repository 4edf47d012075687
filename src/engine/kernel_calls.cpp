#include "engine/kernel_calls.hpp"

#include "base/error.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu_erf.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"

namespace brume::engine {

using model::OperatorKind;

kernels::Router router(const model::Config& model) {
  return {.sigmoid = model.router == model::RouterKind::sigmoid,
          .normalizes = model.normalize_topk,
          .scale = float(model.routed_scale),
          .groups = model.expert_groups,
          .chosen_groups = model.groups_per_token};
}

template <class Storage>
void KernelCall<Storage>::forward() const {
  switch (kind) {
    case OperatorKind::matmul:
    case OperatorKind::matmul_fp8:
      if (blocks.blocks != nullptr)
        return kernels::affine_forward<Storage>(read, blocks, bias, residual, written);
      return kernels::affine_forward<Storage>(read, weight, bias, residual, written, factors());
    case OperatorKind::experts:
      kernels::experts_forward<Storage>(
          read, weight, routes,
          residual.data() != nullptr ? kernels::Write::accumulate : kernels::Write::replace,
          written);
      if (experts_bias.data() == nullptr) return;
      return kernels::add_experts_bias<Storage>(experts_bias, routes, gates,
                                                biased(written, experts_bias));
    case OperatorKind::attention:
      return kernels::attention_forward<Storage>(attention, read, written, lse, sinks, keys);
    case OperatorKind::cached_attention:
      return kernels::cached_attention<Storage>(attention, read, cache, written, sinks);
    case OperatorKind::layer_norm:
      return kernels::layer_norm_forward<Storage>(read, gain, bias, eps, written, mean, rstd);
    case OperatorKind::rms_norm:
      return kernels::rms_norm_forward<Storage>(read, gain, eps, written, rstd, gain_base,
                                                residual);
    case OperatorKind::rope:
      return kernels::rope_forward<Storage>(angles, head_dim, written, documents);
    case OperatorKind::gelu: return kernels::gelu_forward<Storage>(read, {}, written);
    case OperatorKind::gelu_erf: return kernels::gelu_erf_forward<Storage>(read, {}, written);
    case OperatorKind::swiglu: return kernels::swiglu_forward<Storage>(read, written, gates);
    case OperatorKind::geglu: return kernels::geglu_forward<Storage>(read, written);
    case OperatorKind::clamped_swiglu:
      return kernels::clamped_swiglu_forward<Storage>(read, written, gates);
    case OperatorKind::embedding:
      return kernels::embedding_forward<Storage>(tokens, weight, positions, written, vocabulary,
                                                 scale, documents);
    case OperatorKind::cross_entropy:
      return kernels::cross_entropy<Storage>(written, tokens, scale, true, write, loss, cap,
                                             misses);
    case OperatorKind::logits:
    case OperatorKind::router: return kernels::router_forward<Storage>(read, weight, logits, bias);
    case OperatorKind::choose_experts:
      return kernels::choose_experts(logits, router, gates, routes);
    case OperatorKind::order_copies:
      if (choices.data() != nullptr) kernels::read_choices(choices, routes, of_tokens, token_rows);
      return kernels::order_copies(of_tokens, routes, gates);
    case OperatorKind::sigmoid: return kernels::sigmoid_forward<Storage>(read, gates);
    case OperatorKind::dispatch: return kernels::dispatch<Storage>(read, routes, written);
    case OperatorKind::combine: return kernels::combine<Storage>(read, routes, residual, written);
    case OperatorKind::cut_keys:
    case OperatorKind::cut_heads: return kernels::cut_heads<Storage>(read, heads, written);
    case OperatorKind::join_heads: return kernels::join_heads<Storage>(read, heads, written);
    case OperatorKind::expand_keys:
      if (keys.data() != nullptr) return kernels::expand_keys<Storage>(keys, latent, written, read);
      return kernels::expand_keys<Storage>(read, latent, written);
    case OperatorKind::narrow_values: return kernels::narrow_values<Storage>(read, latent, written);
    case OperatorKind::absorb_queries:
      return kernels::absorb_queries<Storage>(read, weight, latent, written);
    case OperatorKind::expand_values:
      return kernels::expand_values<Storage>(read, weight, latent, written);
    case OperatorKind::residual: return kernels::add_residual<Storage>(read, written);
    case OperatorKind::pointwise:
    case OperatorKind::reduce_scatter:
    case OperatorKind::all_gather:
    case OperatorKind::all_to_all:
    case OperatorKind::send_rows:
    case OperatorKind::return_rows:
    case OperatorKind::dequantize:
    case OperatorKind::update: break;
  }
  throw Error(Failure::bug, "operator kind {} has no call", model::name(kind));
}

template <class Storage>
void KernelCall<Storage>::again() const {
  if (kind == OperatorKind::layer_norm)
    return kernels::layer_norm_apply<Storage>(read, gain, bias, mean, rstd, written);
  if (kind == OperatorKind::rms_norm)
    return kernels::rms_norm_apply<Storage>(read, gain, rstd, written, gain_base);
  forward();
}

template <class Storage>
void KernelCall<Storage>::backward_input() const {
  switch (kind) {
    case OperatorKind::matmul:
    case OperatorKind::matmul_fp8:
      return kernels::linear_backward_input<Storage>(d_written, weight, write_d_read, d_read,
                                                     factors());
    case OperatorKind::experts:
      if (experts_bias.data() != nullptr && d_gates.data() != nullptr)
        kernels::experts_bias_backward_gates<Storage>(biased(d_written, experts_bias), experts_bias,
                                                      routes, d_gates);
      return kernels::experts_backward_input<Storage>(d_written, weight, routes, write_d_read,
                                                      d_read);
    case OperatorKind::attention:
      if (d_sinks.data() != nullptr)
        kernels::attention_backward_sinks<Storage>(attention, sinks, written, lse, d_written, write,
                                                   d_sinks);
      return kernels::attention_backward<Storage>(attention, read, written, lse, d_written, d_read,
                                                  keys, d_keys);
    case OperatorKind::layer_norm:
      return kernels::layer_norm_backward<Storage>(d_written, read, gain, mean, rstd, d_residual,
                                                   d_read, write, d_gain, d_bias);
    case OperatorKind::rms_norm:
      return kernels::rms_norm_backward<Storage>(d_written, read, gain, rstd, d_residual, d_read,
                                                 write, d_gain, gain_base);
    case OperatorKind::rope:
      return kernels::rope_backward<Storage>(angles, head_dim, d_read, documents);
    case OperatorKind::gelu: return kernels::gelu_backward<Storage>(read, {}, d_written, d_read);
    case OperatorKind::gelu_erf:
      return kernels::gelu_erf_backward<Storage>(read, {}, d_written, d_read);
    case OperatorKind::swiglu:
      return kernels::swiglu_backward<Storage>(read, d_written, d_read, gates, d_gates,
                                               write_d_gates);
    case OperatorKind::geglu: return kernels::geglu_backward<Storage>(read, d_written, d_read);
    case OperatorKind::clamped_swiglu:
      return kernels::clamped_swiglu_backward<Storage>(read, d_written, d_read, gates, d_gates,
                                                       write_d_gates);
    case OperatorKind::embedding:
      return kernels::embedding_backward<Storage>(tokens, d_written, d_weight, d_positions,
                                                  vocabulary, scale, documents);
    case OperatorKind::router:
      if (d_bias.data() != nullptr) kernels::bias_backward(d_logits, write, d_bias);
      return kernels::router_backward<Storage>(d_logits, read, weight, write, d_weight, d_read);
    case OperatorKind::choose_experts:
      return kernels::choose_experts_backward(logits, router, routes, d_gates, router_loss,
                                              d_logits);
    case OperatorKind::order_copies:
      return kernels::order_copies_backward(d_gates, routes, first_token, num_tokens,
                                            token_rows.own_tokens, d_choices);
    case OperatorKind::sigmoid: return kernels::sigmoid_backward<Storage>(read, d_gates, d_read);
    case OperatorKind::dispatch:
      return kernels::combine<Storage>(
          d_written, routes, write_d_read == kernels::Write::accumulate ? d_read : Matrix(),
          d_read);
    case OperatorKind::combine: return kernels::dispatch<Storage>(d_written, routes, d_read);
    case OperatorKind::cut_keys:
    case OperatorKind::cut_heads: return kernels::join_heads<Storage>(d_written, heads, d_read);
    case OperatorKind::join_heads: return kernels::cut_heads<Storage>(d_written, heads, d_read);
    case OperatorKind::expand_keys:
      if (d_keys.data() != nullptr)
        return kernels::expand_keys_backward<Storage>(d_written, latent, d_keys, d_read);
      return kernels::expand_keys_backward<Storage>(d_written, latent, d_read);
    case OperatorKind::narrow_values:
      return kernels::narrow_values_backward<Storage>(d_written, latent, d_read);
    case OperatorKind::absorb_queries:
    case OperatorKind::expand_values:
    case OperatorKind::cached_attention:
    case OperatorKind::logits:
    case OperatorKind::cross_entropy:
    case OperatorKind::residual:
    case OperatorKind::pointwise:
    case OperatorKind::reduce_scatter:
    case OperatorKind::all_gather:
    case OperatorKind::all_to_all:
    case OperatorKind::send_rows:
    case OperatorKind::return_rows:
    case OperatorKind::dequantize:
    case OperatorKind::update: break;
  }
  throw Error(Failure::bug, "operator kind {} has no backward", model::name(kind));
}

template <class Storage>
void KernelCall<Storage>::backward_weights() const {
  if (kind == OperatorKind::experts) {
    if (d_weight.data() != nullptr)
      kernels::experts_backward_weight<Storage>(d_written, read, routes, write, d_weight);
    if (d_experts_bias.data() != nullptr)
      kernels::experts_bias_backward<Storage>(biased(d_written, d_experts_bias), routes, gates,
                                              write, d_experts_bias);
    return;
  }
  kernels::affine_backward_parameters<Storage>(d_written, read, write, d_weight, d_bias, factors());
}

template <class Storage>
void KernelCall<Storage>::forward_with_gelu(Matrix activated) const {
  if (blocks.blocks != nullptr) {
    forward();
    return kernels::gelu_forward<Storage>(written, {}, activated);
  }
  kernels::gelu_affine_forward<Storage>(read, weight, bias, written, activated, factors());
}

template <class Storage>
void KernelCall<Storage>::backward_input_through_gelu(ConstMatrix gelu_read,
                                                      Matrix d_gelu_read) const {
  kernels::gelu_affine_backward<Storage>(d_written, weight, gelu_read, d_gelu_read, factors());
}

template struct KernelCall<float>;
template struct KernelCall<kernels::bfloat16>;
template struct KernelCall<kernels::float16>;

}  // namespace brume::engine
