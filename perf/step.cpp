/// @file A training step on this machine, against PyTorch: a table over shapes, interleaved,
/// medians.
///
/// On hosts each row has two splits of the cores: one rank of all cores, and as many data-parallel
/// ranks of one core each. Brume's ranks are threads of this process, PyTorch's are processes. On a
/// device the row is GPT 1.3B, which PyTorch compiles. BRUME_PYTHON names a Python with torch;
/// without one the table has no PyTorch. The row with experts is measured against the Transformers
/// library, the row with an adapter against PEFT.
#include <fmt/format.h>
#include <omp.h>
#include <stdio.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
#include "kernels/kokkos.hpp"
#include "kernels/matmul.hpp"
#include "kernels/types.hpp"
#include "plan/plan.hpp"

namespace {

using namespace brume;
using Clock = std::chrono::steady_clock;

struct Case {
  std::string_view name;
  const char* family;
  int layers, hidden, heads, kv_heads, head_size, ffn, vocab;
  int batch, seq_len;
  int steps;  ///< measured in each round, after one that warms up
  bool by_default;
  int experts = 0, experts_per_token = 0, expert_ffn = 0;
  int adapter_rank = 0;
  model::Precision precision = model::Precision::fp32;

  std::string text() const {
    return fmt::format("{} {} x {} {}", name, batch, seq_len, model::name(precision));
  }
  double tokens() const { return double(batch) * seq_len; }
};

// Rows of hosts; each is measured in fp32 and bf16.
constexpr Case host_cases[] = {
    {"small", "gpt", 6, 768, 12, 12, 64, 3072, 8192, 4, 64, 3, true},
    {"gpt2", "gpt", 12, 768, 12, 12, 64, 3072, 50257, 4, 64, 3, true},
    {"gpt2", "gpt", 12, 768, 12, 12, 64, 3072, 50257, 2, 1024, 1, true},
    {"llama-8b", "llama", 2, 4096, 32, 8, 128, 14336, 4096, 1, 512, 1, false},
    {"qwen3", "qwen3", 2, 1024, 16, 8, 128, 3072, 151936, 1, 512, 1, true},
    {"experts", "qwen3", 4, 512, 8, 8, 64, 0, 50257, 4, 64, 3, false, 64, 8, 256},
    {"adapter", "gpt", 12, 768, 12, 12, 64, 3072, 50257, 4, 64, 3, false, 0, 0, 0, 16},
};
constexpr Case device_case = {"gpt-1.3b", "gpt", 24, 2048, 16, 16,  128,
                              8192,       50257, 8,  2048, 10, true};

struct Split {
  int ranks, threads;
};

using Sums = std::map<std::string, double>;

/// Seconds of a step: whole steps, and of one rank its tasks by kind and its kernels by name.
struct Steps {
  std::vector<double> step_s;
  std::vector<Sums> task_s, kernel_s;
};

/// Sums the time of each kernel over all ranks, between start and stop.
class Kernels {
 public:
  static void start() {
    const std::lock_guard lock(mutex);
    sums.clear();
    kernels::observe_regions(begin, end);
  }
  static Sums stop() {
    kernels::observe_regions(nullptr, nullptr);
    const std::lock_guard lock(mutex);
    return sums;
  }

