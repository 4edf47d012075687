/// @file Plans measured side by side in one run: they take steps in turn.
#pragma once

#include <functional>
#include <vector>

#include "base/statistics.hpp"
#include "comm/session.hpp"
#include "data/sampler.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"

namespace brume::perf {

struct Measurement {
  double iteration_s;   ///< of the slowest rank
  double device_bytes;  ///< that the engine took of a device, on the rank with most; 0 on hosts
};

/// What each plan takes: the median over `rounds`, in each of which every plan takes one step after
/// `before`. Its engine is alone then, as in a job, and the step before warms up. Collective over
/// `world`.
inline std::vector<Measurement> measure(
    const std::vector<plan::Plan>& plans, const model::Config& model, const comm::Session& session,
    comm::Communicator& world, int rounds, const std::function<void()>& before = [] {}) {
  const data::Sampler data = data::random_tokens(model.vocab_size, model.seq_len, 100'000);
  engine::Settings settings;
  settings.steps = 2;
  settings.threads = device::threads_per_rank(session.ranks_per_node());
  settings.first_core = device::first_core(session.ranks_per_node(), session.node_rank());
  std::vector<std::vector<double>> times_s(plans.size()), bytes(plans.size());
  for (int round = 0; round < rounds; ++round) {
    before();
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const std::int64_t free_bytes = device::describe_device().free_bytes;
      engine::Engine engine(plans[i], model, settings, world);
      engine.step(data);
      std::vector<double> most{engine.step(data).iteration_s,
                               double(free_bytes - device::describe_device().free_bytes)};
      world.all_reduce(most, comm::Reduction::max);
      times_s[i].push_back(most[0]);
      bytes[i].push_back(most[1]);
    }
  }
  std::vector<Measurement> medians;
  for (std::size_t i = 0; i < plans.size(); ++i)
    medians.push_back({median(times_s[i]), median(bytes[i])});
  return medians;
}

}  // namespace brume::perf
