/// @file Time and memory of a plan in any order of passes, for orders other than 1F1B.
#pragma once

#include "analyzer/analyzer.hpp"

namespace brume::analyzer {

/// Time of one iteration [s] in any order of passes. Each pass waits for the one before it on its
/// ranks and for its message; messages wait for those before them in their direction, at either
/// end. Concurrent passes and messages slow each other by their mean. Nothing waits for bytes that
/// another buffer has left.
double time_by_passes(const Pipeline& pipeline);

/// Device bytes of a stage, which may be one of several on its ranks.
struct ChunkBytes {
  double persistent;           ///< from step to step
  double kept;                 ///< by a microbatch between its forward and its backward
  double forward, backward;    ///< at a pass's peak, if no other microbatch is in flight
  double between_parts = 0.0;  ///< kept by a microbatch between the parts of a split backward
  double first_forward = 0.0;  ///< at the peak of a first forward with updates; 0: as `forward`
};

/// Peaks of forwards and of backwards.
struct Peaks {
  double forward = 0.0, backward = 0.0;
};

/// Peaks of the ranks of `first`, which hold these stages. At each pass they are the bytes that all
/// stages keep from step to step and for their microbatches in flight, and the bytes of the pass.
Peaks peaks_by_passes(const plan::Plan& plan, int first, const std::vector<ChunkBytes>& chunks);

/// Second parts of a stage's backwards.
struct SecondPart {
  double work_s;  ///< of a microbatch
  int tasks;      ///< ... that it takes beside those of a whole backward
};
SecondPart second_part(const plan::Plan& plan, int stage, const model::Config& model,
                       const hardware::Profile& profile);

}  // namespace brume::analyzer
