/// @file Pipelines of which nothing but layers takes time, for the closed forms of bubbles.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "planning_samples.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "schedule/steady.hpp"

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

/// Expects that the first microbatches tell the time of random plans with many of them.
/// @param plan_for  makes a plan for a model
/// @param most_far  plans that may be off by more than 2 %; none by more than 4 %
inline void expect_steady(int plans, int most_far, const auto& plan_for) {
  const hardware::Profile profile = samples::round_profile(8);
  int far = 0;
  for (int i = 0; i < plans; ++i) {
    model::Config model = samples::small_model(2, i % 2 == 0);
    model.hidden_size = 256;
    model.ffn_size = 1024;
    plan::Plan plan = plan_for(model);
    plan.microbatches = 60 + i;
    plan.global_batch = plan.stages[0].microbatch * plan.stages[0].dp * plan.microbatches;
    const double whole_s = schedule::simulate(schedule::compile_all(plan, model, {.tight = false}),
                                              plan, model, profile)
                               .iteration_s;
    const double off = std::abs(schedule::steady_time(plan, model, profile) / whole_s - 1.0);
    EXPECT_LE(off, 0.04) << plan::text(plan);
    far += off > 0.02;
  }
  EXPECT_LE(far, most_far);
}

}  // namespace brume::test
