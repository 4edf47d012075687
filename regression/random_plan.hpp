/// @file Random small models and valid plans for them, for property tests.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::test {

inline int pick(std::mt19937& random, std::vector<int> values) {
  return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

inline model::Config random_model(std::mt19937& random) {
  const int heads = pick(random, {2, 4});
  return {.num_layers = pick(random, {2, 3, 4, 5}),
          .hidden_size = heads * pick(random, {8, 12, 16}),
          .num_heads = heads,
          .ffn_size = 4 * pick(random, {16, 24, 32}),
          .seq_len = pick(random, {8, 12, 16}),
          .vocab_size = pick(random, {31, 64, 97}),
          .tied_head = pick(random, {0, 1}) == 1};
}

/// A plan of at most `max_ranks` ranks with any combination of knobs.
inline plan::Plan random_plan(std::mt19937& random, const model::Config& model, int max_ranks) {
  int stages, dp, tp;
  do {
    stages = pick(random, {1, 1, 2, 3, 4});
    dp = pick(random, {1, 2, 3, 4});
    tp = pick(random, {1, 1, 2, 4});
  } while (stages * dp * tp > max_ranks || stages > model.num_layers || model.num_heads % tp != 0);
  const int microbatch = pick(random, {1, 2});
  plan::Plan plan;
  plan.microbatches = pick(random, {1, 2, 3, 4, 5});
  plan.global_batch = microbatch * dp * plan.microbatches;
  std::vector<int> layers(std::size_t(stages), 1);
  for (int left = model.num_layers - stages; left > 0; --left)
    ++layers[std::size_t(pick(random, {0, 1, 2, 3}) % stages)];
  int first = 0;
  for (int count : layers) {
    plan::Stage stage;
    stage.first_layer = first;
    stage.layers = count;
    stage.devices_per_node = dp * tp;
    stage.microbatch = microbatch;
    stage.dp = dp;
    stage.tp = tp;
    stage.zero_level = pick(random, {0, 1});
    stage.ckpt_layers = std::uniform_int_distribution<int>(0, count)(random);
    stage.optim_offload_ratio = pick(random, {0, 0, 1, 2, 4}) / 4.0;
    stage.act_offload_ratio = pick(random, {0, 0, 1, 2, 4}) / 4.0;
    plan.stages.push_back(stage);
    first += count;
  }
  return plan;
}

}  // namespace brume::test
