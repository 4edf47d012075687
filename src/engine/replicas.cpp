#include "engine/replicas.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <sstream>

#include "plan/rules.hpp"

namespace brume::engine {
namespace {

constexpr std::int64_t piece_elements = 1 << 20;

/// XXH3 of a slab's values.
std::string hash(const Slab& slab) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state{XXH3_createState(),
                                                                       &XXH3_freeState};
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<float> room(std::size_t(std::min(piece_elements, slab.elements)));
  for (std::int64_t first = 0; first < slab.elements; first += piece_elements) {
    const auto piece =
        std::span(room).first(std::size_t(std::min(piece_elements, slab.elements - first)));
    get_values(slab, first, piece);
    XXH3_64bits_update(state.get(), piece.data(), piece.size_bytes());
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

/// Ranks with copies of the same weights, of experts or others, or of the same shard of them.
model::AxisSet holders(const plan::Stage& stage, bool dense) {
  const model::AxisSet all = dense ? model::data_axes : model::state_axes;
  return plan::sharded(stage).weights ? all.without(model::Axis::shard) : all;
}

/// Name and hash of each such weight that this rank computes with and its data-parallel peers hold
/// too.
std::vector<std::string> copies(Engine& engine, const plan::Stage& stage, bool dense) {
  std::vector<std::string> lines;
  if (plan::mesh(stage).size(holders(stage, dense)) == 1) return lines;
  const std::vector<Slab> slabs = engine.slabs();
  const bool rounded = std::ranges::any_of(
      slabs, [](const Slab& slab) { return slab.kind == "weight" && slab.rounded; });
  for (const Slab& slab : slabs)
    if (slab.kind == "weight" && slab.dense == dense && (slab.rounded != nullptr) == rounded)
      lines.push_back(slab.name + " " + hash(slab));
  return lines;
}

std::string together(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

/// Ranks by what they say, the most frequent text first.
std::vector<std::vector<int>> alike(const std::vector<std::pair<int, std::string>>& texts) {
  std::map<std::string, std::vector<int>> by_text;
  for (const auto& [rank, text] : texts) by_text[text].push_back(rank);
  std::vector<std::vector<int>> ranks;
  for (auto& [text, saying] : by_text) ranks.push_back(std::move(saying));
  std::ranges::stable_sort(ranks, std::greater{}, &std::vector<int>::size);
  return ranks;
}

std::optional<Difference> compare(Engine& engine, const plan::Plan& plan, comm::Communicator& world,
                                  bool dense) {
  const int mine = plan::stage_index(plan, world.rank());
  const std::string lines = together(copies(engine, plan.stages[mine], dense));
  const auto digest = fmt::format("{:016x}", XXH3_64bits(lines.data(), lines.size()));
  const std::vector<std::string> digests = world.gather(digest);

  const auto first_holder = [&](int rank) {
    const plan::Stage& stage = plan.stages[plan::stage_index(plan, rank)];
    return plan::members(plan, rank, holders(stage, dense)).front();
  };
  std::map<int, std::vector<int>> peers;  // by the first one
  for (int rank = 0; rank < world.size(); ++rank) peers[first_holder(rank)].push_back(rank);
  const auto differs = [&](const auto& group) {
    return std::ranges::any_of(
        group.second, [&](int rank) { return digests[rank] != digests[group.second.front()]; });
  };
  const auto group = std::ranges::find_if(peers, differs);
  if (group == peers.end()) return std::nullopt;

  const bool concerned = group->first == first_holder(world.rank());
  const std::vector<std::string> all = world.gather(concerned ? lines : std::string());
  std::vector<std::istringstream> of_rank;
  for (const int rank : group->second) of_rank.emplace_back(all[rank]);
  while (true) {
    std::vector<std::pair<int, std::string>> texts;
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      std::string line;
      std::getline(of_rank[i], line);
      texts.emplace_back(group->second[i], line);
    }
    std::vector<std::vector<int>> ranks = alike(texts);
    const std::string& line = texts.front().second;
    if (ranks.size() > 1 || line.empty()) return Difference{line.substr(0, line.find(' ')), ranks};
  }
}

}  // namespace

std::optional<Difference> compare_replicas(Engine& engine, const plan::Plan& plan,
                                           comm::Communicator& world) {
  const std::optional<Difference> found = compare(engine, plan, world, true);
  return found ? found : compare(engine, plan, world, false);
}

}  // namespace brume::engine
