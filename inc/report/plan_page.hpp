/// @file A plan as a page to look at: its stages on devices, where time and memory go, what else
/// there was.
#pragma once

#include <string>
#include <vector>

#include "io/trace.hpp"
#include "plan/plan.hpp"
#include "schedule/account.hpp"

namespace brume::report {

/// A named amount.
struct Amount {
  std::string name;
  double value;
};

/// Memory of the fullest device of a stage.
struct StageBytes {
  std::vector<Amount> kinds;  ///< the same ones for each stage
  double limit = 0.0;
};

/// Another plan that was found.
struct Alternative {
  std::string summary;
  double iteration_s = 0.0;
  double device_bytes = 0.0;
  double host_bytes = 0.0;
};

struct PlanPage {
  std::string title;
  plan::Plan plan;
  schedule::Account account;
  std::vector<StageBytes> memory;           ///< memory per stage
  std::vector<io::RankTimeline> timelines;  ///< first rank of each stage; none: not simulated
  double end_s = 0.0;                       ///< end of the timelines
  std::vector<Alternative> alternatives;    ///< the best first, which is the plan
  std::vector<Amount> without;              ///< an iteration without each knob [s]
  std::string text;                         ///< the search's explanation
};

/// One page without scripts that asks no network for anything.
std::string html(const PlanPage& page);

}  // namespace brume::report
