/// @file A training step of a GPT on this machine, beside PyTorch: interleaved, medians.
///
/// On hosts GPT-2 124M, with two splits of the cores each: one rank of all cores, and as many
/// data-parallel ranks of one core each. Brume's ranks are threads of this process, PyTorch's are
/// processes. On a device GPT 1.3B, which PyTorch compiles. BRUME_PYTHON names a Python with torch;
/// without one the table has no PyTorch. With --adapter both train a low-rank adapter only, which
/// PEFT adds to PyTorch's model. With --experts the model is a small mixture of experts, for
/// PyTorch that of the Transformers library.
#include <fmt/format.h>
#include <stdio.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"
#include "kernels/matmul.hpp"
#include "kernels/types.hpp"
#include "plan/plan.hpp"

namespace {

using namespace brume;
using Clock = std::chrono::steady_clock;

struct Size {
  const char* name;
  int layers, hidden, heads;
  int experts = 0, experts_per_token = 0, expert_ffn = 0;
};
constexpr Size gpt2{"GPT-2 124M", 12, 768, 12}, gpt_1_3b{"GPT 1.3B", 24, 2048, 16},
    mixture{"64 experts, 8 a token", 4, 512, 8, 64, 8, 256};

struct Case {
  Size size;
  model::Precision precision;
  int batch;
  int seq_len;
  int steps;  ///< measured in each round, after one that warms up
  int adapter_rank = 0;

