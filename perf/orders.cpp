/// @file What other orders than 1F1B and selective recomputation gain, of twelve jobs: the
/// simulated time of the plan that a search finds, without chunks, without backwards in two parts,
/// without both, and without selective recomputation; and how long the search takes beside one of
/// 1F1B. All look for their reasons, too, which may come upon a faster plan.
///
///   perf_orders [job...]      numbers of jobs; all where none is named
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "tuner/tuner.hpp"

namespace {

using namespace brume;

struct Job {
  const char* deck;  ///< in inputs/
  const char* machine;
  int nodes;
  int global_batch;
};

// Three families, from 8 devices to 512, from many microbatches to few.
constexpr std::array jobs = std::to_array<Job>({
    {"gpt-6.7b", "l4-x8", 1, 64},
    {"gpt-6.7b", "l4-x8", 4, 128},
    {"falcon-7b", "l4-x8", 4, 64},
    {"llama-8b", "cloud-a100-40", 2, 128},
    {"llama-8b", "cloud-a100-40", 8, 64},
    {"gpt-22b", "cloud-a100-40", 4, 128},
    {"falcon-7b", "cloud-a100-40", 16, 128},
    {"gpt-22b", "dgx-a100-80", 16, 128},
    {"llama-70b", "dgx-a100-80", 32, 256},
    {"llama-70b", "dgx-h200", 8, 128},
    {"llama-70b", "dgx-h200", 32, 256},
    {"gpt-22b", "dgx-h200", 64, 512},
});

struct Found {
  double iteration_s;
  double search_s;
  std::string plan;
};

Found search(const deck::Deck& deck, const deck::SearchKeys& keys) {
  try {
    const tuner::Result result =
        tuner::tune(model::config(deck.model, deck.training.precision), deck.training.global_batch,
                    hardware::cluster(deck.cluster), hardware::load_machine(deck.cluster), keys);
    return {result.best[0].seconds(), result.search.seconds, tuner::summary(result.best[0].plan)};
  } catch (const tuner::Infeasible& none) {
    return {infinity, 0.0, none.word()};
  }
}

void compare(const Job& job) {
  const deck::Deck deck = deck::load(
      fmt::format("{}/{}.toml", BRUME_INPUTS, job.deck),
      {fmt::format("cluster.machine={}", job.machine), fmt::format("cluster.nodes={}", job.nodes),
       fmt::format("training.global_batch={}", job.global_batch)});
  const auto without = [&](bool chunks, bool zero_bubble, bool selective) {
    deck::SearchKeys keys = deck.search;
    if (chunks) keys.chunks = {1};
    if (zero_bubble) keys.zero_bubble = false;
    if (selective) keys.store_rest = true;
    return search(deck, keys);
  };
  const Found best = without(false, false, false), only_1f1b = without(true, true, false);
  const auto relative = [&](const Found& other) {
    return other.iteration_s == infinity
               ? "none fits"
               : fmt::format("{:.3f}", other.iteration_s / best.iteration_s);
  };
  fmt::print("{:10} {:>14} x {:3} {:5}  {:>9}  {:>9} {:>11} {:>9} {:>9}  {:>6.1f} s {:5.2f}  {}\n",
             job.deck, job.machine, job.nodes, job.global_batch, format_seconds(best.iteration_s),
             relative(without(true, false, false)), relative(without(false, true, false)),
             relative(only_1f1b), relative(without(false, false, true)), best.search_s,
             best.search_s / only_1f1b.search_s, best.plan);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    log::start(0, 1, false);
    fmt::print(
        "model      machine, nodes, batch      iteration  no chunks no 2 parts  1F1B only  "
        "no select.  search, of 1F1B's  plan\n");
    if (argc == 1)
      for (const Job& job : jobs) compare(job);
    for (int i = 1; i < argc; ++i) compare(jobs.at(std::size_t(std::atoi(argv[i]))));
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "perf_orders: {}\n", error.what());
    return int(error.failure());
  }
}
