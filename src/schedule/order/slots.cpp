#include "order.hpp"

#include <algorithm>

namespace brume::schedule {
std::vector<plan::Pass> passes(const plan::Plan& plan, int first, const Options& options) {
  plan::Order order = plan.order;
  if (!options.overlap) order.run_ahead = 1;
  const plan::RankPasses passes(order, plan.shape(), first);
  std::vector<plan::Pass> all;
  const auto add = [&](const plan::Pass& pass) { all.push_back(pass); };
  options.mode == Mode::train ? passes.each(add) : passes.each_forward(add);
  return all;
}

std::vector<Slot> slots(const plan::Plan& plan, int first, const std::vector<model::Block>& all,
                        const Options& options) {
  using Kind = Slot::Kind;
  std::vector<Slot> order;
  const int lowest = int(std::ranges::find_if(all, &model::Block::trains) - all.begin());
  const auto forward = [&](int m, const plan::BlockRange& blocks) {
    const bool updates = m == 0 && options.mode == Mode::train;
    if (updates && all[blocks.first].trains())
      order.insert(order.empty() ? order.end() : order.end() - 1, {Kind::update, 0, blocks.first});
    for (int block = blocks.first; block <= blocks.last; ++block) {
      if (updates && block < blocks.last && all[std::size_t(block) + 1].trains())
        order.push_back({Kind::update, 0, block + 1});
      order.push_back({Kind::forward, m, block});
    }
  };
  const auto backward = [&](int stage, int m, const plan::BlockRange& blocks) {
    const int last = std::max(plan::last_backward_block(plan, stage), lowest);
    for (int block = blocks.last; block >= last; --block)
      order.push_back({Kind::backward, m, block});
  };
  const auto weights = [&](int stage, int m, const plan::BlockRange& blocks) {
    const int head = stage + 1 == plan.num_stages() ? 1 : 0;  // it has the first one
    const bool lone = plan.stages[stage].layers == 0;         // so has an embedding by itself
    for (int block = blocks.last - head; block >= blocks.first && !lone; --block)
      order.push_back({Kind::weights, m, block});
  };
  for (const plan::Pass& pass : passes(plan, first, options)) {
    const int stage = first + pass.chunk * plan.pipeline_size();
    const plan::BlockRange blocks = plan::block_range(plan, stage);
    if (pass.weights)
      weights(stage, pass.microbatch, blocks);
    else
      pass.forward ? forward(pass.microbatch, blocks) : backward(stage, pass.microbatch, blocks);
  }
  return order;
}

}  // namespace brume::schedule
