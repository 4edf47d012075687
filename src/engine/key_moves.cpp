#include "engine/key_moves.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"

namespace brume::engine {
namespace {

/// The stage of a layer, and the number in the copy of its first rank.
struct Holders {
  const plan::Stage* stage;
  int first;
};

Holders holders(const plan::Plan& plan, int layer) {
  int first = 0;
  for (const plan::Stage& stage : plan.stages) {
    if (layer < stage.first_layer + stage.layers) return {&stage, first};
    first += stage.tp;
  }
  throw Error(Failure::bug, "no stage has layer {}", layer);
}

}  // namespace

KeyHeads::KeyHeads(const plan::Stage& stage, int tp_rank, const model::Config& model) {
  const int all = model.keeps_latents() ? 1 : model.kv_heads();
  cut = !model.keeps_latents() && all % stage.tp == 0;
  count = cut ? all / stage.tp : all;
  first = cut ? tp_rank * count : 0;
  const double bytes = model::cache_bytes(model).evaluate(stage.split().values());
  block_bytes = std::int64_t(bytes) / model.generation.blocks / 2 / count;
}

std::vector<std::vector<KeyMove>> key_rounds(const plan::Plan& from, const plan::Plan& to,
                                             const model::Config& model) {
  std::vector<std::vector<KeyMove>> rounds;
  for (int layer = 0; layer < model.num_layers; ++layer) {
    const Holders given = holders(from, layer), needed = holders(to, layer);
    const auto round = std::size_t(layer - given.stage->first_layer);
    if (round == rounds.size()) rounds.emplace_back();
    std::vector<KeyMove>& moves = rounds[round];
    for (int t = 0; t < needed.stage->tp; ++t) {
      const KeyHeads wanted(*needed.stage, t, model);
      for (int f = 0; f < given.stage->tp; ++f) {
        const KeyHeads there(*given.stage, f, model);
        if (!there.cut && f != t % given.stage->tp) continue;
        const int first = std::max(wanted.first, there.first),
                  end = std::min(wanted.first + wanted.count, there.first + there.count);
        if (first < end)
          moves.push_back({layer, first, end - first, given.first + f, needed.first + t});
      }
    }
  }
  return rounds;
}

double moved_block_bytes(const plan::Plan& from, const plan::Plan& to, const model::Config& model) {
  std::vector<double> sent(std::size_t(to.devices())), got = sent;
  const auto head_bytes = double(KeyHeads(to.stages.front(), 0, model).block_bytes);
  for (const std::vector<KeyMove>& moves : key_rounds(from, to, model))
    for (const KeyMove& move : moves) {
      if (move.from == move.to) continue;
      sent[std::size_t(move.from)] += 2.0 * head_bytes * move.heads;
      got[std::size_t(move.to)] += 2.0 * head_bytes * move.heads;
    }
  return std::max(std::ranges::max(sent), std::ranges::max(got));
}

std::vector<int> ranks_by_copy(const plan::Plan& plan) {
  std::vector<int> ranks(std::size_t(plan.devices()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(
      ranks, {}, [&](int rank) { return plan::place(plan, rank).index(model::data_axes); });
  return ranks;
}

}  // namespace brume::engine
