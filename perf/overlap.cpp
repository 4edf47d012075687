/// @file The same plans with overlap on and off, interleaved in one run: what the overlap wins, and
/// how much of each channel's time is hidden.
///
/// hidden share of a channel = 1 - (T - T without it) / its time on the busiest rank
///
/// T is the time of a step in which every task takes as long as it was measured to take and begins
/// when its channel, its waits and its partners are ready; T without a channel, the same with tasks
/// of no length there. So what a transfer adds to the step counts, on whichever rank, and waiting
/// for a peer is no transfer: one between ranks lasts from when the last of them is there. What
/// transfers slow down beside them shows in the ratio only. (All ranks must see one clock.)
///
/// Not all can be hidden. The first message of a pipeline's fill and the last of its drain have
/// nothing beside them, 1 of M in each direction. And an optimizer's state is read while the first
/// microbatch runs forward: on disk it takes a large microbatch to hide that.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/session.hpp"
#include "data/sampler.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"
#include "kernels/types.hpp"
#include "plan/plan.hpp"
#include "schedule/activities.hpp"
#include "schedule/compile.hpp"

namespace {

using namespace brume;

constexpr int steps = 12;  // of which the first warms up

struct Case {
  const char* name;
  int stages, dp, tp, zero_level, microbatches;
  double weight_offload = 0.0, grad_offload = 0.0, optim_offload = 0.0, act_offload = 0.0;
  double optim_disk = 0.0, act_disk = 0.0;  ///< parts of what is offloaded
  int run_ahead = 1;
  int microbatch = 2;  ///< sequences
};

const std::vector<Case> cases{
    {"optimizer offload", 1, 1, 1, 0, 1, 0.0, 0.0, 1.0, 0.0},
    {"activation offload", 1, 1, 1, 0, 4, 0.0, 0.0, 0.0, 1.0},
    {"weight offload", 1, 1, 1, 0, 4, 1.0, 0.0, 0.0, 0.0},
    {"gradient offload", 1, 1, 1, 0, 4, 0.0, 1.0, 0.0, 0.0},
    {"all offloads", 1, 1, 1, 0, 4, 1.0, 1.0, 1.0, 1.0},
    {"quarter on disk", 1, 1, 1, 0, 4, 0.0, 0.0, 1.0, 0.0, 0.25, 0.0},
    {"optimizer on disk, b 8", 1, 1, 1, 0, 2, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1, 8},
    {"optimizer on disk, b 2", 1, 1, 1, 0, 4, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0},
    {"dp 2", 1, 2, 1, 0, 1},
    {"dp 2, ZeRO-1", 1, 2, 1, 1, 1},
    {"dp 2, ZeRO-2", 1, 2, 1, 2, 2},
    {"dp 2, ZeRO-3", 1, 2, 1, 3, 2},
    {"pp 2, 1F1B", 2, 1, 1, 0, 16},
    {"pp 2", 2, 1, 1, 0, 16, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2},
    {"pp 2, offloads", 2, 1, 1, 0, 16, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 2},
    {"dp 4, ZeRO-1", 1, 4, 1, 1, 1},
    {"dp 2 x pp 2", 2, 2, 1, 1, 8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2},
    {"dp 2 x tp 2", 1, 2, 2, 1, 2, 0.0, 0.0, 0.5, 0.0},
};

/// On a device so wide, and with so many tokens in a microbatch, that copies can hide.
model::Config bench_model() {
  if (device::on_device())
    return {.num_layers = 12,
            .hidden_size = 2048,
            .num_heads = 16,
            .ffn_size = 8192,
            .seq_len = 2048,
            .vocab_size = 50257,
            .precision = model::Precision::bf16};
  return {.num_layers = 12,
          .hidden_size = 512,
          .num_heads = 8,
          .ffn_size = 2048,
          .seq_len = 64,
          .vocab_size = 256};
}

plan::Plan plan_of(const Case& c) {
  plan::Stage stage;
  stage.microbatch = device::on_device() ? 16 * c.microbatch : c.microbatch;
  stage.dp = c.dp;
  stage.tp = c.tp;
  stage.zero_level = c.zero_level;
  stage.weight_offload_ratio = c.weight_offload;
  stage.grad_offload_ratio = c.grad_offload;
  stage.optim_offload_ratio = c.optim_offload;
  // A layer of this width computes for as long as an eighth of its activations is copied.
  stage.act_offload_ratio = device::on_device() ? c.act_offload / 8 : c.act_offload;
  stage.optim_disk_ratio = c.optim_disk;
  stage.act_disk_ratio = c.act_disk;
  // What so many sequences keep of all layers would fill a device.
  if (device::on_device() && c.microbatch > 2) stage.ckpt_layers = bench_model().num_layers;
  plan::Plan plan =
      plan::equal_stages(bench_model(), stage.microbatch * c.dp * c.microbatches, c.stages, stage);
  plan.order.run_ahead = c.run_ahead;
  return plan;
}

constexpr double never_s = -std::numeric_limits<double>::infinity();

/// An engine, and who of all ranks meets whom in its transfers.
class Measured {
 public:
  Measured(const plan::Plan& plan, const engine::Settings& settings, comm::Communicator& world)
      : world_(world),
        programs_(schedule::compile_all(plan, bench_model(), {.overlap = settings.overlap})),
        activities_(programs_, plan),
        engine_(plan, bench_model(), settings, world) {}