  double tokens() const { return double(batch) * seq_len; }
};

struct Split {
  int ranks, threads;
};

/// Seconds of a step: whole steps, and the tasks of rank 0 by kind, both one number a step.
struct Steps {
  std::vector<double> step_s;
  std::map<std::string, std::vector<double>> task_s;
};

model::Config model_of(const Case& c) {
  model::Config model{.num_layers = c.size.layers,
                      .hidden_size = c.size.hidden,
                      .num_heads = c.size.heads,
                      .ffn_size = 4 * c.size.hidden,
                      .seq_len = c.seq_len,
                      .vocab_size = 50257,
                      .precision = c.precision};
  if (c.size.experts > 0) {
    model.family = &model::family("llama");
    model.num_experts = c.size.experts;
    model.experts_per_token = c.size.experts_per_token;
    model.expert_ffn_size = c.size.expert_ffn;
    model.qkv_bias = model.linear_bias = model.normalize_topk = false;
    model.qk_norm = true;
  }
  if (c.adapter_rank == 0) return model;
  for (const model::Module module : model::adapter_targets(model))
    model.adapter.targets.push_back({module, c.adapter_rank, double(c.adapter_rank)});
  model::freeze(model, [](const model::Parameter& one) { return !one.id.is_adapter(); });
  return model;
}

plan::Plan plan_of(const Case& c, const Split& split) {
  return plan::equal_stages(model_of(c), c.batch, 1,
                            {.microbatch = c.batch / split.ranks, .dp = split.ranks});
}

double model_flops(const Case& c) { return c.batch * model::flops_per_sequence(model_of(c)); }

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// --- one round of each ---------------------------------------------------------------------------

/// "backward mlp", or the operation alone where there is no segment.
std::string kind(const schedule::Task& task) {
  const bool of_segment = task.operation == schedule::Operation::forward ||
                          task.operation == schedule::Operation::backward;
  return of_segment ? fmt::format("{} {}", name(task.operation), model::name(task.segment))
                    : name(task.operation);
}

void add_brume(const Case& c, const Split& split, Steps& steps) {
  const model::Config model = model_of(c);
  const data::Sampler data = data::random_tokens(model.vocab_size, model.seq_len, 100'000);
  comm::run_local(split.ranks, [&](comm::Communicator& world) {
    device::use_device(world.rank(), world.size());
    engine::Settings settings;
    settings.steps = 100;
    settings.threads = split.threads;
    engine::Engine engine(plan_of(c, split), model, settings, world);
    for (int step = 0; step <= c.steps; ++step) {
      world.barrier();
      const auto start = Clock::now();
      engine.step(data);
      world.barrier();
      if (step == 0 || world.rank() != 0) continue;
      steps.step_s.push_back(seconds_since(start));
      std::map<std::string, double> sums;
      for (std::size_t id = 0; id < engine.last_times().size(); ++id)
        sums[kind(engine.program().tasks[id])] +=
            engine.last_times()[id].end_s - engine.last_times()[id].start_s;
      for (const auto& [kind, sum_s] : sums) steps.task_s[kind].push_back(sum_s);
    }
  });
}

/// @return false when there is no PyTorch
bool add_pytorch(const Case& c, const Split& split, Steps& steps) {
  const char* const python = std::getenv("BRUME_PYTHON");
  if (python == nullptr) return false;
  const std::string command = fmt::format(
      "{} {} --layers {} --hidden {} --heads {} --batch {} --seq_len {} --ranks {} --threads {} "
      "--steps {} --precision {} --device {} --adapter {} --experts {} --chosen {} --expert_ffn {}",
      python, BRUME_STEP_PY, c.size.layers, c.size.hidden, c.size.heads, c.batch, c.seq_len,
      split.ranks, split.threads, c.steps, name(c.precision), device::on_device() ? "cuda" : "cpu",
      c.adapter_rank, c.size.experts, c.size.experts_per_token, c.size.expert_ffn);
  FILE* const output = ::popen(command.c_str(), "r");
  if (output == nullptr) return false;
  for (double step_s = 0.0; std::fscanf(output, "%lf", &step_s) == 1;)
    steps.step_s.push_back(step_s);
  return ::pclose(output) == 0;
}

// --- the roof ------------------------------------------------------------------------------------

/// A matrix of random values where ranks compute.
template <class Storage>
struct Values {
  Values(int rows, int columns) : memory(std::int64_t(sizeof(Storage)) * rows * columns) {
    std::mt19937 random(1);
    std::vector<Storage> values(std::size_t(rows) * std::size_t(columns));
    for (Storage& value : values) value = float(std::int32_t(random())) * 0x1p-31f;
    device::copy_now(memory.data(), values.data(), memory.bytes());
    matrix = {reinterpret_cast<Storage*>(memory.data()), std::size_t(rows), std::size_t(columns)};
  }
  device::Memory memory;
  kernels::MatrixOf<Storage> matrix;
};

/// Seconds of one product, forward and backward, in the shortest of three runs.
template <class Storage>
double product_s(int m, int n, int k, bool backward, bool trained) {
  const Values<Storage> x(m, k), w(n, k), y(m, n);
  const Values<float> dw(n, k);
  double shortest_s = 1e30;
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    if (backward) {
      kernels::linear_backward_input<Storage>(y.matrix, w.matrix, kernels::Write::replace,
                                              x.matrix);
      if (trained)
        kernels::linear_backward_weight<Storage>(y.matrix, x.matrix, kernels::Write::replace,
                                                 dw.matrix);
    } else {
      kernels::linear_forward<Storage>(x.matrix, w.matrix, kernels::Write::replace, y.matrix);
    }
    device::finish();
    shortest_s = std::min(shortest_s, seconds_since(start));
  }
  return shortest_s;
}

/// The step's products, each measured alone but on all ranks at once [s], by kind of task.
std::map<std::string, double> products_s(const Case& c, const Split& split) {
  std::map<std::string, double> sums;
  comm::run_local(split.ranks, [&](comm::Communicator& world) {
    kernels::use_threads(split.threads);
    device::use_device(world.rank(), world.size());
    const std::unique_ptr<device::Stream> stream = device::make_stream();
    if (stream) stream->bind();
    const model::Config model = model_of(c);
    for (const auto segment : model::segment_kinds(model))
      for (const model::Operator& op : model::segment(model, segment).operators) {
        if (!model::is_product(op.kind)) continue;
        const int parts = op.kind == model::OperatorKind::experts ? model.num_experts : 1;
        const auto values = model::Split{.microbatch = c.batch / split.ranks}.values();
        const auto dim = [&](int d) { return int(op.dims[std::size_t(d)].evaluate(values)); };
        const double times = parts * (segment == model::SegmentKind::head ? 1.0 : model.num_layers);
        for (const bool backward : {false, true}) {
          world.barrier();
          const auto product = c.precision == model::Precision::bf16 ? product_s<kernels::bfloat16>
                                                                     : product_s<float>;
          const double time_s =
              times * product(dim(0) / parts, dim(1), dim(2), backward, op.trained > 0.0);
          if (world.rank() == 0)
            sums[fmt::format("{} {}", backward ? "backward" : "forward", model::name(segment))] +=
                time_s;
        }
      }
  });
  return sums;
}

// --- tables --------------------------------------------------------------------------------------

void print_tasks(const Case& c, const Split& split, const Steps& steps) {
  const std::map<std::string, double> alone = products_s(c, split);
  Table table({"task", "time", "its products alone", "share"});
  double sum_s = 0.0;
  const auto share = [](double part, double whole) {
    return fmt::format("{:.0f} %", 100.0 * part / whole);
  };
  for (const auto& [kind, times_s] : steps.task_s) {
    const auto products = alone.find(kind);
    const double time_s = median(times_s);
    if (products == alone.end()) {
      table.add({kind, format_seconds(time_s), "", ""});
      continue;
    }
    sum_s += products->second;
    table.add({kind, format_seconds(time_s), format_seconds(products->second),
               share(products->second, time_s)});
  }
  const double step_s = median(steps.step_s);
  table.add({"step", format_seconds(step_s), format_seconds(sum_s), share(sum_s, step_s)});
  fmt::print("\nBrume, {} x {} threads:\n{}\n", split.ranks, split.threads, table.text());
}

void compare(const Case& c, const std::vector<Split>& splits, int rounds) {
  std::vector<Steps> brume(splits.size()), pytorch(splits.size());
  bool beside = true;
  for (int round = 0; round < rounds; ++round)
    for (std::size_t s = 0; s < splits.size(); ++s) {
      add_brume(c, splits[s], brume[s]);
      beside = beside && add_pytorch(c, splits[s], pytorch[s]);
    }

  Table table({"ranks x threads", "Brume", "PyTorch"});
  double best_s = 1e30, best_pytorch_s = 1e30;
  std::size_t best = 0;
  for (std::size_t s = 0; s < splits.size(); ++s) {
    const double time_s = median(brume[s].step_s);
    if (time_s < best_s) best_s = time_s, best = s;
    std::string other = "-";
    if (beside) {
      const double pytorch_s = median(pytorch[s].step_s);
      best_pytorch_s = std::min(best_pytorch_s, pytorch_s);
      other = format_seconds(pytorch_s);
    }
    table.add({fmt::format("{} x {}", splits[s].ranks, splits[s].threads), format_seconds(time_s),
               other});
  }
  fmt::print("{}, {} x {} tokens a step, {}, AdamW{}:\n{}", c.size.name, c.batch, c.seq_len,
             name(c.precision),
             c.adapter_rank > 0 ? fmt::format(" of an adapter of rank {}", c.adapter_rank) : "",
             table.text());
  fmt::print("Brume: {} tokens/s, {}FLOP/s of the model's\n", format_count(c.tokens() / best_s),
             format_count(model_flops(c) / best_s));
  if (beside)
    fmt::print("best of each: {:.2f} x PyTorch's speed\n", best_pytorch_s / best_s);
  else
    fmt::print("no PyTorch: set BRUME_PYTHON to a Python that has torch\n");
  print_tasks(c, splits[best], brume[best]);
}

}  // namespace

