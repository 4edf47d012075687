#include "order.hpp"

#include "plan/passes.hpp"

namespace brume::schedule {

std::vector<Slot> one_f_one_b(const plan::Plan& plan, int stage, const Options& options) {
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
  const int ahead = plan::in_flight(options.overlap ? plan.run_ahead : 1,
                                    plan.num_stages() - 1 - stage, plan.microbatches);
  int forwards = 0, backwards = 0;
  while (backwards < plan.microbatches) {
    const plan::Pass pass = plan::next_pass(forwards, backwards, ahead, plan.microbatches);
    if (pass.forward)
      forward(forwards++);
    else
      backward(backwards++);
  }
  return order;
}

}  // namespace brume::schedule
