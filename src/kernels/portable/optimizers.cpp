#include "kernels/portable/launch.hpp"
#include "kernels/update_rules.hpp"

namespace brume::kernels {
namespace {

/// The gradient's factor, in memory: one thread calculates it for all, in double precision.
const float* grad_scale_of(const Update& update, const double* squares) {
  float* const scale = workspace_of<float>(1);
  const double clip_norm = update.clip_norm, loss_scale = update.loss_scale;
  for_each(
      "clip", 1,
      KOKKOS_LAMBDA(std::int64_t) { *scale = grad_scale(clip_norm, loss_scale, squares); });
  return scale;
}

/// @param rounded  null, or where each new weight goes too
template <class Rule, class Rounded>
void update_elements(const Update& update, const double* squares, const UpdatedElements& elements,
                     Rounded* rounded) {
  const Rule rule = Rule::make(update, elements);
  const float* const scale = grad_scale_of(update, squares);
  const float* const grad = elements.grad;
  float* const weight = elements.weight;
  for_each(
      Rule::name, elements.count, KOKKOS_LAMBDA(std::int64_t i) {
        const float w = rule(i, *scale * grad[i], weight[i]);
        weight[i] = w;
        if (rounded != nullptr) rounded[i] = w;
      });
}

template <class Rule>
void update_by(const Update& update, const double* squares, const UpdatedElements& elements) {
  std::visit([&](auto* rounded) { update_elements<Rule>(update, squares, elements, rounded); },
             elements.rounded);
}

template <class Rule>
void make_direction(const Rule& rule, std::int64_t count, const float* scale) {
  for_each(
      "momentum", count, KOKKOS_LAMBDA(std::int64_t i) { rule(i, *scale); });
}

}  // namespace

void momentum_direction(const Update& update, const double* squares,
                        const UpdatedElements& elements, Moments moments, float* d) {
  const float* const scale = grad_scale_of(update, squares);
  if (moments == Moments::bf16)
    make_direction(Momentum<bfloat16>::make(update, elements, d), elements.count, scale);
  else
    make_direction(Momentum<float>::make(update, elements, d), elements.count, scale);
}

UpdateKernel update_kernel(std::string_view optimizer, Moments moments) {
  return AllUpdateRules::find(
      optimizer, moments, []<class Rule>(std::type_identity<Rule>) { return &update_by<Rule>; });
}

}  // namespace brume::kernels
