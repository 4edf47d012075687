/// @file Ways in which ranks share one long sequence: predicted and measured in one run.
///
///   mpirun -n 1|2|4 perf_plans contexts [tokens [rounds]]
///
/// Prints for each split the predicted and the measured step time, and the memory of a rank's
/// buffers. One rank is the baseline of efficiency.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "comm/session.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"
#include "measure.hpp"
#include "plan/shapes.hpp"
#include "planned.hpp"
#include "plans.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"

namespace {

using namespace brume;

model::Config bench_model(int tokens) {
  return {.family = &model::family("llama"),
          .num_layers = 2,
          .hidden_size = 512,
          .num_heads = 8,
          .num_kv_heads = 4,
          .ffn_size = 1408,
          .seq_len = tokens,
          .vocab_size = 4096,
          .qkv_bias = false,
          .linear_bias = false};
}

/// All products of cp and tp.
std::vector<plan::Plan> plans(const model::Config& model, int ranks) {
  std::vector<plan::Plan> all;
  for (int tp = 1; tp <= ranks; ++tp)
    if (ranks % tp == 0 && plan::context_fault(model, {.tp = tp, .cp = ranks / tp}).empty())
      all.push_back(plan::equal_stages(model, 1, 1, {.cp = ranks / tp, .tp = tp}));
  return all;
}

void run(comm::Session& session, comm::Communicator& world, int tokens, int rounds) {
  const model::Config model = bench_model(tokens);
  const kernels::Runtime runtime(device::threads_per_rank(session.ranks_per_node()));
  const std::vector<plan::Plan> all = plans(model, world.size());
  profiler::Shapes shapes{.splits = {}, .groups = {}};
  for (const plan::Plan& plan : all) shapes.splits.push_back(plan.stages[0].split());
  for (int size = 2; size <= world.size(); size *= 2) shapes.groups.push_back(size);
  std::vector<hardware::Profile> profiles;
  const std::vector<perf::Measurement> measured = perf::measure(
      all, model, session, world, rounds,
      [&] { profiles.push_back(perf::measured_profile(session, world, model, shapes)); });
  if (world.rank() != 0) return;
  const hardware::Profile profile = hardware::medians(profiles);
  Table table({"split", "predicted", "measured", "predicted / measured", "memory of a rank"});
  for (std::size_t i = 0; i < all.size(); ++i) {
    const plan::Stage& stage = all[i].stages[0];
    const auto programs = schedule::compile_all(all[i], model);
    const double predicted_s = schedule::simulate(programs, all[i], model, profile).iteration_s;
    table.add({fmt::format("cp {} tp {}", stage.cp, stage.tp), format_seconds(predicted_s),
               format_seconds(measured[i].iteration_s),
               fmt::format("{:.3f}", predicted_s / measured[i].iteration_s),
               format_bytes(double(programs[0].arena_bytes[0]))});
  }
  fmt::print("One sequence of {} tokens on {} rank{}\n{}", tokens, world.size(),
             world.size() == 1 ? "" : "s", table.text());
}

}  // namespace

void brume::perf::contexts(comm::Session& session, comm::Communicator& world,
                           std::span<const int> numbers) {
  run(session, world, number(numbers, 0, 16384), number(numbers, 1, 3));
}
