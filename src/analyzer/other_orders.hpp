/// @file What changes where ranks hold several stages each, or backwards are in two parts.
#pragma once

#include "analyzer/analyzer.hpp"

namespace brume::analyzer {

/// Time of one iteration [s] in the order of plan::next_pass of several chunks, or of
/// plan::next_split_pass. Each pass waits for the one before it on its ranks and for its message;
/// messages wait for those before them in their direction, at either end. What runs beside passes
/// and messages slows them by its mean. Nothing waits for bytes that another buffer has left.
double time_by_passes(const Pipeline& pipeline);

/// What a stage holds on the device [bytes].
struct ChunkBytes {
  double persistent;         ///< from step to step
  double kept;               ///< by a microbatch between its forward and its backward
  double forward, backward;  ///< at the peaks of a stage with no other microbatch in flight
};

/// Of forwards and of backwards.
struct Peaks {
  double forward = 0.0, backward = 0.0;
};

/// The peaks of the ranks of `first`, which hold these stages: at each pass what all of them keep
/// from step to step and for their microbatches in flight, and what the pass takes by itself.
Peaks interleaved_peaks(const plan::Plan& plan, int first, const std::vector<ChunkBytes>& chunks);

/// Second parts of a stage's backwards.
struct SecondPart {
  double work_s;  ///< of a microbatch
  int tasks;      ///< ... that it takes beside those of a whole backward
};
SecondPart second_part(const plan::Plan& plan, int stage, const model::Config& model,
                       const hardware::Profile& profile);

/// The peaks of a stage whose backwards are in two parts: the first part of a microbatch ends with
/// what the second one needs of all layers but the last, beside what any backward takes for that.
Peaks split_peaks(const plan::Plan& plan, int stage, const ChunkBytes& bytes, double between_parts);

}  // namespace brume::analyzer
