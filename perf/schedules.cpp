/// @file Orders of a pipeline side by side: what each takes of 1F1B's time, predicted and measured.
///
///   mpirun -n 2|4 perf_plans schedules [rounds]
///
/// One rank a stage, with few microbatches (2 S) and with many (8 S). In each round (3 of them, if
/// not told otherwise) the machine is profiled, and each plan takes a step. `in theory` is (G + (S
/// - 1) / v) / (G + S - 1), of split backwards what plan::RankPasses says, over (G + S - 1) (F
/// + B + W), by a layer's prices: equal chunks, nothing for messages, embedding and head.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "comm/session.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"
#include "measure.hpp"
#include "planned.hpp"
#include "plans.hpp"
#include "price/price.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"

namespace {

using namespace brume;

model::Config bench_model() {
  if (device::on_device())
    return {.num_layers = 24,
            .hidden_size = 2048,
            .num_heads = 16,
            .ffn_size = 8192,
            .seq_len = 2048,
            .vocab_size = 50257,
            .precision = model::Precision::bf16};
  return {.num_layers = 24,
          .hidden_size = 256,
          .num_heads = 8,
          .ffn_size = 1024,
          .seq_len = 128,
          .vocab_size = 256};
}

/// 1F1B first.
std::vector<plan::Plan> orders(const model::Config& model, int size, int microbatches) {
  std::vector<plan::Plan> all;
  for (const int chunks : {1, 2, 3})
    for (const int run_ahead : {1, 2}) {
      plan::Plan& plan = all.emplace_back(
          plan::equal_stages(model, microbatches, size * chunks, {.microbatch = 1}));
      plan.order.chunks = chunks;
      plan.order.run_ahead = run_ahead;
    }
  for (const int run_ahead : {1, 2}) {
    plan::Plan& split = all.emplace_back(all.front());
    split.order.zero_bubble = 1;
    split.order.run_ahead = run_ahead;
  }
  return all;
}

/// What a forward and a layer's gradients of weights take of its passes.
struct Shares {
  double forward, weights;
};
Shares shares(const model::Config& model, const hardware::Profile& profile) {
  double all_s = 0.0, forward_s = 0.0, weights_s = 0.0;
  for (const model::SegmentKind kind : model::segment_kinds(model, model::BlockKind::layer)) {
    const auto seconds = [&](price::Pass pass) {
      return price::segment_s(model, profile, kind, pass, {});
    };
    weights_s += seconds(price::Pass::backward_weights);
    forward_s += seconds(price::Pass::forward);
    all_s += seconds(price::Pass::forward) + seconds(price::Pass::backward);
  }
  return {forward_s / all_s, weights_s / all_s};
}

/// In passes of a microbatch over all layers of a rank.
double theory(const plan::Plan& plan, const Shares& of) {
  const int others = plan.pipeline_size() - 1;
  if (!plan.order.zero_bubble) return plan.microbatches + double(others) / plan.order.chunks;
  const int more = plan.order.run_ahead > 1 ? std::min(plan.microbatches - others - 1, others) : 0;
  return plan.microbatches +
         std::max(others * of.forward, others * (1.0 - 2.0 * of.weights) - more * of.weights);
}

/// Prints the plans of as many microbatches, 1F1B first.
void print(std::span<const plan::Plan> plans, std::span<const perf::Measurement> measured,
           const model::Config& model, const hardware::Profile& profile) {
  const Shares of = shares(model, profile);
  Table table({"S", "G", "chunks", "run_ahead", "zero bubble", "formula", "simulated", "measured",
               "simulated / measured", "of 1F1B: in theory", "simulated", "measured"});
  double first_simulated_s = 0.0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const plan::Plan& plan = plans[i];
    const double simulated_s =
        schedule::simulate(schedule::compile_all(plan, model), plan, model, profile).iteration_s;
    if (i == 0) first_simulated_s = simulated_s;
    table.add({fmt::format("{}", plan.pipeline_size()), fmt::format("{}", plan.microbatches),
               fmt::format("{}", plan.order.chunks), fmt::format("{}", plan.order.run_ahead),
               plan.order.zero_bubble ? fmt::format("ZB-H{}", plan.order.run_ahead) : "",
               format_seconds(analyzer::analyze(plan, model, profile).iteration_s),
               format_seconds(simulated_s), format_seconds(measured[i].iteration_s),
               fmt::format("{:.3f}", simulated_s / measured[i].iteration_s),
               fmt::format("{:.3f}", theory(plan, of) / theory(plans[0], of)),
               fmt::format("{:.3f}", simulated_s / first_simulated_s),
               fmt::format("{:.3f}", measured[i].iteration_s / measured[0].iteration_s)});
  }
  fmt::print("{}\n", table.text());
}

void run(comm::Session& session, comm::Communicator& world, int rounds) {
  const model::Config model = bench_model();
  const kernels::Runtime runtime(device::threads_per_rank(session.ranks_per_node()));
  std::vector<plan::Plan> all;
  for (const int times : {2, 8})
    std::ranges::copy(orders(model, world.size(), times * world.size()), std::back_inserter(all));
  std::vector<hardware::Profile> profiles;
  const std::vector<perf::Measurement> measured = perf::measure(
      all, model, session, world, rounds,
      [&] { profiles.push_back(perf::measured_profile(session, world, model, {1})); });
  if (world.rank() != 0) return;
  const hardware::Profile profile = hardware::medians(profiles);
  const std::size_t half = all.size() / 2;
  for (const std::size_t first : {std::size_t{0}, half})
    print(std::span(all).subspan(first, half), std::span(measured).subspan(first, half), model,
          profile);
}

}  // namespace

void brume::perf::schedules(comm::Session& session, comm::Communicator& world,
                            std::span<const int> numbers) {
  run(session, world, number(numbers, 0, 3));
}
