/// @file The verb `selftest`: whether a cluster computes what it should, and how fast.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "all_ranks.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "data/sampler.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"
#include "kernels/types.hpp"
#include "plan/shapes.hpp"
#include "planning.hpp"
#include "profiler/profiler.hpp"
#include "profiles.hpp"
#include "schedule/compile.hpp"
#include "selftest_collectives.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

/// A model small enough for seconds on any machine, large enough that computation shows.
constexpr int steps = 10, microbatch = 2;

model::Config test_model() {
  return {.num_layers = 4,
          .hidden_size = 256,
          .num_heads = 8,
          .ffn_size = 1024,
          .seq_len = 64,
          .vocab_size = 1024};
}

// --- speed ---------------------------------------------------------------------------------------

/// A transfer, in its largest measured size.
struct Transfer {
  std::string what;
  double bytes, measured_s, profile_s;  ///< profile_s: 0 without a profile
};

std::vector<Transfer> transfers(const hardware::Profile& measured,
                                const std::optional<hardware::Profile>& profile) {
  std::vector<Transfer> all;
  const auto add = [&](const Transfer& next) {
    const auto smaller = std::ranges::find(all, next.what, &Transfer::what);
    smaller == all.end() ? all.push_back(next) : void(*smaller = next);
  };
  for (const hardware::LinkRow& row : measured.links) {
    const auto bytes = double(row.bytes);
    add({fmt::format("{}, {} x {} ranks", name(row.kind), row.nodes, row.ranks_per_node), bytes,
         row.time_s,
         profile ? hardware::link_time(*profile, row.kind, row.nodes, row.ranks_per_node, bytes)
                 : 0.0});
  }
  for (const hardware::CopyRow& row : measured.copies)
    add({name(row.kind), double(row.bytes), row.time_s,
         profile ? hardware::copy_time(*profile, row.kind, double(row.bytes)) : 0.0});
  return all;
}

/// Cores, links and copies as measured now, beside what `profile` says.
void print_speed(const hardware::Profile& measured,
                 const std::optional<hardware::Profile>& profile) {
  Table table({"", "size", "measured", "profile", "measured / profile"});
  const auto add = [&](const std::string& what, const std::string& size, double now, double then,
                       const char* unit) {
    table.add({what, size, format_count(now) + unit, profile ? format_count(then) + unit : "",
               profile ? fmt::format("{:.2f}", now / then) : ""});
  };
  add("matrix product", "", measured.flops_per_s, profile ? profile->flops_per_s : 0.0, "FLOP/s");
  for (const Transfer& t : transfers(measured, profile))
    add(t.what, format_bytes(t.bytes), t.bytes / t.measured_s, t.bytes / t.profile_s, "B/s");
  fmt::print("{}\n", table.text());
}

hardware::Profile measure(comm::Communicator& world, int ranks_per_node,
                          const hardware::Cluster& cluster, const model::Config& model) {
  profiler::Shapes shapes{.splits = {{.tp = 1, .microbatch = microbatch}}, .groups = {}};
  for (int ranks = 2; ranks <= world.size(); ++ranks) {
    if (world.size() % ranks != 0) continue;
    shapes.groups.push_back(ranks);
    if (ranks <= ranks_per_node && model.num_heads % ranks == 0)
      shapes.splits.insert(shapes.splits.end(), {{.tp = ranks, .microbatch = microbatch},
                                                 {.microbatch = 1, .cp = ranks}});
  }
  return profiler::measure(
      world,
      profiler::key(world, ranks_per_node, device::threads_per_rank(ranks_per_node), model, shapes),
      cluster, model, shapes);
}

// --- plans ---------------------------------------------------------------------------------------

struct Named {
  std::string name;
  plan::Plan plan;
};

plan::Plan test_plan(const model::Config& model, int ranks, int stages, int tp) {
  plan::Stage stage;
  stage.microbatch = microbatch;
  stage.tp = tp;
  stage.dp = ranks / (stages * tp);
  return plan::equal_stages(model, 2 * microbatch * ranks, stages, stage);
}

/// Plans for each way to split alone, then for everything at once that these ranks allow.
std::vector<Named> test_plans(const model::Config& model, int ranks, int ranks_per_node) {
  const auto largest = [&](int number, int limit) {
    for (int d = std::min(number, limit); d > 1; --d)
      if (number % d == 0 && ranks % d == 0) return d;
    return 1;
  };
  const int tp = largest(model.num_heads, ranks_per_node),
            stages = largest(model.num_layers, ranks);
  std::vector<Named> plans{{"data", test_plan(model, ranks, 1, 1)}};
  if (tp > 1) plans.push_back({"tensor", test_plan(model, ranks, 1, tp)});
  if (plan::context_fault(model, {.cp = tp}).empty() && tp > 1) {
    plan::Plan shared = test_plan(model, ranks, 1, 1);
    plan::Stage& stage = shared.stages[0];
    stage.dp /= tp, stage.cp = tp, stage.microbatch = 1;
    shared.microbatches = shared.global_batch / stage.dp;
    plans.push_back({"context", shared});
    stage.gather_keys = 1;
    if (plan::context_fault(model, stage.split()).empty()) plans.push_back({"keys", shared});
  }
  if (stages > 1) plans.push_back({"pipeline", test_plan(model, ranks, stages, 1)});
  plan::Plan all = test_plan(model, ranks, 1, 1);
  for (plan::Stage& stage : all.stages) {
    stage.zero_level = stage.dp > 1 ? 3 : 0;
    stage.ckpt_layers = stage.layers / 2;
    stage.weight_offload_ratio = stage.grad_offload_ratio = stage.optim_offload_ratio =
        stage.act_offload_ratio = 0.5;
  }
  plans.push_back({"sharded, recomputed, offloaded", all});
  if (ranks > 2 && ranks % 2 == 0) {
    for (plan::Stage& stage : all.stages) stage.replicas = 2;
    plans.push_back({"sharded in two replicas", all});
  }
  return plans;
}

