/// @file Keys of [output].
#include "tables.hpp"

namespace brume::deck {

const Schema<OutputKeys>& output_schema() {
  static const auto schema = [] {
    return Schema<OutputKeys>()
        .key("directory", &OutputKeys::directory, {.help = "directory of the run's files"})
        .key("checkpoints", &OutputKeys::checkpoints,
             {.help = "false: no checkpoints; the job's result is lost with it"})
        .key("checkpoint_every", &OutputKeys::checkpoint_every,
             {.unit = "steps",
              .help = "steps between checkpoints; 0: as checkpoint_minutes",
              .min = 0})
        .key("checkpoint_minutes", &OutputKeys::checkpoint_minutes,
             {.unit = "min",
              .help = "time between checkpoints; 0: use checkpoint_every; both 0: Young's "
                      "formula from measured cost and mtbf_hours, at least a minute",
              .min = 0})
        .key(
            "mtbf_hours", &OutputKeys::mtbf_hours,
            {.unit = "h", .help = "mean time between failures of the job", .min = 1e-3, .max = 1e6})
        .key("node_mtbf_hours", &OutputKeys::node_mtbf_hours,
             {.unit = "h",
              .help = "mean time between failures of a node, replaces mtbf_hours; `plan` then "
                      "predicts the cost of failures; 0: not known",
              .min = 0,
              .max = 1e9})
        .key("restart_minutes", &OutputKeys::restart_minutes,
             {.unit = "min",
              .help = "time from a failure to the next step, for the prediction",
              .min = 0,
              .max = 1e5})
        .key("keep_last", &OutputKeys::keep_last,
             {.help = "number of newest checkpoints that stay", .min = 1})
        .key("keep_every", &OutputKeys::keep_every,
             {.unit = "steps", .help = "checkpoints at multiples of this stay; 0: none", .min = 0})
        .key("keep_best", &OutputKeys::keep_best,
             {.help = "keep the checkpoint with the lowest validation loss; validates before "
                      "each checkpoint"})
        .key("log_every", &OutputKeys::log_every,
             {.unit = "steps", .help = "steps between log lines", .min = 1})
        .key("trace", &OutputKeys::trace, {.help = "write trace.json of the last step"})
        .key("tensorboard", &OutputKeys::tensorboard,
             {.help = "write TensorBoard event files to tensorboard/"});
  }();
  return schema;
}

}  // namespace brume::deck
