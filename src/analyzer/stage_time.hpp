/// @file The stable time and the delta of a stage, term by term.
#pragma once

#include <vector>

#include "analyzer/analyzer.hpp"

namespace brume::analyzer {

struct TimeTerms {
  std::vector<Term> stable;  ///< [s] a middle microbatch, forward + backward
  std::vector<Term> delta;   ///< [s] what the first and last microbatch add
};

TimeTerms stage_time(const model::Config& model, const hardware::Machine& machine, StageRole role);

}  // namespace brume::analyzer
