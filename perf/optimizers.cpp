/// @file A training step with each optimizer, and of Muon under each way to cut matrices: predicted
/// and measured in one run.
///
///   mpirun -n 1|2|4 perf_plans optimizers [sequences [rounds]]
///
/// Prints predicted and measured step time and the memory of a rank's buffers. AdamW is the
/// baseline.
#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/session.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"
#include "measure.hpp"
#include "planned.hpp"
#include "plans.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"

namespace {

using namespace brume;

model::Config bench_model(const model::OptimizerRow& optimizer, Moments moments = Moments::fp32) {
  return {.family = &model::family("llama"),
          .num_layers = 4,
          .hidden_size = 512,
          .num_heads = 8,
          .num_kv_heads = 4,
          .ffn_size = 1408,
          .seq_len = 512,
          .vocab_size = 4096,
          .qkv_bias = false,
          .linear_bias = false,
          .optimizer = &optimizer,
          .moments = moments};
}

/// Data parallelism with and without ZeRO 1, and tensor parallelism.
std::vector<plan::Plan> plans(const model::Config& model, int sequences, int ranks) {
  const auto plan = [&](plan::Stage stage) {
    stage.microbatch = sequences / stage.dp;
    return plan::equal_stages(model, sequences, 1, stage);
  };
  std::vector<plan::Plan> all{plan({.dp = ranks})};
  if (ranks > 1) all.push_back(plan({.dp = ranks, .zero_level = 1}));
  if (ranks > 1) all.push_back(plan({.tp = ranks}));
  return all;
}

void run(comm::Session& session, comm::Communicator& world, int sequences, int rounds) {
  const kernels::Runtime runtime(device::threads_per_rank(session.ranks_per_node()));
  profiler::Shapes shapes{.splits = {}, .groups = {}};
  for (const plan::Plan& plan : plans(bench_model(model::adamw), sequences, world.size()))
    shapes.splits.push_back(plan.stages[0].split());
  for (int size = 2; size <= world.size(); size *= 2) shapes.groups.push_back(size);
  std::vector<hardware::Profile> profiles;
  for (int round = 0; round < rounds; ++round)
    profiles.push_back(perf::measured_profile(session, world, bench_model(model::adamw), shapes));
  const hardware::Profile profile = hardware::medians(profiles);
  Table table({"optimizer", "split", "predicted", "measured", "predicted / measured", "of adamw",
               "memory of a rank"});
  std::vector<double> baseline_s;
  using Kind = std::pair<const model::OptimizerRow*, Moments>;
  const Kind adamw{&model::adamw, Moments::fp32};
  for (const auto& kind : {adamw,
                           Kind{&model::adamw, Moments::bf16},
                           {&model::adamw, Moments::fp8},
                           {&model::lion, Moments::fp32},
                           {&model::sgd, Moments::fp32},
                           {&model::muon, Moments::fp32}}) {
    const auto& [row, moments] = kind;
    const model::Config model = bench_model(*row, moments);
    const std::vector<plan::Plan> all = plans(model, sequences, world.size());
    const std::vector<perf::Measurement> measured =
        perf::measure(all, model, session, world, rounds);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (kind == adamw) baseline_s.push_back(measured[i].iteration_s);
      const plan::Stage& stage = all[i].stages[0];
      const auto programs = schedule::compile_all(all[i], model);
      const double predicted_s = schedule::simulate(programs, all[i], model, profile).iteration_s,
                   measured_s = measured[i].iteration_s;
      table.add(
          {moments == Moments::fp32 ? row->name : fmt::format("{}, {}", row->name, name(moments)),
           fmt::format("dp {} tp {} ZeRO {}", stage.dp, stage.tp, stage.zero_level),
           format_seconds(predicted_s), format_seconds(measured_s),
           fmt::format("{:.3f}", predicted_s / measured_s),
           fmt::format("{:.3f}", measured_s / baseline_s[i]),
           format_bytes(double(programs[0].arena_bytes[0]))});
    }
  }
  if (world.rank() == 0)
    fmt::print("{} sequences of 512 tokens on {} rank{}\n{}", sequences, world.size(),
               world.size() == 1 ? "" : "s", table.text());
}

}  // namespace

void brume::perf::optimizers(comm::Session& session, comm::Communicator& world,
                             std::span<const int> numbers) {
  run(session, world, number(numbers, 0, 4), number(numbers, 1, 3));
}
