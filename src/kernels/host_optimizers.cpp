/// @file Updates by the processor, in every build: where ranks compute on it, and beside devices.
#include "base/error.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/update_rules.hpp"

namespace brume::kernels {
namespace {

template <class Rule, class Rounded>
void update_elements(const Update& update, const double* squares, const UpdatedElements& elements,
                     Rounded* rounded) {
  const Rule rule = Rule::make(update, elements);
  const float scale = grad_scale(update.clip_norm, update.loss_scale, squares);
  const float* const grad = elements.grad;
  float* const weight = elements.weight;
  for_each_piece(Rule::name, elements.count, 4096, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      weight[i] = rule(i, scale * grad[i], weight[i]);
      if constexpr (Narrow<Rounded>) rounded[i] = weight[i];
    }
  });
}

template <class Rule>
void update_by(const Update& update, const double* squares, const UpdatedElements& elements) {
  std::visit([&](auto* rounded) { update_elements<Rule>(update, squares, elements, rounded); },
             elements.rounded);
}

}  // namespace

UpdateKernel host_update_kernel(std::string_view optimizer, Moments moments) {
  return AllUpdateRules::find(
      optimizer, moments, []<class Rule>(std::type_identity<Rule>) { return &update_by<Rule>; });
}

UpdateKernels update_kernels(std::string_view optimizer, Moments moments) {
  const UpdateKernels found{.here = update_kernel(optimizer, moments),
                            .on_host = host_update_kernel(optimizer, moments)};
  require(found.here && found.on_host, Failure::bug, "optimizer '{}' has no kernel", optimizer);
  return found;
}

}  // namespace brume::kernels
