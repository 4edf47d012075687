#include "overlap.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/log.hpp"
#include "device/channels.hpp"
#include "device/device.hpp"
#include "hardware/interference_fit.hpp"

namespace brume::profiler {
namespace {

using hardware::num_resources;
using PerResource = std::array<double, num_resources>;
using Counts = std::array<int, num_resources>;

constexpr int compute = 0, communication = 1, copy_in = 2, copy_out = 3;
constexpr double co_run_window_s = 40e-3;  // many time slices of ranks that share a core
constexpr double most_co_run_calls = 10000.0;
constexpr int rounds = 3;

/// One channel a resource, each with a task of its own kind to repeat. Collective over the ranks.
class Streams {
 public:
  Streams(Bench& bench, const Loads& loads);

  bool has(int resource) const { return tasks_[resource] != nullptr; }

  /// Starts so many tasks of each resource at once.
  /// @return  [s] until each was done on all ranks; 0 for those without tasks
  PerResource run(const Counts& counts);

 private:
  Bench& bench_;
  Operands product_, reduced_, on_device_, on_host_{device::Tier::host};
  std::array<Work, num_resources> tasks_;
  device::Channels channels_{
      {"compute", "collective", "h2d", "d2h"}, {}, make_streams(num_resources)};
};

Work make_copy(std::int64_t bytes, Operands& from_memory, Operands& to_memory) {
  const std::int64_t elements = bytes / std::int64_t(sizeof(float));
  const std::span<float> from = from_memory.values<float>(elements);
  const std::span<float> to = to_memory.values<float>(elements);
  return [=] { device::copy(to.data(), from.data(), std::int64_t(from.size_bytes())); };
}

Streams::Streams(Bench& bench, const Loads& loads) : bench_(bench) {
  tasks_[compute] = make_product(loads.product, product_);
  tasks_[copy_in] = make_copy(loads.copy_bytes, on_host_, on_device_);
  tasks_[copy_out] = make_copy(loads.copy_bytes, on_device_, on_host_);
  if (loads.group != nullptr) {
    const std::span<float> values =
        reduced_.zeros(loads.reduce_bytes / std::int64_t(sizeof(float)));
    tasks_[communication] = [values, group = loads.group] { group->all_reduce(values); };
  }
  channels_.enqueue(compute, [&bench] { bench.compute_here(); });
  channels_.synchronize();
}

PerResource Streams::run(const Counts& counts) {
  PerResource done_s{};
  std::array<Span, num_resources> spans;
  bench_.world().barrier();
  const double start_s = now_s();
  channels_.start_clock();
  channels_.run([&] {
    for (int q = 0; q < num_resources; ++q)
      if (counts[q] > 0)
        channels_.enqueue(
            q,
            [&, q] {
              for (int i = 0; i < counts[q]; ++i) tasks_[q]();
            },
            &spans[q]);
  });
  for (int q = 0; q < num_resources; ++q) done_s[q] = start_s + spans[q].end_s;
  bench_.agree(start_s, done_s);
  for (int q = 0; q < num_resources; ++q)
    if (counts[q] == 0) done_s[q] = 0.0;
  return done_s;
}

/// Calls of each resource's task that fill the window; 0 where it has none.
Counts repetitions(Streams& streams) {
  Counts calls{};
  for (int q = 0; q < num_resources; ++q) {
    if (!streams.has(q)) continue;
    Counts few{};
    few[q] = 3;
    streams.run(few);
    const double once_s = streams.run(few)[q] / few[q];
    calls[q] = int(std::clamp(std::ceil(co_run_window_s / once_s), 1.0, most_co_run_calls));
  }
  return calls;
}

/// Every set of resources at once, and each of them alone: all in turn, so that what slows the
/// machine for a while is in one round only.
std::vector<hardware::CoRun> run_together(Streams& streams) {
  constexpr unsigned sets = 1u << num_resources;
  const Counts calls = repetitions(streams);
  std::array<std::array<std::vector<double>, num_resources>, sets> times_s;
  for (int round = 0; round < rounds; ++round)
    for (unsigned set = 1; set < sets; ++set) {
      Counts together{};
      for (int q = 0; q < num_resources; ++q) together[q] = set >> q & 1u ? calls[q] : 0;
      const PerResource done_s = streams.run(together);
      for (int q = 0; q < num_resources; ++q) times_s[set][q].push_back(done_s[q]);
    }
  std::vector<hardware::CoRun> co_runs;
  for (unsigned set = 1; set < sets; ++set) {
    if (std::popcount(set) < 2) continue;
    hardware::CoRun co_run;
    bool all = true;
    for (int q = 0; q < num_resources; ++q) {
      if (!(set >> q & 1u)) continue;
      co_run.alone_s[q] = median(times_s[1u << q][q]);
      co_run.done_s[q] = median(times_s[set][q]);
      all = all && calls[q] > 0;
    }
    co_run.together_s = std::ranges::max(co_run.done_s);
    if (all) co_runs.push_back(co_run);
  }
  return co_runs;
}

}  // namespace

double measure_hand_over(Bench& bench) {
  constexpr int rounds = 100;
  device::Channels channels({"first", "second"}, {}, make_streams(2));
  const auto hand_over = [&](int from, int to) {
    channels.enqueue(from, [] {});
    channels.wait(to, channels.record(from));
  };
  const auto time_s = bench.seconds("hand-over of tasks", [&] {
    for (int i = 0; i < rounds; ++i) {
      hand_over(0, 1);
      hand_over(1, 0);
    }
    channels.synchronize();
  });
  return time_s.value_or(0.0) / (2 * rounds);
}

std::vector<double> measure_interference(Bench& bench, const Loads& loads) {
  std::vector<double> added(num_resources * num_resources, 0.0);
  std::unique_ptr<Streams> streams;
  if (!bench.prepared("interference", [&] { streams = std::make_unique<Streams>(bench, loads); }))
    return added;
  const hardware::Interference model = hardware::fit_interference(run_together(*streams));
  for (int q = 0; q < num_resources; ++q)
    std::ranges::copy(model.added[q], added.begin() + q * num_resources);
  return added;
}

}  // namespace brume::profiler
