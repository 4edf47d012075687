#include "order.hpp"

#include <algorithm>

namespace brume::schedule {
namespace {

std::vector<plan::Pass> split_passes(int ahead, int most, int microbatches) {
  std::vector<plan::Pass> all;
  for (plan::Done done; done.weights < microbatches; done.add(all.back()))
    all.push_back(plan::next_split_pass(done, ahead, most, microbatches));
  return all;
}

}  // namespace

std::vector<plan::Pass> passes(const plan::Plan& plan, int first, const Options& options) {
  const plan::Rounds rounds = plan::rounds(plan);
  std::vector<plan::Pass> all;
  if (options.mode == Mode::evaluate) {
    for (int k = 0; k < rounds.passes(); ++k) all.push_back(rounds.forward(k));
    return all;
  }
  const auto ahead_of = [&](int stage) {
    return plan::passes_in_flight(rounds, options.overlap ? plan.run_ahead : 1, stage);
  };
  const int ahead = ahead_of(first);
  if (plan.zero_bubble) return split_passes(ahead, ahead_of(0), plan.microbatches);
  int forwards = 0, backwards = 0;
  while (backwards < rounds.passes()) {
    all.push_back(plan::next_pass(forwards, backwards, ahead, rounds));
    ++(all.back().forward ? forwards : backwards);
  }
  return all;
}

std::vector<Slot> one_f_one_b(const plan::Plan& plan, int first,
                              const std::vector<model::Block>& all, const Options& options) {
  using Kind = Slot::Kind;
  std::vector<Slot> order;
  const int lowest = int(std::ranges::find_if(all, &model::Block::trains) - all.begin());
  const auto forward = [&](int m, const plan::BlockRange& blocks) {
    const bool updates = m == 0 && options.mode == Mode::train;
    if (updates && all[std::size_t(blocks.first)].trains())
      order.insert(order.empty() ? order.end() : order.end() - 1, {Kind::update, 0, blocks.first});
    for (int block = blocks.first; block <= blocks.last; ++block) {
      if (updates && block < blocks.last && all[std::size_t(block) + 1].trains())
        order.push_back({Kind::update, 0, block + 1});
      order.push_back({Kind::forward, m, block});
    }
  };
  const auto backward = [&](int m, const plan::BlockRange& blocks) {
    const int last = std::max({blocks.first, lowest, plan::first_backward_block(plan)});
    for (int block = blocks.last; block >= last; --block)
      order.push_back({Kind::backward, m, block});
  };
  const auto weights = [&](int stage, int m, const plan::BlockRange& blocks) {
    const int head = stage + 1 == plan.num_stages() ? 1 : 0;  // it has the first one
    for (int block = blocks.last - head; block >= blocks.first; --block)
      order.push_back({Kind::weights, m, block});
  };
  for (const plan::Pass& pass : passes(plan, first, options)) {
    const int stage = first + pass.chunk * plan.pipeline_size();
    const plan::BlockRange blocks = plan::block_range(plan, stage);
    if (pass.weights)
      weights(stage, pass.microbatch, blocks);
    else
      pass.forward ? forward(pass.microbatch, blocks) : backward(pass.microbatch, blocks);
  }
  return order;
}

}  // namespace brume::schedule
