/// @file Spans of time put together.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/time.hpp"

namespace brume::schedule {

/// Spans apart from each other, in order.
using Spans = std::vector<Span>;

inline Spans united(Spans spans) {
  std::ranges::sort(spans, {}, &Span::start_s);
  Spans apart;
  for (const Span& span : spans)
    if (apart.empty() || span.start_s > apart.back().end_s)
      apart.push_back(span);
    else
      apart.back().end_s = std::max(apart.back().end_s, span.end_s);
  return apart;
}

inline double length(const Spans& apart) {
  return std::transform_reduce(apart.begin(), apart.end(), 0.0, std::plus<>(),
                               [](const Span& span) { return span.end_s - span.start_s; });
}

}  // namespace brume::schedule
