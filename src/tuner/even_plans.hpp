/// @file Even plans, as experts write them: one layout and one strategy for all stages.
#pragma once

#include <vector>

#include "pipeline_search.hpp"

namespace brume::tuner {

class WorkerPool;

/// The fastest even plans by prediction, fastest first, at most one of each configuration. Their
/// stages have equal layers, one layout and one strategy without offload; passes go in any order.
/// All of them fit by the formulas.
///
/// A search of thousands of configurations takes long until it finds a plan; even plans are priced
/// first, so that a good plan is known at once. None for clusters of several groups.
///
/// @throws OutOfTime
std::vector<Candidate> even_plans(const SearchInput& input, WorkerPool& workers);

}  // namespace brume::tuner
