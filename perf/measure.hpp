/// @file Plans measured side by side in one run: they take steps in turn.
#pragma once

#include <vector>

#include "base/statistics.hpp"
#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "engine/engine.hpp"

namespace brume::perf {

/// Seconds of an iteration of each plan, of its slowest rank: the median over `rounds`, in each of
/// which every plan takes one step. Its engine is alone then, as in a job, and the step before
/// warms up. Collective over `world`.
inline std::vector<double> iteration_times(const std::vector<plan::Plan>& plans,
                                           const model::Config& model, int threads,
                                           comm::Communicator& world, int rounds) {
  const data::Sampler data = data::random_tokens(model.vocab_size, model.seq_len, 100'000);
  engine::Settings settings;
  settings.steps = 2;
  settings.threads = threads;
  std::vector<std::vector<double>> times_s(plans.size());
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < plans.size(); ++i) {
      engine::Engine engine(plans[i], model, settings, world);
      engine.step(data);
      std::vector<double> slowest_s{engine.step(data).iteration_s};
      world.all_reduce(slowest_s, comm::Reduction::max);
      times_s[i].push_back(slowest_s[0]);
    }
  std::vector<double> medians_s;
  for (const std::vector<double>& values : times_s) medians_s.push_back(median(values));
  return medians_s;
}

}  // namespace brume::perf
