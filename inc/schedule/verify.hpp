/// @file Checks Programs: no two unordered tasks touch the same bytes; no deadlock between ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::schedule {

/// The faults of one rank's Program: pairs of tasks on different channels, not ordered by waits,
/// that touch the same bytes while one writes; buffers that overlap while both live. Empty: none.
std::vector<std::string> verify(const Program& program);

/// The faults between the ranks' Programs (all of them, in rank order): transfers that do not
/// match, and tasks that can never start. Empty: none.
std::vector<std::string> verify(std::span<const Program> programs, const plan::Plan& plan);

}  // namespace brume::schedule
