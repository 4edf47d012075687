/// @file What the planner says of a run afterwards: which other plan its measured times would
/// favour.
#pragma once

#include <optional>
#include <vector>

#include "report/report.hpp"

namespace brume::app {

/// Plans near the run's own that would be faster, the best first: each simulated with what the
/// stages took in the run's last iteration instead of what their profile said. Nothing where the
/// run kept no timeline, or what it kept cannot be planned with.
std::optional<std::vector<report::Change>> changes(const report::Run& run);

}  // namespace brume::app
