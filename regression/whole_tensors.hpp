/// @file Whole tensors, put together from the slabs of all ranks.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.hpp"

namespace brume::test {

/// Whole tensors by name and kind.
using State = std::map<std::pair<std::string, std::string>, std::vector<float>>;

/// Calls use(tensor element, slab element) for each element of a slab, one by one.
template <typename Use>
void for_each_element(const engine::Slab& slab, Use&& use) {
  const std::vector<float> values = engine::values(slab);
  for (std::int64_t i = 0; i < slab.elements; ++i) {
    std::int64_t rest = slab.first + i, global = 0, stride = 1;
    for (std::size_t d = slab.shape.size(); d-- > 0;) {
      global += (slab.offset[d] + rest % slab.shape[d]) * stride;
      rest /= slab.shape[d];
      stride *= slab.global_shape[d];
    }
    use(std::size_t(global), values[std::size_t(i)]);
  }
}

/// Adds what a rank owns.
inline void collect(State& state, const std::vector<engine::Slab>& slabs) {
  for (const engine::Slab& slab : slabs) {
    std::size_t elements = 1;
    for (const std::int64_t extent : slab.global_shape) elements *= std::size_t(extent);
    std::vector<float>& tensor = state[{slab.name, slab.kind}];
    tensor.resize(elements, NAN);
    if (slab.owned)
      for_each_element(slab, [&](std::size_t at, float value) { tensor[at] = value; });
  }
}

}  // namespace brume::test
