#include "rank_checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "engine/replicas.hpp"

namespace brume::app {

std::vector<std::string> RankChecks::after_step(const engine::StepMetrics& metrics) {
  std::vector<std::string> said = name_stragglers(metrics);
  if (compare_every_ > 0 && engine_.steps_done() % compare_every_ == 0) compare_replicas();
  return said;
}

std::vector<std::string> RankChecks::name_stragglers(const engine::StepMetrics& metrics) {
  std::vector<std::string> said;
  for (const engine::Straggler& slow :
       stragglers_.add(metrics.busy_s, metrics.iteration_s, crew_)) {
    if (crew_.rank() != 0) continue;
    said.push_back(
        fmt::format("rank {} is slower than the others of its stage: {} takes {} a step, theirs {}",
                    slow.rank, schedule::name(slow.channel), format_seconds(slow.typical_s),
                    format_seconds(slow.peers_s)));
    log::warn("{}", said.back());
  }
  return said;
}

void RankChecks::compare_replicas() {
  const auto difference = engine::compare_replicas(engine_, plan_, crew_);
  if (!difference) return;
  std::vector<std::string> ranks;
  for (const std::vector<int>& alike : difference->ranks)
    ranks.push_back(fmt::format("{}", fmt::join(alike, ", ")));
  throw comm::AgreedError(
      Failure::network,
      "step {}: copies of {} differ: one on rank {}. A node's memory or processor may be broken; "
      "the same line goes on from the last checkpoint",
      engine_.steps_done(), difference->parameter, fmt::join(ranks, ", another one on rank "));
}

}  // namespace brume::app
