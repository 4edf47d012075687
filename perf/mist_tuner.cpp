/// @file Tuning by Mist's counting against the original: cost of the plan found, time on one core,
/// memory, and what a wider space gains.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <string>

#include "base/text.hpp"
#include "mist_tunings.hpp"

namespace {

using namespace brume;
using namespace brume::mist;

/// Seconds that this process computed; what else the machine does shows less in it.
double processor_s() { return double(std::clock()) / CLOCKS_PER_SEC; }

double wall_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Timed {
  double iteration_s = 0.0;
  double processor_s = 1e9;  ///< least of the repeats
  double wall_s = 1e9;
};

Timed tune(const Job& job, const Space& space, int repeats) {
  Timed timed;
  for (int i = 0; i < repeats; ++i) {
    const double from_processor_s = processor_s(), from_wall_s = wall_s();
    timed.iteration_s = tune(job, space).prediction.iteration_s;
    timed.processor_s = std::min(timed.processor_s, processor_s() - from_processor_s);
    timed.wall_s = std::min(timed.wall_s, wall_s() - from_wall_s);
  }
  return timed;
}

/// Ratios of optimizer and activations in sixteenths, no ZeRO too, twice as uneven layers.
Space wider(Space space) {
  for (auto* ratios : {&space.offload_optimizer, &space.offload_saved}) {
    ratios->clear();
    for (int i = 0; i <= 16; ++i) ratios->push_back(i / 16.0);
  }
  space.zero_levels = {0, 1, 2, 3};
  space.uneven_layers = 4;
  return space;
}

std::string percent(double ratio) { return fmt::format("{:+.3f} %", 100.0 * (ratio - 1.0)); }

}  // namespace

int main() {
  Table table({"run", "Mist", "ours", "difference", "Mist tunes", "ours, processor", "wall",
               "ratio", "Mist MiB", "wider", "difference", "processor"});
  double log_ratio = 0.0;
  int long_runs = 0;
  for (const MistTuning& t : mist_tunings()) {
    const Timed ours = tune(t.job, t.space, 10);
    const double ratio = t.tuning_s / ours.processor_s;
    if (t.tuning_s >= 5.0) log_ratio += std::log(ratio), ++long_runs;
    const Timed most = tune(t.job, wider(t.space), 1);
    table.add({t.name, fmt::format("{:.6f} s", t.best_s), fmt::format("{:.6f} s", ours.iteration_s),
               percent(ours.iteration_s / t.best_s), format_seconds(t.tuning_s),
               format_seconds(ours.processor_s), format_seconds(ours.wall_s),
               fmt::format("{:.0f}", ratio), fmt::format("{:.0f}", t.resident_mib),
               fmt::format("{:.6f} s", most.iteration_s), percent(most.iteration_s / t.best_s),
               format_seconds(most.processor_s)});
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print(
      "{}\n{:.0f} times as fast in geometric mean over the {} runs of 5 s and more; "
      "peak resident set of all together {} MiB.\n",
      table.text(), std::exp(log_ratio / long_runs), long_runs, usage.ru_maxrss / 1024);
}
