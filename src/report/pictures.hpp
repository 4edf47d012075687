/// @file What pages of plans and of runs have in common.
#pragma once

#include <string>

#include "plan/plan.hpp"
#include "schedule/account.hpp"

namespace brume::report {

/// A row of boxes for each stage, a box a device, those of a node together.
std::string stages_picture(const plan::Plan& plan);

/// Boxes of one stage, a box per device, those of a node together.
struct StageBoxes {
  std::string name;
  std::string path;
  std::string rest;  ///< text for further devices; empty: all are drawn
  double right;
};
constexpr double stage_row = 20;  ///< [pixels] height of a stage
StageBoxes stage_boxes(const plan::Plan& plan, std::size_t stage, double left, double y);

/// The shade of the k-th kind of memory.
int memory_shade(std::size_t kind);

std::string activity_legend();
/// A bar as long as an iteration.
std::string bar(const schedule::Seconds& seconds, double iteration_s);

}  // namespace brume::report
