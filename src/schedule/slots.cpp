#include "slots.hpp"

#include <algorithm>

namespace brume::schedule {

std::vector<Slot> slots(const plan::Plan& plan, int stage, const Options& options) {
  using Kind = Slot::Kind;
  const auto [first, last] = plan::block_range(plan, stage);
  std::vector<Slot> order;

  const auto forward = [&](int m) {
    const bool updates = m == 0 && options.mode == Mode::train;
    if (updates) order.push_back({Kind::update, 0, first});
    for (int block = first; block <= last; ++block) {
      if (updates && block < last) order.push_back({Kind::update, 0, block + 1});
      order.push_back({Kind::forward, m, block});
    }
  };
  const auto backward = [&](int m) {
    for (int block = last; block >= first; --block) order.push_back({Kind::backward, m, block});
  };

  if (options.mode == Mode::evaluate) {
    for (int m = 0; m < plan.microbatches; ++m) forward(m);
    return order;
  }
  // Early stages run ahead so that late ones have work; then one forward, one backward in turn.
  const int warm_up = plan::in_flight(options.overlap ? plan.run_ahead : 1,
                                      plan.num_stages() - 1 - stage, plan.microbatches);
  for (int m = 0; m < warm_up; ++m) forward(m);
  for (int m = warm_up; m < plan.microbatches; ++m) {
    forward(m);
    backward(m - warm_up);
  }
  for (int m = plan.microbatches - warm_up; m < plan.microbatches; ++m) backward(m);
  return order;
}

}  // namespace brume::schedule
