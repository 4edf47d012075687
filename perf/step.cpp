/// @file A training step on this machine, against PyTorch: a table over shapes, interleaved,
/// medians.
///
/// On hosts each row has two splits of the cores: one rank of all cores, and as many data-parallel
/// ranks of one core each. Brume's ranks are threads of this process, PyTorch's are processes. On a
/// device the row is GPT 1.3B, which PyTorch compiles. BRUME_PYTHON names a Python with torch;
/// without one the table has no PyTorch. The row with experts is measured against the Transformers
/// library, the row with an adapter against PEFT.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "kernels/types.hpp"
#include "step_cases.hpp"
#include "step_times.hpp"

namespace {

using namespace brume;
using namespace brume::perf;

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
