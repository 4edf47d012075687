#include "mist/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "units.hpp"

namespace brume::mist {
namespace {

/// What Mist's templates hold for groups that nobody measured.
constexpr Link unmeasured{4.5, 0.0};

Link copy_line(const hardware::Profile& profile, const std::string& kind) {
  for (const hardware::TransferRow& row : profile.transfers)
    if (row.kind == kind) return {row.gib_per_s, row.latency_s};
  throw Error(Failure::input,
              "profile '{}' has no '{}' in [[transfers]], which conventions mist need",
              profile.origin, kind);
}

/// Place of a size in Mist's table of links, 1 2 4 8; none for others.
int measured_row(int size) {
  const bool known = size <= 8 && std::has_single_bit(static_cast<unsigned>(size));
  return known ? std::countr_zero(static_cast<unsigned>(size)) : -1;
}

/// Slowdowns of all sets by the pairwise coefficients, in the order of Slowdowns.
Slowdowns pairwise_slowdowns(const hardware::Interference& model) {
  constexpr std::array<unsigned, 11> sets{0b1111, 0b0111, 0b1011, 0b1101, 0b1110, 0b0011,
                                          0b0101, 0b1001, 0b0110, 0b1010, 0b1100};
  Slowdowns slowdowns{};
  std::size_t next = 0;
  for (const unsigned set : sets)
    for (unsigned q = 0; q < hardware::num_resources; ++q) {
      if ((set >> q & 1U) == 0) continue;
      double& slowdown = slowdowns[next++] = 1.0;
      for (unsigned j = 0; j < hardware::num_resources; ++j)
        if (j != q && (set >> j & 1U) != 0) slowdown += model.added[q][j];
    }
  return slowdowns;
}

Strategy strategy_of(const plan::Stage& s) {
  return {s.microbatch,
          s.dp,
          s.tp,
          s.zero_level >= 3,
          s.zero_level >= 2,
          s.zero_level >= 1,
          s.weight_offload_ratio,
          s.grad_offload_ratio,
          s.optim_offload_ratio,
          s.act_offload_ratio};
}

}  // namespace

Model model_of(const model::Config& model, bool plain_attention) {
  require(model.num_experts == 0, Failure::input,
          "conventions mist count no experts, found model.num_experts = {}", model.num_experts);
  require(
      model.kv_heads() == model.num_heads && model.attention_size() == model.hidden_size,
      Failure::input,
      "conventions mist count {} heads of {} features, each with its own keys, not {} key heads "
      "of {}",
      model.num_heads, model.hidden_size / model.num_heads, model.kv_heads(), model.head_dim());
  return {model.mlp() == model::MlpKind::swiglu,
          model.family->parallel == families::ParallelBlock::always,
          !plain_attention,
          double(model.hidden_size),
          double(model.ffn_size),
          double(model.num_heads),
          double(model.seq_len),
          double(model.vocab_size)};
}

Hardware hardware_of(const hardware::Profile& profile, const hardware::Cluster& cluster) {
  Hardware mist;
  for (auto& row : mist.links) row.fill(unmeasured);
  bool measured = false;
  for (const hardware::TransferRow& row : profile.transfers) {
    const int nodes = measured_row(row.nodes), ranks = measured_row(row.ranks_per_node);
    if (row.kind != "collective" || nodes < 0 || ranks < 0) continue;
    mist.links[nodes][ranks] = {row.gib_per_s, row.latency_s};
    measured = true;
  }
  require(measured, Failure::input,
          "profile '{}' has no 'collective' in [[transfers]], which conventions mist need",
          profile.origin);
  mist.copy_in = copy_line(profile, "copy_in");
  mist.copy_out = copy_line(profile, "copy_out");
  if (profile.slowdowns.size() == mist.slowdowns.size())
    std::ranges::copy(profile.slowdowns, mist.slowdowns.begin());
  else
    mist.slowdowns = pairwise_slowdowns(profile.interference_model());
  mist.memory_gib = double(cluster.groups[0].memory_bytes) / bytes_per_gib;
  return mist;
}

Strategy ends_of(const plan::Plan& plan, bool data_parallel) {
  const plan::Stage& last = plan.stages.back();
  Strategy ends{.microbatch = last.microbatch, .dp = last.dp, .tp = last.tp};
  if (!data_parallel) return ends;
  // Mist divides without looking for a rest, so more devices than sequences give 0.
  ends.dp = last.devices();
  ends.tp = 1;
  ends.microbatch = plan.global_batch / plan.microbatches / last.devices();
  return ends;
}

Case case_of(const plan::Plan& plan, const model::Config& model, const hardware::Profile& profile,
             const hardware::Cluster& cluster, const Options& options) {
  require(!plan.stages.empty(), Failure::bug, "a plan has stages");
  require(plan.order.run_ahead == 1, Failure::input,
          "conventions mist count 1F1B only: run_ahead must be 1, found {}", plan.order.run_ahead);
  require(plan.order.is_1f1b(), Failure::input, "conventions mist count 1F1B only, found {}",
          plan::order_text(plan));
  Case mist;
  mist.model = model_of(model, options.plain_attention);
  mist.hardware = hardware_of(profile, cluster);
  mist.microbatches = plan.microbatches;
  const auto time = [&](Layer layer, int microbatch, int tp) {
    return layer_time(mist.model, mist.hardware, profile, layer, microbatch, tp);
  };
  for (const plan::Stage& s : plan.stages)
    mist.stages.push_back({s.layers, s.ckpt_layers, s.nodes, s.devices_per_node, strategy_of(s),
                           time(Layer::block, s.microbatch, s.tp)});
  mist.ends = ends_of(plan, options.ends_data_parallel);
  mist.embedding = time(Layer::embedding, mist.ends.microbatch, mist.ends.tp);
  mist.head = time(Layer::head, mist.ends.microbatch, mist.ends.tp);
  return mist;
}

analyzer::Prediction described(const Case& mist) {
  const Prediction counted = predict(mist);
  analyzer::Prediction prediction{.iteration_s = counted.iteration_s, .stages = {}};
  for (const StagePrediction& s : counted.stages)
    prediction.stages.push_back(
        // Mist counts both passes as one.
        {.time = {.first_s = s.delta_s, .forward_s = s.stable_s},
         .peak_forward_bytes = std::llround(s.peak_forward_mib * bytes_per_mib),
         .peak_backward_bytes = std::llround(s.peak_backward_mib * bytes_per_mib),
         .host_bytes = 0,
         .disk_bytes = 0});
  return prediction;
}

std::string explain(const plan::Plan& plan, const Case& mist, const hardware::Profile& profile) {
  const Prediction counted = predict(mist);
  Table table({"stage", "t", "d", "forward MiB", "backward MiB", "needed MiB", "usable MiB"});
  std::vector<price::OperatorPrice> prices;
  std::set<std::pair<int, int>> met;
  const auto add = [&](Layer layer, int microbatch, int tp) {
    for (price::OperatorPrice& p : operator_prices(mist.model, profile, layer, microbatch, tp))
      prices.push_back(std::move(p));
  };
  add(Layer::embedding, mist.ends.microbatch, mist.ends.tp);
  for (std::size_t i = 0; i < counted.stages.size(); ++i) {
    const StagePrediction& s = counted.stages[i];
    table.add({fmt::format("{}", i), fmt::format("{:.9g} s", s.stable_s),
               fmt::format("{:.9g} s", s.delta_s), fmt::format("{:.3f}", s.peak_forward_mib),
               fmt::format("{:.3f}", s.peak_backward_mib), fmt::format("{:.1f}", s.needed_mib),
               fmt::format("{:.1f}", usable_mib(mist.hardware))});
    const plan::Stage& stage = plan.stages[i];
    if (met.emplace(stage.microbatch, stage.tp).second)
      add(Layer::block, stage.microbatch, stage.tp);
  }
  add(Layer::head, mist.ends.microbatch, mist.ends.tp);
  return fmt::format("{}{}", table.text(), price::price_table(prices));
}

}  // namespace brume::mist
