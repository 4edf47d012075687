#include "order.hpp"

#include <algorithm>

namespace brume::schedule {

std::vector<plan::Pass> passes(const plan::Plan& plan, int first, const Options& options) {
  const plan::Rounds rounds = plan::rounds(plan);
  std::vector<plan::Pass> all;
  if (options.mode == Mode::evaluate) {
    for (int k = 0; k < rounds.passes(); ++k) all.push_back(rounds.forward(k));
    return all;
  }
  const int ahead = plan::passes_in_flight(rounds, options.overlap ? plan.run_ahead : 1, first);
  int forwards = 0, backwards = 0;
  while (backwards < rounds.passes()) {
    all.push_back(plan::next_pass(forwards, backwards, ahead, rounds));
    ++(all.back().forward ? forwards : backwards);
  }
  return all;
}

std::vector<Slot> one_f_one_b(const plan::Plan& plan, int first, int frozen_blocks,
                              const Options& options) {
  using Kind = Slot::Kind;
  std::vector<Slot> order;
  const auto forward = [&](int m, const plan::BlockRange& blocks) {
    const bool updates = m == 0 && options.mode == Mode::train;
    const int trained = std::max(blocks.first, frozen_blocks);  // the first block that is, if any
    if (updates && trained == blocks.first)
      order.insert(order.empty() ? order.end() : order.end() - 1, {Kind::update, 0, blocks.first});
    for (int block = blocks.first; block <= blocks.last; ++block) {
      if (updates && block < blocks.last && trained <= block + 1)
        order.push_back({Kind::update, 0, block + 1});
      order.push_back({Kind::forward, m, block});
    }
  };
  const auto backward = [&](int m, const plan::BlockRange& blocks) {
    for (int block = blocks.last; block >= std::max(blocks.first, frozen_blocks); --block)
      order.push_back({Kind::backward, m, block});
  };
  for (const plan::Pass& pass : passes(plan, first, options)) {
    const plan::BlockRange blocks =
        plan::block_range(plan, first + pass.chunk * plan.pipeline_size());
    pass.forward ? forward(pass.microbatch, blocks) : backward(pass.microbatch, blocks);
  }
  return order;
}

}  // namespace brume::schedule
