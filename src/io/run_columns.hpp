/// @file The datasets of run.h5, one table for writer and reader.
#pragma once

#include <array>
#include <cstdint>

#include "io/run_file.hpp"

namespace brume::io {

inline constexpr const char* run_filetype = "brume run";
inline constexpr const char* part_filetype = "brume run part";
inline constexpr std::array<std::int64_t, 2> run_version = {1, 10};
inline constexpr std::int64_t oldest_run_minor = 6;  ///< that readers know; 5 counted steps from 0
inline constexpr std::int64_t named_run_minor = 7;   ///< from which on a file names its run
inline constexpr const char* skipped_path = "/steps/skipped";
inline constexpr const char* parts_path = "/parts";
inline constexpr const char* copies_path = "/memory/checkpoint_copy_bytes";
inline constexpr const char* peaks_path = "/steps/peak_resident_bytes";
/// The group of run.h5 that holds its rows when there are parts.
inline constexpr const char* recent_group = "/recent";

/// A dataset with one value a step.
struct Column {
  const char* path;
  const char* units;
  const char* description;
  double& (*at)(Row&);
  std::int64_t since = oldest_run_minor;  ///< minor version; older files have none
};

inline constexpr std::array columns = {
    Column{"/steps/loss", "nat/token",
           "mean over the target tokens of the global batch, before the step's update; of pairs "
           "over these",
           [](Row& row) -> double& { return row.metrics.loss; }},
    Column{"/steps/grad_norm", "1", "2-norm of the gradient of all parameters, before clipping",
           [](Row& row) -> double& { return row.metrics.grad_norm; }},
    Column{"/steps/lr", "1", "learning rate of the step's update",
           [](Row& row) -> double& { return row.metrics.lr; }},
    Column{"/steps/loss_scale", "1",
           "what gradients were computed so many times too large by; 0: not recorded",
           [](Row& row) -> double& { return row.metrics.loss_scale; }},
    Column{"/steps/tokens_per_s", "tokens/s", "tokens trained on in a second by the whole job",
           [](Row& row) -> double& { return row.tokens_per_s; }},
    Column{"/steps/iteration_measured_s", "s",
           "from the end of the step before to that of this one on the slowest rank, without "
           "evaluations and checkpoints",
           [](Row& row) -> double& { return row.metrics.iteration_s; }},
    Column{"/steps/data_s", "s", "of that, the longest wait of a rank for its batch",
           [](Row& row) -> double& { return row.metrics.data_s; }, 7},
    Column{"/steps/load_factor", "1",
           "largest load of an expert over the mean one, mean over layers; 0: no experts",
           [](Row& row) -> double& { return row.metrics.load_factor; }, 8},
    Column{"/steps/idle_experts", "1",
           "share of the experts of all layers that no token went to; 0: also without experts",
           [](Row& row) -> double& { return row.metrics.idle_experts; }, 10},
    Column{"/steps/expert_rounds", "1",
           "rounds of a layer's experts per forward on the busiest rank; 0: no experts",
           [](Row& row) -> double& { return row.metrics.expert_rounds; }, 9},
    Column{"/steps/accuracy", "1",
           "share of the pairs whose chosen answer has the larger reward; -1: no pairs",
           [](Row& row) -> double& { return row.metrics.accuracy; }, 9},
    Column{"/steps/margin", "1", "mean difference of the rewards of a pair; 0: no pairs",
           [](Row& row) -> double& { return row.metrics.margin; }, 9},
    Column{"/steps/iteration_predicted_s", "s", "time of a step that the plan promised",
           [](Row& row) -> double& { return row.predicted_s; }},
};

/// A dataset with one value a step and channel.
struct ChannelColumn {
  const char* path;
  const char* units;
  const char* description;
  std::array<double, schedule::num_channels> engine::StepMetrics::*of;
};

inline constexpr std::array channel_columns = {
    ChannelColumn{"/steps/busy_s", "s", "[step, channel] rank 0's channel at work",
                  &engine::StepMetrics::busy_s},
    ChannelColumn{"/steps/hidden_s", "s",
                  "[step, channel] of busy_s, while rank 0's compute channel was at work too",
                  &engine::StepMetrics::hidden_s},
};

}  // namespace brume::io
