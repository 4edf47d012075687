#include "nonfinite.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"

namespace brume::app {
namespace {

/// Ranks that hold a part of each parameter which is not finite, in the model's order.
struct Found {
  std::string parameter;
  std::vector<int> ranks;
};

std::vector<Found> gather(const std::vector<std::string>& mine, const model::Config& model,
                          comm::Communicator& world) {
  std::vector<std::set<std::string>> all;
  for (const std::string& lines : world.gather(fmt::format("{}", fmt::join(mine, "\n")))) {
    std::set<std::string>& names = all.emplace_back();
    std::istringstream in(lines);
    for (std::string name; std::getline(in, name);) names.insert(name);
  }
  std::vector<Found> found;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters) {
      Found one{.parameter = parameter.name, .ranks = {}};
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank].contains(parameter.name)) one.ranks.push_back(int(rank));
      if (!one.ranks.empty()) found.push_back(one);
    }
  return found;
}

/// "embedding.token on ranks 0, 1"
std::string where(const Found& found) {
  return fmt::format("{} on {} {}", found.parameter, found.ranks.size() == 1 ? "rank" : "ranks",
                     fmt::join(found.ranks, ", "));
}

}  // namespace

void report_nonfinite(engine::Engine& engine, const model::Config& model,
                      comm::Communicator& world) {
  const engine::NonFinite mine = engine.nonfinite();
  const std::vector<Found> weights = gather(mine.weights, model, world);
  const std::vector<Found> gradients = gather(mine.gradients, model, world);
  if (world.rank() != 0) return;
  if (!weights.empty())
    log::warn("weights of {} are not finite, the first is {}",
              counted(std::int64_t(weights.size()), "parameter"), where(weights.front()));
  else if (!gradients.empty())
    log::warn("all weights are finite; gradients of {} are not, the first of a backward is {}",
              counted(std::int64_t(gradients.size()), "parameter"), where(gradients.back()));
}

}  // namespace brume::app