  /// Seconds of a step: measured, replayed; each channel at work, on the rank with most of it; what
  /// the replayed step takes less without each channel.
  std::vector<double> step(const data::Sampler& data) {
    using Clock = std::chrono::steady_clock;
    const double begin_s = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    const engine::StepMetrics metrics = engine_.step(data);
    const std::vector<double> seconds = durations(begin_s);
    std::vector<double> figures{metrics.iteration_s, replay(seconds, -1)};
    for (int channel = 0; channel < schedule::num_channels; ++channel)
      figures.push_back(busiest(seconds, channel));
    for (int channel = 0; channel < schedule::num_channels; ++channel)
      figures.push_back(figures[1] - replay(seconds, channel));
    world_.all_reduce(figures, comm::Reduction::max);
    return figures;
  }

 private:
  /// Of each activity [s], the same on all ranks: from when the last rank began until all are done.
  std::vector<double> durations(double begin_s) {
    std::vector<double> begin(activities_.members.size(), never_s), end = begin;
    const std::vector<schedule::Span>& times = engine_.last_times();
    const std::vector<int>& activity = activities_.of[std::size_t(world_.rank())];
    for (std::size_t id = 0; id < times.size(); ++id) {
      begin[std::size_t(activity[id])] = begin_s + times[id].start_s;
      end[std::size_t(activity[id])] = begin_s + times[id].end_s;
    }
    world_.all_reduce(begin, comm::Reduction::max);
    world_.all_reduce(end, comm::Reduction::max);
    for (std::size_t i = 0; i < end.size(); ++i) end[i] -= begin[i];
    return end;
  }

  int channel_of(std::size_t activity) const {
    const schedule::Member& first = activities_.members[activity][0];
    return int(programs_[std::size_t(first.program)].task(first.task).channel);
  }

  double busiest(const std::vector<double>& seconds, int channel) const {
    double most_s = 0.0;
    for (const std::vector<int>& tasks : activities_.of) {
      double sum_s = 0.0;
      for (int activity : tasks)
        if (channel_of(std::size_t(activity)) == channel) sum_s += seconds[std::size_t(activity)];
      most_s = std::max(most_s, sum_s);
    }
    return most_s;
  }

  /// The step's time when tasks of channel `absent` take none.
  double replay(const std::vector<double>& seconds, int absent) const {
    schedule::Readiness readiness(programs_, activities_);
    std::vector<double> end(seconds.size(), 0.0);
    std::vector<std::array<double, schedule::num_channels>> free_from(programs_.size());
    for (auto& channels : free_from) channels.fill(0.0);
    double last_s = 0.0;
    for (std::vector<int> ready = readiness.start(); !ready.empty();) {
      const auto activity = std::size_t(ready.back());
      ready.pop_back();
      double& end_s = end[activity];
      const auto channel = std::size_t(channel_of(activity));
      for (const auto& [program, task] : activities_.members[activity]) {
        end_s = std::max(end_s, free_from[std::size_t(program)][channel]);
        for (int other : programs_[std::size_t(program)].task(task).waits)
          end_s = std::max(
              end_s, end[std::size_t(activities_.of[std::size_t(program)][std::size_t(other)])]);
      }
      if (int(channel) != absent) end_s += seconds[activity];
      for (const schedule::Member& member : activities_.members[activity])
        free_from[std::size_t(member.program)][channel] = end_s;
      last_s = std::max(last_s, end_s);
      for (int next : readiness.finish(int(activity))) ready.push_back(next);
    }
    return last_s;
  }

