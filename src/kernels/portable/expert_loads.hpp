/// @file Numbers of copies for each expert, in the workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/experts.hpp"
#include "kernels/portable/launch.hpp"
#include "kernels/portable/ordering.hpp"

namespace brume::kernels {

/// Loads of sequences.
struct Loads {
  std::int32_t* of_first = nullptr;  ///< [E] of the first sequence
  std::int64_t stride = 0;           ///< between the loads of two sequences
};

/// @param first      token
/// @param sequences  equal runs of the tokens
inline Loads loads_of_runs(const Routes& routes, std::int64_t first, std::int64_t tokens,
                           std::int64_t sequences) {
  const int num_experts = routes.num_experts, chosen = routes.chosen;
  const ItemParts parts = parts_of_items(tokens * chosen, sequences, num_experts);
  const std::int64_t stride = parts.count / std::max<std::int64_t>(1, sequences) * num_experts;
  std::int32_t* const loads = workspace_of<std::int32_t>(parts.count * num_experts);
  count_keys(
      parts, num_experts,
      KOKKOS_LAMBDA(std::int64_t copy) {
        return routes.pads(first + copy / chosen) ? -1 : int(routes.experts[first * chosen + copy]);
      },
      loads);
  for_each(
      "expert_loads", sequences * num_experts, KOKKOS_LAMBDA(std::int64_t i) {
        std::int32_t* const own = loads + i / num_experts * stride + i % num_experts;
        for (std::int64_t part = num_experts; part < stride; part += num_experts) *own += own[part];
      });
  return {loads, stride};  // a sequence's loads are in the place of its first part's counts
}

/// The loads of the sequences that are balanced.
inline Loads loads_of(const Routes& routes, std::int64_t tokens, const RouterLoss& loss) {
  const int num_experts = routes.num_experts;
  if (loss.counts == nullptr) {
    const std::int64_t all = loss.before + tokens + loss.after;
    return loads_of_runs(routes, -std::int64_t(loss.before), all, all / loss.seq_len);
  }
  const float* const counts = loss.counts;
  const std::int64_t all = std::int64_t(loss.parts) * num_experts;
  std::int32_t* const loads = workspace_of<std::int32_t>(num_experts);
  for_each(
      "expert_loads", num_experts, KOKKOS_LAMBDA(std::int64_t i) {
        loads[i] = 0;
        for (std::int64_t one = i; one < all; one += num_experts)
          loads[i] += std::int32_t(counts[one]);
      });
  return {loads, 0};
}

}  // namespace brume::kernels
