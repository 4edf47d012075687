#include "strategy.hpp"

#include <bit>
#include <cstdint>
#include <numeric>

#include "base/hash.hpp"
#include "space.hpp"

namespace brume::tuner {
namespace {

template <class T>
std::vector<T> sorted(std::vector<T> values, std::vector<T> otherwise) {
  if (values.empty()) return otherwise;
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

std::size_t Strategy::Hash::operator()(const Strategy& strategy) const {
  std::size_t sum = std::size_t(strategy.sharding.replicas) << 24 ^
                    std::size_t(strategy.level) << 12 ^ std::size_t(strategy.layers) << 2 ^
                    std::size_t(strategy.sharding.zero_level);
  for (const double ratio : strategy.ratios)
    sum = hash_with(sum, std::bit_cast<std::uint64_t>(ratio));
  return sum;
}

bool Strategy::parts_fit() const {
  Ratios parts{};
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (const auto whole = plan::shares[i].whole)
      if ((parts[*whole] += ratios[i]) > 1.0) return false;
  return true;
}

bool Strategy::repeats() const {
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (const auto whole = plan::shares[i].whole)
      if (ratios[i] > 0.0 && ratios[*whole] == 0.0) return true;
  return false;
}

Strategy Strategy::at_level(int other) const {
  Strategy found = *this;
  found.level = other;
  return found;
}

Strategy Strategy::of_chunk(int chunk, int chunks, bool reversed) const {
  const auto layers_before = [&](int count) {
    const int fewer = reversed ? chunks - layers % chunks : 0;
    return count * (layers / chunks) + std::clamp(count - fewer, 0, layers % chunks);
  };
  const int first = layers_before(chunk), end = layers_before(chunk + 1);
  Strategy part = *this;
  part.layers = end - first;
  part.level = level * end / layers - level * first / layers;
  return part;
}

void Strategy::apply_to(plan::Stage& stage) const {
  for (const StrategyNumber& number : strategy_numbers) stage.*number.member = number.of(*this);
  for (std::size_t i = 0; i < ratios.size(); ++i) stage.*plan::shares[i].ratio = ratio(i);
}

Axes::Axes(const deck::SearchKeys& search)
    : zero_levels(sorted(search.zero_levels, {0, 1, 2, 3})),
      recompute(search.recompute),
      store(search.store && !search.store_rest),
      store_rest(search.store_rest),
      shard_within_node(search.shard_within_node) {
  for (std::size_t i = 0; i < ratios.size(); ++i)
    ratios[i] = sorted(search.*plan::shares[i].list(), {0.0});
}

std::vector<Sharding> Axes::shardings(const Layout& mesh) const {
  const int ranks = stage_of(mesh, "").state_ranks();
  if (ranks == 1) return {{zero_levels[0], 1}};  // nothing to shard over
  std::vector<Sharding> found;
  const bool within_node =
      shard_within_node && mesh.nodes > 1 && ranks > mesh.nodes && ranks % mesh.nodes == 0;
  for (const int zero_level : zero_levels) {
    found.push_back({zero_level, 1});
    if (within_node && zero_level > 0) found.push_back({zero_level, mesh.nodes});
  }
  return found;
}

std::vector<Strategy> Axes::lowest(const Layout& mesh, int layers) const {
  std::vector<Strategy> found;
  for (const Sharding& sharding : shardings(mesh)) {
    Strategy& row = found.emplace_back(Strategy{
        .sharding = sharding,
        .layers = layers,
        .level = levels(layers).least,
        .stores_rest = store_rest,
    });
    for (std::size_t i = 0; i < ratios.size(); ++i) row.ratios[i] = ratios[i].front();
  }
  return found;
}

std::vector<Strategy> Axes::rows(const Layout& mesh, int layers) const {
  std::vector<Strategy> found{{.layers = layers, .stores_rest = store_rest}};
  const auto spread = [&](const auto& values, const auto& set) {
    std::vector<Strategy> all;
    for (const Strategy& row : found)
      for (const auto& value : values) set(all.emplace_back(row), value);
    found = std::move(all);
  };
  for (std::size_t i = 0; i < ratios.size(); ++i)
    spread(ratios[i], [i](Strategy& s, double ratio) { s.ratios[i] = ratio; });
  std::erase_if(found, [](const Strategy& s) { return !s.parts_fit(); });
  spread(shardings(mesh), [](Strategy& s, const Sharding& sharding) { s.sharding = sharding; });
  return found;
}

std::vector<int> Axes::ends(int layers) const {
  const auto [least, most] = levels(layers);
  std::vector<int> all{0};
  if (least < 0) all.push_back(least);
  if (most > 0) all.push_back(most);
  return all;
}

std::vector<int> Axes::turning_levels(int layers) const {
  constexpr int few = 4;
  if (layers > few) return ends(layers);
  const auto [least, most] = levels(layers);
  std::vector<int> found(std::size_t(most - least) + 1);
  std::iota(found.begin(), found.end(), least);
  return found;
}

Axes Axes::in_memory() const {
  Axes axes = *this;
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (plan::shares[i].on_disk()) axes.ratios[i] = {0.0};
  return axes;
}

Axes Axes::of_split_backwards() const {
  Axes axes = *this;
  std::erase_if(axes.zero_levels, [](int level) { return level > 1; });
  if (axes.zero_levels.empty()) axes.zero_levels = {0};
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (plan::shares[i].ratio == &plan::Stage::grad_offload_ratio) axes.ratios[i] = {0.0};
  axes.recompute = false;
  return axes;
}

}  // namespace brume::tuner
