/// @file Time and memory of the search over the number of devices:
/// perf_scale DECK [nodes...] [key=value...]
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "tuner/tuner.hpp"

namespace brume {
namespace {

/// Largest resident set of this process so far.
double resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * double(usage.ru_maxrss);
}

/// Seconds of all threads of this process so far.
double cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int run(const std::vector<std::string>& arguments) {
  std::vector<std::string> sets, nodes;
  for (std::size_t i = 1; i < arguments.size(); ++i)
    (arguments[i].find('=') == std::string::npos ? nodes : sets).push_back(arguments[i]);
  if (nodes.empty()) nodes = {"1", "8", "32", "128", "512", "2048"};
  fmt::print("devices  wall [s]  CPU [s]  resident  gap        iteration  plan\n");
  for (const std::string& number : nodes) {
    std::vector<std::string> with = sets;
    with.push_back("cluster.nodes=" + number);
    const deck::Deck deck = deck::load(arguments[0], with);
    const hardware::Cluster cluster = hardware::cluster(deck.cluster);
    const double begin_s = cpu_s();
    try {
      const tuner::Result result = tuner::tune(model::config(deck.model, deck.training.precision),
                                               deck.training.global_batch, cluster,
                                               hardware::load_machine(deck.cluster), deck.search);
      const tuner::RankedPlan& best = result.best[0];
      fmt::print("{:7}  {:8.1f}  {:7.1f}  {:>8}  {:7.2g} %  {:>9}  {}\n", cluster.devices(),
                 result.search.seconds, cpu_s() - begin_s, format_bytes(resident_bytes()),
                 100.0 * result.search.gap, format_seconds(best.prediction.iteration_s),
                 tuner::summary(best.plan));
    } catch (const Error& error) {
      fmt::print("{:7}  {}\n", cluster.devices(), error.what());
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace brume

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: perf_scale DECK [nodes...] [key=value...]\n");
    return 2;
  }
  try {
    brume::log::start(0, 1, false);
    return brume::run({argv + 1, argv + argc});
  } catch (const brume::Error& error) {
    fmt::print(stderr, "perf_scale: {}\n", error.what());
    return int(error.failure());
  }
}
