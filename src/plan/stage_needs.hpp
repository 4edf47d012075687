#pragma once

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"

namespace brume::plan {

/// Requires something of a stage: `plan: stage 2: tp ...`
template <typename... Args>
void stage_needs(bool holds, int stage, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds)
    throw Error(Failure::input, "plan: stage {}: {}", stage,
                fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace brume::plan
