/// @file Times of steps by Brume and by PyTorch, and of their products alone.
#include "step_times.hpp"

#include <fmt/format.h>
#include <omp.h>
#include <stdio.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>

#include "comm/communicator.hpp"
#include "data/sampler.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"
#include "kernels/kokkos.hpp"
#include "kernels/matmul.hpp"
#include "kernels/types.hpp"

namespace brume::perf {
namespace {

using Clock = std::chrono::steady_clock;

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

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// "backward mlp", or the operation alone where there is no segment.
std::string kind(const schedule::Task& task) {
  const bool of_segment = task.operation == schedule::Operation::forward ||
                          task.operation == schedule::Operation::backward;
  return of_segment ? fmt::format("{} {}", name(task.operation), model::name(task.segment))
                    : name(task.operation);
}

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace brume::perf
