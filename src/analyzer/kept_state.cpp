#include "kept_state.hpp"

namespace brume::analyzer {

KeptState kept_state(const model::Block& block) {
  const Variables v;
  const plan::StateKnobs<Expr> knobs{.dp = v.dp,
                                     .zero_level = v.z,
                                     .weight_offload_ratio = v.w,
                                     .grad_offload_ratio = v.g,
                                     .optim_offload_ratio = v.o,
                                     .optim_disk_ratio = v.od};
  return plan::kept_state(knobs, model::layout_elements(block));
}

}  // namespace brume::analyzer
