/// @file Pipelines of which nothing but layers takes time, for the closed forms of bubbles.
#pragma once

#include "planning_samples.hpp"

namespace brume::test {

/// A machine on which nothing but layers takes time.
inline hardware::Profile layers_only() {
  hardware::Profile profile = samples::round_profile();
  profile.bytes_per_s = 1e30;
  profile.task_overhead_s = 0.0;
  profile.waits.clear();
  profile.interference.assign(profile.interference.size(), 0.0);
  for (std::int64_t elements : {1, 1 << 30})
    profile.operators.push_back({.kind = "adamw", .dims = {elements}, .forward_s = 1e-30});
  for (hardware::LinkRow& row : profile.links) row.time_s = 0.0;
  return profile;
}

/// So many layers with hardly anything before and behind them.
inline model::Config bare_model(int num_layers) {
  model::Config model = samples::small_model(num_layers, false);
  model.hidden_size = 256;
  model.ffn_size = 1024;
  model.vocab_size = 2;
  return model;
}

}  // namespace brume::test
