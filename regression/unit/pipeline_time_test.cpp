#include "analyzer/pipeline_time.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"

namespace brume::analyzer {
namespace {

// Equal stages without delta give the textbook 1F1B time, (G - 1 + S) t.
TEST(PipelineTime, EqualStagesMatchTextbook) {
  const std::vector<StageTime> stages(4, {.stable_s = 0.5, .delta_s = 0.0});
  EXPECT_NEAR(iteration_time(stages, 8), (8 - 1 + 4) * 0.5, 1e-12);
}

// One stage does its microbatches one after the other: G t + d.
TEST(PipelineTime, OneStageAddsItsDeltaOnce) {
  const std::vector<StageTime> stages{{2.0, 0.5}};
  EXPECT_NEAR(iteration_time(stages, 5), 10.5, 1e-12);
}

// Stage 1 starts 2 s late, so 2 s of its 3 s delta are hidden: T = 1*2 + (2+1) + max(0, 3-2).
TEST(PipelineTime, FillHidesLateDelta) {
  const std::vector<StageTime> stages{{2.0, 0.0}, {1.0, 3.0}};
  EXPECT_NEAR(iteration_time(stages, 2), 6.0, 1e-12);
}

TEST(PipelineTime, NegativeDeltaSavesNothing) {
  const std::vector<StageTime> stages{{2.0, -1.0}, {1.0, -3.0}};
  EXPECT_NEAR(iteration_time(stages, 1), 3.0, 1e-12);
}

// The published configuration: two stages of a 1.3B model, 16 microbatches, no delta.
TEST(PipelineTime, MatchesThePublishedTwoStagePlan) {
  const std::vector<StageTime> stages{{0.545545245, 0.0}, {0.540200170, 0.0}};
  EXPECT_NEAR(iteration_time(stages, 16), 9.268924098, 1e-7);
}

TEST(PipelineTime, EmptyPipelineBreaksAPromise) {
  EXPECT_THROW(iteration_time({}, 1), Error);
  const std::vector<StageTime> stages{{1.0, 0.0}};
  EXPECT_THROW(iteration_time(stages, 0), Error);
}

}  // namespace
}  // namespace brume::analyzer
