/// @file Measures the operators of a model's segments and the optimizer.
#pragma once

#include <vector>

#include "bench.hpp"
#include "hardware/profile.hpp"
#include "profiler/profiler.hpp"

namespace brume::profiler {

/// One row for each distinct (kind, dims) that a segment has at some (b, tp) of `shapes`, and AdamW
/// at a few sizes. Calls the kernels that a segment's tasks call; parts of a segment that its
/// operators do not list are timed with their neighbours, so that the rows of a segment add up to
/// it. Operators that could not fit `memory_bytes`, the limit of every plan, are left out.
std::vector<hardware::OperatorRow> measure_operators(Bench& bench, const model::Config& model,
                                                     const Shapes& shapes,
                                                     std::int64_t memory_bytes);

/// Elements of the largest block's flat buffer, not split.
std::int64_t largest_block_elements(const model::Config& model);

/// Sets flops_per_s and bytes_per_s: a large matrix product; y += x over arrays beyond the caches.
void measure_rates(Bench& bench, const model::Config& model, hardware::Profile& profile);

}  // namespace brume::profiler
