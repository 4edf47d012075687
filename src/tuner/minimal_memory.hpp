/// @file Whether anything fits, and the plan that needs least memory, to say what would fit where
/// nothing does.
#pragma once

#include <optional>

#include "plan/plan.hpp"

namespace brume::tuner {

class Grid;
struct SearchInput;

/// Whether some plan of 1F1B fits by the formulas; true where there is no time to know.
bool may_fit(const SearchInput& input, Grid& grid);

/// The plan of 1F1B that needs least of its devices' memory, whatever their limit; none where
/// nothing can be split. @throws OutOfTime
std::optional<plan::Plan> minimal_memory_plan(const SearchInput& input, Grid& grid);

}  // namespace brume::tuner
