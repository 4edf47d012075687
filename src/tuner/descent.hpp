/// @file Local search: steps from assignments to faster neighbours.
#pragma once

#include <functional>
#include <vector>

#include "pipeline.hpp"

namespace brume::tuner {

/// One point of each stage, first stage first, and what they take [s] as exactly as is known.
struct Timed {
  std::vector<Point> stages;
  double seconds = infinity;
};

using TimeOf = std::function<double(const std::vector<Point>& stages)>;

/// The fastest assignments that steps to neighbours lead to. The dynamic program tells assignments
/// apart by their bounds, so neighbours of its assignments may be faster. A neighbour
/// differs in the strategy of one stage, or of all stages that share it, on a mesh as large; or a
/// stage gives layers to another one. Those whose bound is not below the fastest time are not
/// timed.
/// @param from     assignments that are timed
/// @param width    assignments that each step begins with
/// @param known_s  where none is faster than that, only the fastest takes a step, and goes on while
///                 that helps
/// @return of those that it met on its way at most `width`, fastest first
std::vector<Timed> descend(const Pipeline& pipeline, const TimeOf& time, std::vector<Timed> from,
                           std::size_t width, double known_s);

}  // namespace brume::tuner
