/// @file The same plans with overlap on and off, interleaved in one run: what the overlap wins.
///
/// hidden share = 1 - (time with overlap - time of computation alone) / sum of transfer times
///
/// Computation alone and transfers are the busy times of the run without overlap, where nothing
/// disturbs them; the bound is the busiest channel's. Per channel the table shows which share of
/// its time computation ran beside it.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "comm/session.hpp"
#include "data/sampler.hpp"
#include "engine/engine.hpp"
#include "kernels/types.hpp"
#include "plan/plan.hpp"

namespace {

using namespace brume;

constexpr int steps = 12;  // of which the first warms up

struct Case {
  const char* name;
  int stages, dp, tp, zero_level, microbatches;
  double weight_offload = 0.0, grad_offload = 0.0, optim_offload = 0.0, act_offload = 0.0;
  double optim_disk = 0.0, act_disk = 0.0;  ///< parts of what is offloaded
};

const std::vector<Case> cases{
    {"optimizer offload", 1, 1, 1, 0, 1, 0.0, 0.0, 1.0, 0.0},
    {"activation offload", 1, 1, 1, 0, 4, 0.0, 0.0, 0.0, 1.0},
    {"weight offload", 1, 1, 1, 0, 4, 1.0, 0.0, 0.0, 0.0},
    {"gradient offload", 1, 1, 1, 0, 4, 0.0, 1.0, 0.0, 0.0},
    {"all offloads", 1, 1, 1, 0, 4, 1.0, 1.0, 1.0, 1.0},
    {"optimizer on disk", 1, 1, 1, 0, 4, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0},
    {"dp 2", 1, 2, 1, 0, 1},
    {"dp 2, ZeRO-1", 1, 2, 1, 1, 1},
    {"dp 2, ZeRO-2", 1, 2, 1, 2, 2},
    {"dp 2, ZeRO-3", 1, 2, 1, 3, 2},
    {"pp 2", 2, 1, 1, 0, 4},
    {"pp 2, offloads", 2, 1, 1, 0, 4, 0.0, 0.0, 1.0, 1.0},
    {"dp 4, ZeRO-1", 1, 4, 1, 1, 1},
    {"dp 2 x pp 2", 2, 2, 1, 1, 4},
    {"dp 2 x tp 2", 1, 2, 2, 1, 2, 0.0, 0.0, 0.5, 0.0},
};

model::Config bench_model() {
  return {.num_layers = 12,
          .hidden_size = 512,
          .num_heads = 8,
          .ffn_size = 2048,
          .seq_len = 64,
          .vocab_size = 256};
}

plan::Plan plan_of(const Case& c) {
  plan::Stage stage;
  stage.microbatch = 2;
  stage.dp = c.dp;
  stage.tp = c.tp;
  stage.zero_level = c.zero_level;
  stage.weight_offload_ratio = c.weight_offload;
  stage.grad_offload_ratio = c.grad_offload;
  stage.optim_offload_ratio = c.optim_offload;
  stage.act_offload_ratio = c.act_offload;
  stage.optim_disk_ratio = c.optim_disk;
  stage.act_disk_ratio = c.act_disk;
  return plan::equal_stages(bench_model(), stage.microbatch * c.dp * c.microbatches, c.stages,
                            stage);
}

/// A step's figures of the slowest rank, one number each.
std::vector<double> slowest(comm::Communicator& world, const engine::StepMetrics& m) {
  std::vector<double> figures{m.iteration_s};
  figures.insert(figures.end(), m.busy_s.begin(), m.busy_s.end());
  figures.insert(figures.end(), m.hidden_s.begin(), m.hidden_s.end());
  world.all_reduce(figures, comm::Reduction::max);
  return figures;
}

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

void run(const Case& c, comm::Communicator& world, int threads, const data::Sampler& data) {
  engine::Settings settings;
  settings.steps = 100;
  settings.threads = threads;
  engine::Engine overlapped(plan_of(c), bench_model(), settings, world);
  settings.overlap = false;
  engine::Engine serial(plan_of(c), bench_model(), settings, world);
  std::vector<std::vector<double>> on, off;
  for (int step = 0; step < steps; ++step) {
    const std::vector<double> a = slowest(world, overlapped.step(data)),
                              b = slowest(world, serial.step(data));
    if (step == 0) continue;
    on.push_back(a);
    off.push_back(b);
  }
  if (world.rank() != 0) return;
  const std::vector<double> with = medians(on), without = medians(off);
  double transfers_s = 0.0, bound_s = without[1];
  std::string channels;
  for (int ch = 1; ch < schedule::num_channels; ++ch) {
    const auto i = std::size_t(ch);
    transfers_s += without[1 + i];
    bound_s = std::max(bound_s, without[1 + i]);
    if (with[1 + i] > 0.0)
      channels += fmt::format(" {} {:.0f}%", schedule::name(schedule::Channel(ch)),
                              100.0 * with[1 + schedule::num_channels + i] / with[1 + i]);
  }
  const double hidden = 1.0 - (with[0] - without[1]) / transfers_s;
  fmt::print("{:>5}  {:<20} {:>10} {:>10} {:>6.2f} {:>10} {:>10} {:>10} {:>7.0f}% {}\n",
             world.size(), c.name, format_seconds(without[0]), format_seconds(with[0]),
             without[0] / with[0], format_seconds(without[1]), format_seconds(bound_s),
             format_seconds(transfers_s), 100.0 * hidden, channels);
}

}  // namespace

int main() {
  comm::Session session;
  const auto world = session.world();
  const kernels::Runtime runtime(1);
  const data::Sampler data =
      data::random_tokens(bench_model().vocab_size, bench_model().seq_len, 100'000);
  if (world->rank() == 0)
    fmt::print("{:>5}  {:<20} {:>10} {:>10} {:>6} {:>10} {:>10} {:>10} {:>8}  {}\n", "ranks",
               "plan", "off", "on", "ratio", "compute", "bound", "transfers", "hidden",
               "time beside computation, by channel");
  for (const Case& c : cases)
    if (c.stages * c.dp * c.tp == world->size()) run(c, *world, 1, data);
}
