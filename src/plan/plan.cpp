#include "plan/plan.hpp"

#include <fmt/format.h>

#include <tuple>

#include "base/error.hpp"
#include "base/text.hpp"

namespace brume::plan {
namespace {

auto members(const Stage& s) {
  return std::tie(s.first_layer, s.layers, s.nodes, s.devices_per_node, s.microbatch, s.dp, s.tp,
                  s.zero_level, s.ckpt_layers, s.weight_offload_ratio, s.grad_offload_ratio,
                  s.optim_offload_ratio, s.act_offload_ratio);
}

}  // namespace

bool operator==(const Stage& a, const Stage& b) { return members(a) == members(b); }

bool operator==(const Plan& a, const Plan& b) {
  return std::tie(a.version, a.global_batch, a.microbatches, a.stages) ==
         std::tie(b.version, b.global_batch, b.microbatches, b.stages);
}

int Plan::devices() const {
  int sum = 0;
  for (const Stage& stage : stages) sum += stage.devices();
  return sum;
}

std::string table(const Plan& plan) {
  Table table({"stage", "layers", "nodes x devices", "b", "dp", "tp", "ZeRO", "recomputed",
               "optimizer offload", "activation offload"});
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& s = plan.stages[std::size_t(i)];
    table.add({fmt::format("{}", i),
               fmt::format("{}-{}", s.first_layer, s.first_layer + s.layers - 1),
               fmt::format("{} x {}", s.nodes, s.devices_per_node), fmt::format("{}", s.microbatch),
               fmt::format("{}", s.dp), fmt::format("{}", s.tp), fmt::format("{}", s.zero_level),
               fmt::format("{}", s.ckpt_layers), fmt::format("{:g}", s.optim_offload_ratio),
               fmt::format("{:g}", s.act_offload_ratio)});
  }
  return fmt::format("{}global batch {} = b x dp x {} microbatches\n", table.text(),
                     plan.global_batch, plan.microbatches);
}

Place place(const Plan& plan, int rank) {
  int first = 0;
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& stage = plan.stages[std::size_t(i)];
    const int within = rank - first;
    if (within >= 0 && within < stage.devices())
      return {.stage = i, .dp_rank = within / stage.tp, .tp_rank = within % stage.tp};
    first += stage.devices();
  }
  throw Error(Failure::bug, "rank {} is not one of the plan's {}", rank, plan.devices());
}

int rank_of(const Plan& plan, int stage, int dp_rank, int tp_rank) {
  int first = 0;
  for (int i = 0; i < stage; ++i) first += plan.stages[std::size_t(i)].devices();
  return first + dp_rank * plan.stages[std::size_t(stage)].tp + tp_rank;
}

BlockRange block_range(const Plan& plan, int stage) {
  const Stage& s = plan.stages[std::size_t(stage)];
  const bool last = stage + 1 == plan.num_stages();
  // Layer k is block k + 1; the embedding goes with the first stage, the head with the last.
  return {.first = stage == 0 ? 0 : s.first_layer + 1,
          .last = s.first_layer + s.layers + (last ? 1 : 0)};
}

}  // namespace brume::plan
