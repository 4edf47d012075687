/// @file What pages of plans and of runs have in common.
#pragma once

#include <string>

#include "plan/plan.hpp"
#include "schedule/account.hpp"

namespace brume::report {

/// A row of boxes for each stage, a box a device, those of a node together.
std::string stages_picture(const plan::Plan& plan);

/// The shade of what a rank is at, the same in all pictures.
int shade_of(schedule::Activity activity);
std::string activity_legend();
/// A bar as long as an iteration.
std::string bar(const schedule::Seconds& seconds, double iteration_s);

}  // namespace brume::report
