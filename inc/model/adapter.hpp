/// @file Adapters of linear layers.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/layer.hpp"

namespace brume::model {

/// Trained terms of low rank, added to frozen linear layers: y = W x + scale B A x.
///
/// @source  Hu et al. 2021
struct Adapter {
  struct Target {
    Module module;
    int rank;  ///< r
    double alpha;

    bool operator==(const Target&) const = default;
  };
  std::vector<Target> targets = {};  ///< linear layers of adapter_targets(), then expert_targets()
  bool rslora = false;
  /// The layers with a term, in rising order; none: all. In other layers it stays zero.
  std::vector<int> layers = {};
  std::vector<Module> saved = {};  ///< trained whole: some of modules_to_save()

  bool operator==(const Adapter&) const = default;
  bool exists() const { return !targets.empty(); }
  /// Each expert has factors of its own, which are where the expert is.
  bool is_of_experts() const { return find(Module::experts_in) || find(Module::experts_out); }
  /// @return null if the module has no term
  const Target* find(Module module) const {
    const auto found = std::ranges::find(targets, module, &Target::module);
    return found == targets.end() ? nullptr : &*found;
  }
  bool is_in(int layer) const {
    return layers.empty() || std::ranges::binary_search(layers, layer);
  }
  bool saves(Module module) const { return std::ranges::count(saved, module) > 0; }
  /// alpha / r, or with rslora alpha / sqrt(r) (Kalajdzievski 2023)
  double scale(const Target& target) const {
    return target.alpha / (rslora ? std::sqrt(target.rank) : target.rank);
  }
};

}  // namespace brume::model