struct Trained {
  std::vector<double> losses, norms;
  double iteration_s = 0.0;  ///< of the slowest rank, median
};

Trained train(const plan::Plan& plan, const model::Config& model, const data::Sampler& data,
              int threads, int first_core, comm::Communicator& world) {
  engine::Settings settings;
  settings.steps = steps;
  settings.optimizer.lr = 1e-3;
  settings.threads = threads;
  settings.first_core = first_core;
  engine::Engine engine(plan, model, settings, world);
  Trained trained;
  std::vector<double> times_s;
  for (int step = 0; step < steps; ++step) {
    const engine::StepMetrics metrics = engine.step(data);
    std::vector<double> slowest_s{metrics.iteration_s};
    world.all_reduce(slowest_s, comm::Reduction::max);
    times_s.push_back(slowest_s[0]);
    trained.losses.push_back(metrics.loss);
    trained.norms.push_back(metrics.grad_norm);
  }
  trained.iteration_s = median({times_s.begin() + 1, times_s.end()});
  return trained;
}

/// Trains by each plan what one rank trains alone. @throws AgreedError when they differ
void check_plans(comm::Session& session, comm::Communicator& world, const model::Config& model,
                 const hardware::Profile& profile) {
  const int ranks_per_node = session.ranks_per_node(),
            threads = device::threads_per_rank(ranks_per_node);
  const int core = device::first_core(ranks_per_node, session.node_rank());
  const kernels::Runtime runtime(threads);
  const data::Sampler data = data::random_tokens(model.vocab_size, model.seq_len, 50'000);
  const std::vector<Named> plans = test_plans(model, world.size(), ranks_per_node);
  plan::Plan alone_plan = test_plan(model, 1, 1, 1);
  alone_plan.global_batch = plans[0].plan.global_batch;
  alone_plan.microbatches = alone_plan.global_batch / microbatch;
  const auto myself = world.split(world.rank(), 0);
  const Trained alone = train(alone_plan, model, data, threads, core, *myself);

  Table table({"plan", "loss differs by", "norm differs by", "predicted", "measured",
               "predicted / measured"});
  double worst_loss = 0.0, worst_norm = 0.0;
  for (const Named& named : plans) {
    const Trained all = train(named.plan, model, data, threads, core, world);
    const double loss = largest_difference(all.losses, alone.losses);
    const double norm = largest_difference(all.norms, alone.norms);
    worst_loss = std::max(worst_loss, loss), worst_norm = std::max(worst_norm, norm);
    const double predicted_s =
        schedule::simulate(schedule::compile_all(named.plan, model), named.plan, model, profile)
            .iteration_s;
    table.add({named.name, fmt::format("{:.1e}", loss), fmt::format("{:.1e}", norm),
               format_seconds(predicted_s), format_seconds(all.iteration_s),
               fmt::format("{:.2f}", predicted_s / all.iteration_s)});
  }
  if (world.rank() == 0) fmt::print("{}\n", table.text());
  comm::together(world, [&] {
    require(worst_loss <= 1e-5 && worst_norm <= 1e-4, Failure::bug,
            "selftest: training on {} ranks differs from one rank's: see the table; at most 1e-5 "
            "and 1e-4 are rounding",
            world.size());
  });
}

}  // namespace

int selftest(const SelftestOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& world) {
    const int ranks_per_node = session.ranks_per_node();
    const model::Config model = test_model();
    std::optional<hardware::Profile> given;
    comm::together(world, [&] {
      require(world.size() % ranks_per_node == 0, Failure::input,
              "selftest: {} ranks on nodes of {}: start as many ranks on each node", world.size(),
              ranks_per_node);
      if (!options.profile.empty()) given = hardware::load_profile(options.profile);
    });
    const bool leader = world.rank() == 0;
    if (leader)
      log::info("{} on {}", counted(world.size(), "rank"), counted(session.num_nodes(), "node"));
    check_collectives(world, ranks_per_node);
    const hardware::Cluster cluster =
        hardware::NodeGroup{.nodes = world.size() / ranks_per_node,
                            .devices_per_node = ranks_per_node,
                            .memory_bytes = std::int64_t{1} << 30,
                            .host_memory_bytes = std::int64_t{1} << 32};
    const hardware::Profile measured = measure(world, ranks_per_node, cluster, model);
    if (leader) print_speed(measured, given);
    check_plans(session, world, model, measured);
    if (leader) fmt::print("selftest passed\n");
    return 0;
  });
}

}  // namespace brume::app