  comm::Communicator& world_;
  std::vector<schedule::Program> programs_;
  schedule::Activities activities_;
  engine::Engine engine_;
};

/// Medians over the steps, figure by figure.
std::vector<double> medians(const std::vector<std::vector<double>>& rows) {
  std::vector<double> result;
  for (std::size_t f = 0; f < rows[0].size(); ++f) {
    std::vector<double> column;
    for (const auto& row : rows) column.push_back(row[f]);
    result.push_back(median(column));
  }
  return result;
}

void run(const Case& c, comm::Communicator& world, const data::Sampler& data, int threads) {
  engine::Settings settings;
  settings.steps = 100;
  settings.threads = threads;
  Measured overlapped(plan_of(c), settings, world);
  settings.overlap = false;
  Measured serial(plan_of(c), settings, world);
  std::vector<std::vector<double>> on, off;
  for (int step = 0; step < steps; ++step) {
    const std::vector<double> a = overlapped.step(data), b = serial.step(data);
    if (step == 0) continue;
    on.push_back(a);
    off.push_back(b);
  }
  if (world.rank() != 0) return;
  const std::vector<double> with = medians(on), without = medians(off);
  const double* busy_s = with.data() + 2;
  const double* added_s = busy_s + schedule::num_channels;
  std::string channels;
  for (int ch = 1; ch < schedule::num_channels; ++ch)
    if (busy_s[ch] > 1e-3 * with[0])  // the sum of losses and norms has nothing to hide behind
      channels += fmt::format(" {} {:.0f}%", schedule::name(schedule::Channel(ch)),
                              100.0 * (1.0 - added_s[ch] / busy_s[ch]));
  const double transfers_s = std::accumulate(busy_s + 1, busy_s + schedule::num_channels, 0.0);
  fmt::print("{:>5}  {:<22} {:>10} {:>10} {:>6.2f} {:>10} {:>10} {:>10} {:>10} {}\n", world.size(),
             c.name, format_seconds(without[0]), format_seconds(with[0]), without[0] / with[0],
             format_seconds(with[1]), format_seconds(busy_s[0]),
             format_seconds(*std::max_element(busy_s, busy_s + schedule::num_channels)),
             format_seconds(transfers_s), channels);
}

}  // namespace

/// @param argv  part of the names of the plans to measure; none: all
///
/// A plan for which a node or a device has too little memory is left out, and says how much.
int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines show when they are done, also in a pipe
  const std::string wanted = argc > 1 ? argv[1] : "";
  comm::Session session;
  const auto world = session.world();
  device::use_device(session.node_rank(), world->size());
  // A device's ranks use their cores for the first values of weights alone.
  const int threads = device::on_device() ? device::threads_per_rank(session.ranks_per_node()) : 1;
  const kernels::Runtime runtime(threads);
  const data::Sampler data =
      data::random_tokens(bench_model().vocab_size, bench_model().seq_len, 100'000);
  if (world->rank() == 0)
    fmt::print("{:>5}  {:<22} {:>10} {:>10} {:>6} {:>10} {:>10} {:>10} {:>10}  {}\n", "ranks",
               "plan", "off", "on", "ratio", "replayed", "compute", "bound", "transfers",
               "hidden, by channel");
  for (const Case& c : cases) {
    if (c.stages * c.dp * c.tp != world->size() ||
        std::string_view(c.name).find(wanted) == std::string_view::npos)
      continue;
    try {
      run(c, *world, data, threads);
    } catch (const comm::AgreedError& error) {
      const bool left_out = error.failure() == Failure::resource;
      if (world->rank() == 0)
        fmt::print("{:>5}  {:<22} {}: {}\n", world->size(), c.name,
                   left_out ? "left out" : "failed", error.what());
      if (!left_out) return int(error.failure());
    } catch (const std::exception& error) {
      fmt::print(stderr, "perf_overlap: {}, rank {}: {}\n", c.name, world->rank(), error.what());
      world->abort(1);
    }
  }
}
