/// @file Memory that the stages of a given plan take, and whether it fits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "hardware/cluster.hpp"
#include "plan/plan.hpp"

namespace brume::app {

/// What the analyzer says of a given plan. Of stages whose memory its formulas only come near to,
/// what their Programs take in placement instead: of ranks that hold several stages, or split
/// backwards, and of all that may or may not fit.
analyzer::Prediction predict(const plan::Plan& plan, const model::Config& model,
                             const hardware::Machine& machine, const hardware::Cluster& cluster);

/// Bytes of one kind of memory.
struct Need {
  std::int64_t bytes = 0;
  std::int64_t limit_bytes = 0;
};

/// What a stage takes: of a device of its, and of the fullest node that it lies on, which other
/// stages may share.
struct StageNeed {
  Need device, host, disk;
};

std::vector<StageNeed> stage_needs(const plan::Plan& plan, const analyzer::Prediction& prediction,
                                   const hardware::Cluster& cluster);

/// One sentence for each limit that a stage exceeds, and by how much; none where the plan fits.
std::vector<std::string> misfits(const plan::Plan& plan, const std::vector<StageNeed>& needs);

/// A table for people, then the misfits.
std::string fit_text(const plan::Plan& plan, const std::vector<StageNeed>& needs,
                     std::size_t columns);

}  // namespace brume::app
