/// @file Plans that were placed, as a search returns them.
#pragma once

#include "grid.hpp"
#include "placement.hpp"
#include "search_input.hpp"
#include "tuner/result.hpp"

namespace brume::tuner {

/// A plan that was placed, with its prediction and, if there is time, its simulation.
RankedPlan ranked(const SearchInput& input, Grid& grid, const plan::Plan& plan,
                  const Placement& placed);

}  // namespace brume::tuner
