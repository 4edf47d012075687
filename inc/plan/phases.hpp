/// @file Plans of a generation, whose prompts and next tokens may be computed by different ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace brume::plan {

struct PhasePlans {
  Plan answers;                      ///< plan of passes that compute next tokens
  std::optional<Plan> prompts = {};  ///< plan of passes that compute prompts; none: the same
};

/// The plans that differ, that of answers first.
std::vector<Plan> each(const PhasePlans& plans);

/// Their text form: that of the one plan, or the tables [prompts] and [answers].
std::string text(const PhasePlans& plans);
PhasePlans load_phases(const std::string& path);

}  // namespace brume::plan
