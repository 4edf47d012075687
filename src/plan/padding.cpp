#include "plan/padding.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/numbers.hpp"
#include "base/text.hpp"
#include "plan/shapes.hpp"

namespace brume::plan {
namespace {

constexpr std::int64_t most_step = 1 << 24;  // tokens

/// Each part of a sequence has as many tokens as another one, and so has each tensor-parallel rank.
std::int64_t multiple(const Stage& stage) {
  const int of_tp = stage.tp / std::gcd(stage.tp, stage.microbatch);
  return stage.cp * std::lcm(std::int64_t{stage.gather_keys == 1 ? 2 : 1}, of_tp);
}

}  // namespace

int padding(const Plan& plan, int seq_len) {
  std::int64_t step = 1;
  for (const Stage& stage : plan.stages) {
    const std::int64_t own = multiple(stage);
    if (own > most_step || std::lcm(step, own) > most_step) return 0;  // of no cluster: see check()
    step = std::lcm(step, own);
  }
  return int(round_up(seq_len, step)) - seq_len;
}

model::Config padded(model::Config model, const Plan& plan) {
  model.padding = padding(plan, model.seq_len);
  return model;
}

std::optional<PaddedContexts> padded_contexts(const model::Config& model,
                                              const hardware::Cluster& cluster,
                                              const deck::SearchKeys& search) {
  constexpr double most_padded = 1.02;
  std::vector<int> uneven;
  for (const int cp : divisors(cluster.devices()))
    if (cp > 1 && allows_cp(model, search, cp) && model.seq_len % (2 * cp) != 0)
      uneven.push_back(cp);
  if (uneven.empty()) return std::nullopt;
  int length = 0;
  for (const int cp : uneven) {
    const int of_cp = int(round_up(model.seq_len, 2 * cp));
    if (length == 0 || of_cp <= most_padded * model.seq_len) length = of_cp;
  }
  std::erase_if(uneven, [&](int cp) { return length % (2 * cp) != 0; });
  PaddedContexts found{model, search};
  found.search.cp = std::move(uneven);
  found.model.padding = length - model.seq_len;
  return found;
}

}  // namespace brume::plan