/// perf_step [--adapter=RANK | --experts] [rounds [seq_len...]]
int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // tables show when they are done, also in a pipe
  device::use_device(0, 1);
  constexpr std::string_view adapter = "--adapter=";
  int adapter_rank = 0;
  if (argc > 1 && std::string_view(argv[1]).starts_with(adapter)) {
    adapter_rank = std::atoi(argv[1] + adapter.size());
    ++argv, --argc;
  }
  const bool experts = argc > 1 && argv[1] == std::string_view("--experts");
  if (experts) ++argv, --argc;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  std::vector<int> lengths;
  for (int i = 2; i < argc; ++i) lengths.push_back(std::atoi(argv[i]));
  if (lengths.empty()) lengths = device::on_device() ? std::vector{2048} : std::vector{64, 1024};
  const int cores = device::this_processor().cores;
  const kernels::Runtime runtime(cores);
  if (device::on_device()) {
    for (const int seq_len : lengths)
      compare({gpt_1_3b, model::Precision::bf16, 8, seq_len, 10, adapter_rank}, {{1, cores}},
              rounds);
    return 0;
  }
  constexpr int batch = 4;
  std::vector<Split> splits{{1, cores}};
  if (cores > 1) splits.push_back({std::min(cores, batch), cores / std::min(cores, batch)});
  const std::vector<model::Precision> precisions{model::Precision::fp32, model::Precision::bf16};
  for (const int seq_len : lengths)
    for (const model::Precision precision : precisions)
      compare({experts ? mixture : gpt2, precision, batch, seq_len, seq_len > 256 ? 1 : 3,
               adapter_rank},
              splits, rounds);
}
