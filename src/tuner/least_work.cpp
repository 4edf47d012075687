#include "least_work.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/numbers.hpp"
#include "price/price.hpp"

namespace brume::tuner {
namespace {

/// A segment, and how many of it a sequence goes through, forward and backward.
struct Segments {
  model::SegmentKind kind;
  int forwards, backwards;
};
std::vector<Segments> parts_of(const model::Config& model) {
  std::map<model::SegmentKind, Segments> count;
  const std::vector<model::Block> blocks = model::blocks(model);
  for (int i = 0; i < int(blocks.size()); ++i) {
    const model::Block& block = blocks[i];
    const bool is_layer = block.kind == model::BlockKind::layer;
    const auto layer = is_layer ? model.layer_kind(block.layer) : model::LayerKind{};
    for (const model::SegmentKind kind : model::segment_kinds(model, block.kind, layer)) {
      Segments& of = count.try_emplace(kind, Segments{kind, 0, 0}).first->second;
      ++of.forwards;
      of.backwards += model.has_backward(i);
    }
  }
  std::vector<Segments> all;
  for (const auto& entry : count) all.push_back(entry.second);
  return all;
}

}  // namespace

double least_work_s(const std::vector<PipelineConfig>& configs, const model::Config& model,
                    int global_batch, const hardware::Cluster& cluster,
                    const hardware::Machine& machine) {
  const auto parts = parts_of(model);
  // Seconds of a sequence in each part on one device, by group and split.
  std::map<std::pair<int, model::Split>, std::vector<double>> known;
  const auto work_s = [&](const Layout& layout) -> const std::vector<double>& {
    const model::Split split = stage_of(layout, {}).split();
    const auto [entry, fresh] = known.try_emplace({layout.group, split});
    for (std::size_t i = 0; fresh && i < parts.size(); ++i) {
      const auto seconds = [&](price::Pass pass) {
        return price::segment_s(model, machine.profile(layout.group), parts[i].kind, pass, split);
      };
      const double pieces =
          model::pieces(model, parts[i].kind, split.division()).count.evaluate(split.values());
      entry->second.push_back(pieces * layout.tp * layout.cp / layout.microbatch *
                              (parts[i].forwards * seconds(price::Pass::forward) +
                               parts[i].backwards * seconds(price::Pass::stored_backward)));
    }
    return entry->second;
  };
  double least_s = infinity;
  for (const PipelineConfig& config : configs) {
    std::vector<double> fastest_s(parts.size(), infinity);
    for (const Layout& layout : config.layouts)
      for (std::size_t i = 0; i < parts.size(); ++i)
        fastest_s[i] = std::min(fastest_s[i], work_s(layout)[i]);
    double sum_s = 0.0;
    for (const double part_s : fastest_s) sum_s += part_s;
    least_s = std::min(least_s, sum_s * global_batch / cluster.devices());
  }
  return least_s == infinity ? 0.0 : least_s;
}

}  // namespace brume::tuner
