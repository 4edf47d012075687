/// @file A training step on one device of which only two speeds are known: each kernel that its
/// Program calls, with its bytes, FLOPs and time.
///
///   perf_on_paper [model]    model: part of a name below; none: all
///
/// A launch takes as long as its bytes at 85 % of the speed of a large copy, its products at 85 %
/// of that of a large product, and never less than a short kernel; launches follow each other. The
/// host takes a while for each launch, and for each task to record when it began and ended: as long
/// as that is less than the device's time, it is hidden.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/text.hpp"
#include "engine/compute.hpp"
#include "launches.hpp"
#include "plan/plan.hpp"
#include "schedule/compile.hpp"

namespace {

using namespace brume;

/// An H200's, measured by others: copies read and write, products are of bf16.
constexpr double copied_bytes_per_s = 4.3e12, product_flops_per_s = 790e12, reached = 0.85;
constexpr double peak_flops_per_s = 989e12;  ///< of bf16 without sparsity, by its data sheet
constexpr double fp8_speed = 2.0;    ///< of products of 8 bits, beside bf16's: by the data sheet
constexpr double shortest_s = 2e-6;  ///< a kernel that does next to nothing
constexpr double issue_s = 2.5e-6;   ///< the host's, of a launch
constexpr double task_issue_s = 1.5e-6;  ///< the host's, of the events around a task

struct Case {
  const char* name;
  model::Config model;
  int sequences;
};

const std::vector<Case> cases{{"GPT 1.3B",
                               {.num_layers = 24,
                                .hidden_size = 2048,
                                .num_heads = 16,
                                .ffn_size = 8192,
                                .seq_len = 2048,
                                .vocab_size = 50304,
                                .precision = model::Precision::bf16},
                               8},
                              {"4 layers of Llama 8B",
                               {.family = &model::family("llama"),
                                .num_layers = 4,
                                .hidden_size = 4096,
                                .num_heads = 32,
                                .num_kv_heads = 8,
                                .ffn_size = 14336,
                                .seq_len = 2048,
                                .vocab_size = 128256,
                                .tied_head = false,
                                .qkv_bias = false,
                                .linear_bias = false,
                                .precision = model::Precision::bf16},
                               8}};

double seconds(const perf::Launch& launch) {
  return std::max({launch.bytes / (reached * copied_bytes_per_s),
                   launch.flops / (reached * product_flops_per_s),
                   launch.fp8_flops / (reached * fp8_speed * product_flops_per_s), shortest_s});
}

/// What of a step is computed: "forward mlp", or the operation alone where there is no segment.
std::string part_of_step(const schedule::Task& task) {
  const bool of_segment = task.operation == schedule::Operation::forward ||
                          task.operation == schedule::Operation::backward;
  return of_segment ? fmt::format("{} {}", name(task.operation), model::name(task.segment))
                    : name(task.operation);
}

/// FLOPs of a step by its products, causal scores counted once, a backward as two forwards.
double model_flops(const Case& c) {
  const model::Config& m = c.model;
  const double tables = double(m.vocab_size) * m.hidden_size * (m.tied_head ? 0 : 1) +
                        (m.rotary() ? 0.0 : double(m.seq_len) * m.hidden_size);
  const double multiplied = double(model::num_parameters(m)) - tables;
  const double scores = double(m.num_layers) * m.attention_size() * m.seq_len;
  return 6.0 * (multiplied + scores) * c.sequences * m.seq_len;
}

/// Launches of one kernel in one part of the step.
struct Sum {
  int launches = 0;
  double bytes = 0.0, flops = 0.0, fp8_flops = 0.0, time_s = 0.0;

  void add(const perf::Launch& launch) {
    ++launches;
    bytes += launch.bytes, flops += launch.flops, fp8_flops += launch.fp8_flops;
    time_s += seconds(launch);
  }
};

/// @return a step's time
double print(Case c, model::Precision precision) {
  c.model.precision = precision;
  const bool fp8 = precision == model::Precision::fp8;
  const plan::Plan plan = plan::equal_stages(c.model, c.sequences, 1, {.microbatch = c.sequences});
  const schedule::Program program = schedule::compile(plan, c.model, 0);
  const engine::Arena addresses(program.arena_bytes, "");
  const engine::Optimizer optimizer;
  const auto compute = engine::make_compute(plan, c.model, 0, optimizer, addresses);
  std::map<std::string, std::map<std::string, Sum>> parts;
  Sum step;
  int tasks = 0;
  for (const schedule::Task& task : program.tasks) {
    if (task.channel != schedule::Channel::compute) continue;
    ++tasks;
    perf::launches().clear();
    compute->run(program, task, {});
    for (const perf::Launch& launch : perf::launches()) {
      parts[part_of_step(task)][launch.kernel].add(launch);
      step.add(launch);
    }
  }
  Table table({"part", "kernel", "launches", "bytes each", "FLOPs each", "time", "share"});
  for (const auto& [part, kernels] : parts)
    for (const auto& [kernel, sum] : kernels)
      table.add(
          {part, kernel, fmt::format("{}", sum.launches), format_bytes(sum.bytes / sum.launches),
           format_count((sum.flops + sum.fp8_flops) / sum.launches), format_seconds(sum.time_s),
           fmt::format("{:.1f} %", 100.0 * sum.time_s / step.time_s)});
  const double flops = model_flops(c), peak = peak_flops_per_s * (fp8 ? fp8_speed : 1.0);
  const double products_s =
      (step.flops + step.fp8_flops / fp8_speed) / (reached * product_flops_per_s);
  const double tokens = double(c.sequences) * c.model.seq_len;
  fmt::print("{}, {} x {} tokens a step, {}, one device:\n{}", c.name, c.sequences, c.model.seq_len,
             model::name(precision), table.text());
  fmt::print("step: {}, of which products {}; {} tokens/s\n", format_seconds(step.time_s),
             format_seconds(products_s), format_count(tokens / step.time_s));
  fmt::print("the model's {}FLOP at {:.1f} % of the peak of {}FLOP/s\n", format_count(flops),
             100.0 * flops / step.time_s / peak, format_count(peak));
  fmt::print("host: {} launches in {} tasks are issued in {}\n\n", step.launches, tasks,
             format_seconds(step.launches * issue_s + tasks * task_issue_s));
  return step.time_s;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  for (const Case& c : cases) {
    if (std::string_view(c.name).find(wanted) == std::string_view::npos) continue;
    const double wide_s = print(c, model::Precision::bf16);
    const double narrow_s = print(c, model::Precision::fp8);
    fmt::print("{}: {:.2f} times as fast in fp8 as in bf16\n\n", c.name, wide_s / narrow_s);
  }
}
