/// @file Parts of Mist's counting of one stage.
#pragma once

#include "analyzer/mist.hpp"

namespace brume::analyzer {

/// Where a stage stands.
struct MistPlace {
  bool first = true;
  bool last = true;
  int earlier = 0;  ///< microbatches in flight before the current one
};

inline constexpr double bytes_per_mib = 1024.0 * 1024.0;
inline constexpr double bytes_per_gib = 1024.0 * bytes_per_mib;
inline constexpr double optimizer_per_weight = 6.0;  ///< fp32 weight and moments, over fp16 weight

/// t and d [s].
MistStagePrediction mist_stage_time(const MistCase& mist, const MistStage& stage,
                                    const MistPlace& place);

/// Memory; the times stay 0.
MistStagePrediction mist_stage_memory(const MistCase& mist, const MistStage& stage,
                                      const MistPlace& place);

}  // namespace brume::analyzer
