/// @file The times of a stage's passes, term by term.
#pragma once

#include "analyzer/analyzer.hpp"

namespace brume::analyzer {

TimeTerms stage_time(const model::Config& model, const hardware::Machine& machine, StageRole role);

}  // namespace brume::analyzer
