/// @file When something ran.
#pragma once

namespace brume {

/// The time in which a task ran, or would run [s], counted from the start of its iteration.
struct Span {
  double start_s = 0.0;
  double end_s = 0.0;
};

}  // namespace brume
