/// @file Measures the operators of a model's segments and the optimizer.
#pragma once

#include <optional>
#include <vector>

#include "bench.hpp"
#include "hardware/profile.hpp"
#include "passes.hpp"
#include "profiler/profiler.hpp"

namespace brume::profiler {

/// Memory that bounds what is measured.
struct Limits {
  std::int64_t memory_bytes;  ///< of every plan: what could not fit it is of no use
  std::int64_t rank_bytes;    ///< that this node has for each of its ranks
};

struct Chosen {
  std::vector<Item> items;
  int left_out = 0;  ///< shapes beyond rank_bytes; their times follow from smaller ones
};

/// Each distinct (kind, dims) that a segment has at some (b, tp) of `shapes`, and the update at a
/// few sizes. Takes no memory yet.
///
/// @throws Error(resource) when every shape of some operator is beyond rank_bytes
Chosen choose_operators(const model::Config& model, const Shapes& shapes, const Limits& limits);

/// One row for each of `items`. Calls the kernels that a segment's tasks call; parts of a segment
/// that its operators do not list are timed with their neighbours, so that the rows of a segment
/// add up to it. One operator's operands at a time are in memory.
/// @param rates  what `measure_rates` found, for the share that is said to be done
std::vector<hardware::OperatorRow> measure_operators(Bench& bench, const model::Config& model,
                                                     const std::vector<Item>& items,
                                                     const hardware::Profile& rates);

/// A call of it at these rates [s].
double expected_s(const Item& item, const hardware::Profile& rates);

/// Elements of the largest block's flat buffer, not split.
std::int64_t largest_block_elements(const model::Config& model);

/// Sets flops_per_s, in fp8 also its own, and bytes_per_s: a large matrix product; y += x over
/// arrays beyond the caches.
void measure_rates(Bench& bench, const model::Config& model, hardware::Profile& profile);

/// Parameters a second that the node's processor steps for each rank, all ranks at once; beyond the
/// caches.
std::optional<double> measure_host_updates(Bench& bench, const model::Config& model);

}  // namespace brume::profiler