 private:
  // A kernel may call others, on threads of its team too: the outermost one counts.
  static void begin(const char* name) {
    if (depth++ > 0 || omp_in_parallel()) return;
    outermost = name, started = Clock::now();  // the name lasts as long as this call
  }
  static void end() {
    if (--depth > 0 || omp_in_parallel()) return;
    const double time_s = std::chrono::duration<double>(Clock::now() - started).count();
    const std::lock_guard lock(mutex);
    sums[outermost] += time_s;
  }
  inline static thread_local int depth = 0;
  inline static thread_local std::string outermost;
  inline static thread_local Clock::time_point started;
  inline static std::mutex mutex;
  inline static Sums sums;
};

model::Config model_of(const Case& c) {
  model::Config model{.num_layers = c.layers,
                      .hidden_size = c.hidden,
                      .num_heads = c.heads,
                      .num_kv_heads = c.kv_heads,
                      .head_size = c.head_size,
                      .ffn_size = c.ffn,
                      .seq_len = c.seq_len,
                      .vocab_size = c.vocab,
                      .precision = c.precision};
  if (c.family != std::string_view("gpt")) {
    model.family = &model::family("llama");
    model.qkv_bias = model.linear_bias = false;
    model.tied_head = model.qk_norm = c.family == std::string_view("qwen3");
  }
  if (c.experts > 0) {
    model.num_experts = c.experts;
    model.experts_per_token = c.experts_per_token;
    model.expert_ffn_size = c.expert_ffn;
    model.normalize_topk = false;
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
      if (world.rank() == 0) Kernels::start();
      world.barrier();
      const auto start = Clock::now();
      engine.step(data);
      world.barrier();
      if (world.rank() != 0) continue;
      const double step_s = seconds_since(start);
      Sums of_kernels = Kernels::stop(), of_tasks;
      if (step == 0) continue;
      for (auto& [kernel, sum_s] : of_kernels) sum_s /= split.ranks;
      for (std::size_t id = 0; id < engine.last_times().size(); ++id)
        of_tasks[kind(engine.program().tasks[id])] +=
            engine.last_times()[id].end_s - engine.last_times()[id].start_s;
      steps.step_s.push_back(step_s);
      steps.task_s.push_back(of_tasks), steps.kernel_s.push_back(of_kernels);
    }
  });
}

