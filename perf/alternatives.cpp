/// @file Brume's plan beside the best that narrower searches find, at equal memory limits,
/// measured.
///
///   mpirun -n 2|4 perf_plans alternatives [rounds]
///
/// megatron-like: equal stages, all or no layers recomputed, ZeRO-0 or 1, nothing offloaded.
/// deepspeed-like: data parallelism only, any ZeRO level, all or no layers recomputed, optimizer
/// state (and with ZeRO-3 weights) wholly on the host or not at all.
/// Both are enumerated; what fits and is predicted fastest is measured.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/session.hpp"
#include "kernels/types.hpp"
#include "measure.hpp"
#include "planned.hpp"
#include "plans.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "tuner/tuner.hpp"

namespace {

using namespace brume;

constexpr int global_batch = 16;
const std::vector<int> microbatches{1, 2, 4, 8};

model::Config bench_model() {
  return {.num_layers = 8,
          .hidden_size = 256,
          .num_heads = 8,
          .ffn_size = 1024,
          .seq_len = 128,
          .vocab_size = 4096};
}

/// A plan with what it is predicted to take.
struct Candidate {
  plan::Plan plan;
  double iteration_s;
  std::int64_t device_bytes;
};

struct Bench {
  model::Config model;
  hardware::Cluster cluster;
  hardware::Profile profile;

  /// Nothing for a plan that does not execute.
  std::optional<Candidate> candidate(const plan::Plan& plan) const try {
    plan::check(plan, model, cluster);
    const std::vector<schedule::Program> programs = schedule::compile_all(plan, model);
    std::int64_t bytes = 0;
    for (const schedule::Program& program : programs)
      bytes = std::max(bytes, program.arena_bytes[std::size_t(schedule::Tier::device)]);
    return Candidate{plan, schedule::simulate(programs, plan, model, profile).iteration_s, bytes};
  } catch (const Error&) {
    return std::nullopt;
  }

  plan::Plan equal_stages(int stages, int dp, int tp, int b, plan::Stage knobs) const {
    if (knobs.ckpt_layers > 0) knobs.ckpt_layers = model.num_layers / stages;
    knobs.dp = dp, knobs.tp = tp, knobs.microbatch = b;
    return plan::equal_stages(model, global_batch, stages, knobs);
  }

  std::vector<Candidate> megatron_like() const {
    std::vector<Candidate> all;
    const int ranks = cluster.devices();
    for (int stages = 1; stages <= ranks; ++stages)
      for (int tp = 1; stages * tp <= ranks; ++tp) {
        const int dp = ranks / (stages * tp);
        if (dp * stages * tp != ranks || model.num_layers % stages != 0) continue;
        for (int b : microbatches)
          for (int zero = 0; zero <= (dp > 1 ? 1 : 0); ++zero)
            for (int recomputed : {0, 1}) {
              plan::Stage knobs;
              knobs.zero_level = zero;
              knobs.ckpt_layers = recomputed;
              if (auto found = candidate(equal_stages(stages, dp, tp, b, knobs)))
                all.push_back(*found);
            }
      }
    return all;
  }

  std::vector<Candidate> deepspeed_like() const {
    std::vector<Candidate> all;
    for (int b : microbatches)
      for (int zero = 0; zero <= 3; ++zero)
        for (int recomputed : {0, 1})
          for (int offload = 0; offload <= (zero == 3 ? 2 : 1); ++offload) {
            plan::Stage knobs;
            knobs.zero_level = zero;
            knobs.ckpt_layers = recomputed;
            knobs.optim_offload_ratio = offload > 0 ? 1.0 : 0.0;
            knobs.weight_offload_ratio = offload > 1 ? 1.0 : 0.0;
            if (auto found = candidate(equal_stages(1, cluster.devices(), 1, b, knobs)))
              all.push_back(*found);
          }
    return all;
  }

  std::optional<Candidate> tuned() const try {
    deck::SearchKeys search;
    search.microbatch = microbatches;
    return candidate(tuner::tune(model, global_batch, cluster, profile, search).best[0].plan);
  } catch (const Error&) {
    return std::nullopt;
  }
};

std::optional<Candidate> fastest(const std::vector<Candidate>& all, std::int64_t limit_bytes) {
  std::optional<Candidate> best;
  for (const Candidate& c : all)
    if (c.device_bytes <= limit_bytes && (!best || c.iteration_s < best->iteration_s)) best = c;
  return best;
}

/// What one search found under one limit.
struct Row {
  std::int64_t limit_bytes;
  const char* search;
  std::optional<Candidate> found;
};

/// Limits from what nothing narrower than Brume's search can meet up to what everything can.
std::vector<Row> search_all(Bench bench) {
  const std::vector<Candidate> megatron = bench.megatron_like(), deepspeed = bench.deepspeed_like();
  std::int64_t least = megatron[0].device_bytes, most = 0;
  for (const auto* all : {&megatron, &deepspeed})
    for (const Candidate& c : *all) {
      least = std::min(least, c.device_bytes);
      most = std::max(most, c.device_bytes);
    }
  std::vector<Row> rows;
  for (double share : {-0.1, 0.05, 0.2, 0.4, 1.0}) {
    bench.cluster.groups[0].memory_bytes = least + std::int64_t(share * double(most - least));
    rows.push_back({bench.cluster.groups[0].memory_bytes, "brume", bench.tuned()});
    rows.push_back({bench.cluster.groups[0].memory_bytes, "megatron-like",
                    fastest(megatron, bench.cluster.groups[0].memory_bytes)});
    rows.push_back({bench.cluster.groups[0].memory_bytes, "deepspeed-like",
                    fastest(deepspeed, bench.cluster.groups[0].memory_bytes)});
  }
  return rows;
}

void run(comm::Session& session, comm::Communicator& world, int rounds) {
  const model::Config model = bench_model();
  const kernels::Runtime runtime(device::threads_per_rank(session.ranks_per_node()));
  const hardware::Cluster cluster = perf::roomy_cluster(world.size());
  const hardware::Profile profile = perf::measured_profile(session, world, model, microbatches);

  std::vector<Row> rows;
  std::string texts;  // of the plans to measure, from rank 0 to all
  if (world.rank() == 0) {
    rows = search_all({model, cluster, profile});
    for (const Row& row : rows)
      if (row.found) texts += plan::text(row.found->plan) + '\f';
  }
  texts = comm::broadcast(world, texts, 0);
  std::vector<plan::Plan> plans;
  for (std::size_t at = 0; at < texts.size();) {
    const std::size_t end = texts.find('\f', at);
    plans.push_back(plan::parse(texts.substr(at, end - at), "plan"));
    at = end + 1;
  }
  const std::vector<perf::Measurement> measured =
      perf::measure(plans, model, session, world, rounds);
  if (world.rank() != 0) return;
  Table table({"limit", "search", "placed", "predicted", "measured"});
  std::size_t next = 0;
  for (const Row& row : rows) {
    if (!row.found) {
      table.add({format_bytes(double(row.limit_bytes)), row.search, "nothing fits", "", ""});
      continue;
    }
    table.add({format_bytes(double(row.limit_bytes)), row.search,
               format_bytes(double(row.found->device_bytes)),
               format_seconds(row.found->iteration_s),
               format_seconds(measured[next++].iteration_s)});
  }
  fmt::print("{}", table.text());
}

}  // namespace

void brume::perf::alternatives(comm::Session& session, comm::Communicator& world,
                               std::span<const int> numbers) {
  run(session, world, number(numbers, 0, 7));
}
