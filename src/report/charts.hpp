/// @file Curves of runs over their steps, and what happened between the steps.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/report.hpp"
#include "svg.hpp"

namespace brume::report {

/// Charts of all runs, as HTML.
std::string charts(std::span<const Run> runs);

/// Events of a run, and its steps without an update, in the order of steps.
std::vector<Mark> marks(const Run& run);

/// A list of the marks in the charts of a run; empty if there are none.
std::string happenings(const Run& run);

}  // namespace brume::report
