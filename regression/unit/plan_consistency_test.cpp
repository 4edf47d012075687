// Is the plan that a search chooses the best one that the program itself can find? Searches of
// parts of the space, which are left with fewer strategies to tell apart, must find none that
// simulates faster.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "planning_samples.hpp"
#include "trials.hpp"
#include "tuner/tuner.hpp"

namespace brume::tuner {
namespace {

// Relative, of simulated times: what nine jobs of ten keep, and all.
constexpr double usual = 0.005, most = 0.02;

/// A random job: three families on the machines of four profiles, from a device to eight nodes,
/// with memory from scarce to plenty.
std::string random_deck(std::mt19937& random) {
  const auto any = [&]<class T>(std::initializer_list<T> values) {
    return samples::pick<T>(random, std::vector<T>(values));
  };
  const std::string family = any({"gpt", "llama", "falcon"});
  const int heads = any({8, 16, 32}), layers = any({4, 6, 8, 12, 16});
  const int hidden = heads * 64 * any({1, 2}), sequence = any({1024, 2048, 4096});
  const int nodes = any({1, 1, 2, 4, 8}), devices = any({2, 4, 8});
  std::string model = fmt::format(
      "family = \"{}\"\nnum_layers = {}\nhidden_size = {}\nnum_heads = {}\nseq_len = {}\n"
      "vocab_size = {}\n",
      family, layers, hidden, heads, sequence, any({32000, 50304}));
  if (family == "llama") model += fmt::format("num_kv_heads = {}\n", heads / any({1, 4}));
  if (family == "falcon") model += "num_kv_heads = 1\n";
  // 16 bytes of state for each of about 12 hidden^2 parameters a layer.
  const double state_gib = 16.0 * 12.0 * layers * hidden * hidden / double(1 << 30);
  const double share = any({0.15, 0.3, 0.6, 1.2, 4.0});
  const double memory_gib = 0.5 + std::max(0.5, share * state_gib / any({1, nodes * devices}));
  return fmt::format(
      "[model]\n{}[training]\nsteps = 1\nglobal_batch = {}\nprecision = \"bf16\"\n[data]\ntrain = "
      "\"none.tok\"\n[cluster]\nnodes = {}\ndevices_per_node = {}\nmemory_gib = {:.2f}\n"
      "host_memory_gib = {}\nprofile = \"{}\"\n[search]\ntime_limit_s = 3600.0\n",
      model, nodes * devices * any({1, 2, 4}), nodes, devices, memory_gib, any({8, 64, 512}),
      any({"a100-40", "h200", "l4", "l4-backup"}));
}

struct Chosen {
  double seconds;
  std::string plan;
};

/// The plan that a search finds; none where nothing fits.
std::optional<Chosen> chosen(const deck::Deck& deck, const deck::SearchKeys& keys) {
  try {
    const Result result =
        tune(model::config(deck.model, deck.training.precision), deck.training.global_batch,
             hardware::cluster(deck.cluster), hardware::load_profile(deck.cluster.profile), keys,
             {.reasons = false, .threads = 1});
    return Chosen{result.best[0].seconds(), summary(result.best[0].plan)};
  } catch (const Infeasible&) {
    return std::nullopt;
  }
}

TEST(PlanConsistency, NoNarrowedSearchFindsAFasterPlan) {
  using Keys = deck::SearchKeys;
  std::vector<std::pair<std::string, std::function<void(Keys&)>>> narrowed;
  for (const int stages : {1, 2, 4, 8})
    for (const bool unequal : {true, false})
      if (stages > 1 || unequal)
        narrowed.emplace_back(fmt::format("{} stages, {}", stages, unequal ? "any" : "alike"),
                              [=](Keys& keys) {
                                keys.stages = {stages};
                                keys.unequal_stages = unequal;
                              });
  narrowed.emplace_back("no run-ahead", [](Keys& keys) { keys.run_ahead = {1}; });
  narrowed.emplace_back("tp 1", [](Keys& keys) { keys.tp = {1}; });
  std::mt19937 random(11);
  const int decks = test::trials(6);
  int with_plans = 0, off = 0;
  double worst = 1.0;
  for (int trial = 0; trial < decks; ++trial) {
    const std::string text = random_deck(random);
    SCOPED_TRACE(fmt::format("trial {}\n{}", trial, text));
    const deck::Deck deck = deck::parse(text, "random");
    const std::optional<Chosen> best = chosen(deck, deck.search);
    with_plans += best.has_value();
    double worst_here = 1.0;
    for (const auto& [name, narrow] : narrowed) {
      Keys keys = deck.search;
      narrow(keys);
      const std::optional<Chosen> other = chosen(deck, keys);
      if (!other) continue;
      ASSERT_TRUE(best) << name << " finds " << other->plan;
      EXPECT_LE(best->seconds, other->seconds * (1.0 + most)) << best->plan << "\n"
                                                              << name << ": " << other->plan;
      worst_here = std::max(worst_here, best->seconds / other->seconds);
    }
    worst = std::max(worst, worst_here);
    off += worst_here > 1.0 + usual;
  }
  fmt::print("worst chosen / best {:.4f} over {} decks, {} with a plan, {} above {:.3f}\n", worst,
             decks, with_plans, off, 1.0 + usual);
  EXPECT_LE(off, decks / 10);
  EXPECT_GE(with_plans, decks / 2);
}

}  // namespace
}  // namespace brume::tuner