/// @return false when there is no PyTorch
bool add_pytorch(const Case& c, const Split& split, bool compiled, Steps& steps) {
  const char* const python = std::getenv("BRUME_PYTHON");
  if (python == nullptr) return false;
  const std::string command = fmt::format(
      "{} {} --family {} --layers {} --hidden {} --heads {} --kv_heads {} --head_size {} --ffn {} "
      "--vocab {} --batch {} --seq_len {} --ranks {} --threads {} --steps {} --precision {} "
      "--device {} --adapter {} --experts {} --chosen {} --expert_ffn {}{}",
      python, BRUME_STEP_PY, c.family, c.layers, c.hidden, c.heads, c.kv_heads, c.head_size, c.ffn,
      c.vocab, c.batch, c.seq_len, split.ranks, split.threads, c.steps, name(c.precision),
      device::on_device() ? "cuda" : "cpu", c.adapter_rank, c.experts, c.experts_per_token,
      c.expert_ffn, compiled || device::on_device() ? " --compile" : "");
  FILE* const output = ::popen(command.c_str(), "r");
  if (output == nullptr) return false;
  for (double step_s = 0.0; std::fscanf(output, "%lf", &step_s) == 1;)
    steps.step_s.push_back(step_s);
  return ::pclose(output) == 0 && !steps.step_s.empty();
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

std::string percent(double part, double whole) {
  return fmt::format("{:.0f} %", 100.0 * part / whole);
}

double total(const Sums& sums) {
  double total = 0.0;
  for (const auto& [key, sum] : sums) total += sum;
  return total;
}

/// The median of each key's sums, in the order of size.
std::vector<std::pair<std::string, double>> medians(const std::vector<Sums>& of_steps) {
  std::map<std::string, std::vector<double>> by_key;
  for (const Sums& sums : of_steps)
    for (const auto& [key, sum] : sums) by_key[key].push_back(sum);
  std::vector<std::pair<std::string, double>> sorted;
  for (const auto& [key, values] : by_key) sorted.emplace_back(key, median(values));
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

/// A row's tasks and kernels under its fastest split.
void print_parts(const Case& c, const Split& split, const Steps& steps, const Sums& alone) {
  const double step_s = median(steps.step_s);
  Table tasks({"task", "time", "its products alone", "share"});
  for (const auto& [kind, time_s] : medians(steps.task_s)) {
    const auto products = alone.find(kind);
    if (products == alone.end())
      tasks.add({kind, format_seconds(time_s), "", ""});
    else
      tasks.add({kind, format_seconds(time_s), format_seconds(products->second),
                 percent(products->second, time_s)});
  }
  Table by_kernel({"kernel", "time", "of the step"});
  double rest_s = step_s;
  for (const auto& [kernel, time_s] : medians(steps.kernel_s)) {
    rest_s -= time_s;
    if (time_s > 0.002 * step_s)
      by_kernel.add({kernel, format_seconds(time_s), percent(time_s, step_s)});
  }
  by_kernel.add({"rest", format_seconds(rest_s), percent(rest_s, step_s)});
  fmt::print("\n{}, {} x {} threads:\n{}\n{}", c.text(), split.ranks, split.threads, tasks.text(),
             by_kernel.text());
}

struct Options {
  std::optional<std::string_view> rows;
  bool compiled = false;
  int rounds = 3;
};

/// Adds the row of a case.
void compare(const Case& c, const std::vector<Split>& splits, const Options& options,
             Table& table) {
  std::vector<Steps> brume(splits.size()), eager(splits.size()), compiled(splits.size());
  bool beside = true;
  for (int round = 0; round < options.rounds; ++round)
    for (std::size_t s = 0; s < splits.size(); ++s) {
      add_brume(c, splits[s], brume[s]);
      beside = beside && add_pytorch(c, splits[s], false, eager[s]);
      if (beside && options.compiled) add_pytorch(c, splits[s], true, compiled[s]);
    }
  const auto fastest = [&](const std::vector<Steps>& of_splits) {
    const auto time_s = [](const Steps& steps) {
      return steps.step_s.empty() ? 1e30 : median(steps.step_s);
    };
    const auto best = std::ranges::min_element(of_splits, {}, time_s);
    return std::pair{std::size_t(best - of_splits.begin()), time_s(*best)};
  };
  const auto text = [&](const std::pair<std::size_t, double>& best) {
    return best.second > 1e29 ? "-"
                              : fmt::format("{} ({} x {})", format_seconds(best.second),
                                            splits[best.first].ranks, splits[best.first].threads);
  };
  const auto here = fastest(brume), by_eager = fastest(eager), by_compiled = fastest(compiled);
  const double pytorch_s = std::min(by_eager.second, by_compiled.second);
  const Sums alone = products_s(c, splits[here.first]);
  table.add({c.text(), text(here), text(by_eager), text(by_compiled),
             pytorch_s > 1e29 ? "-" : fmt::format("{:.2f}", pytorch_s / here.second),
             percent(total(alone), here.second), format_count(c.tokens() / here.second),
             format_count(model_flops(c) / here.second)});
  print_parts(c, splits[here.first], brume[here.first], alone);
}

}  // namespace

/// perf_step [--rows=TEXT] [--compiled] [rounds]
///
/// --rows: those whose names hold the text, such as "2 x 1024 bf16"; an empty text: all.
/// --compiled: PyTorch compiles the model too.
int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // tables show when they are done, also in a pipe
  device::use_device(0, 1);
  constexpr std::string_view rows = "--rows=";
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(rows))
      options.rows = argument.substr(rows.size());
    else if (argument == "--compiled")
      options.compiled = true;
    else
      options.rounds = std::max(1, std::atoi(argv[i]));
  }
  const int cores = device::this_processor().cores;
  const kernels::Runtime runtime(cores);
  Table table({"model and batch", "Brume", "PyTorch", "compiled", "speed", "products", "tokens/s",
               "FLOP/s"});
  const auto measure = [&](Case c, model::Precision precision, const std::vector<Split>& splits) {
    c.precision = precision;
    const bool wanted =
        options.rows ? c.text().find(*options.rows) != std::string::npos : c.by_default;
    if (wanted) compare(c, splits, options, table);
  };
  if (device::on_device()) {
    measure(device_case, model::Precision::bf16, {{1, cores}});
  } else {
    for (const Case& c : host_cases) {
      std::vector<Split> splits{{1, cores}};
      const int ranks = std::min(cores, c.batch);
      if (ranks > 1 && c.batch % ranks == 0) splits.push_back({ranks, cores / ranks});
      for (const auto precision : {model::Precision::fp32, model::Precision::bf16})
        measure(c, precision, splits);
    }
  }
  fmt::print(
      "\nA step with AdamW, by the faster split into ranks x threads. Speed: of Brume, in "
      "PyTorch's.\nProducts: their time alone, as a share of the step's.\n{}",
      table.text());
  if (std::getenv("BRUME_PYTHON") == nullptr)
    fmt::print("no PyTorch: set BRUME_PYTHON to a Python that has torch\n");
}
