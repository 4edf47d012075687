#include "training.hpp"

#include <fmt/format.h>

#include <cmath>

namespace brume::deck {
namespace {

const Schema<ParameterGroupKeys>& parameter_group_schema() {
  static const auto schema =
      Schema<ParameterGroupKeys>()
          .key("pattern", &ParameterGroupKeys::pattern,
               {.help = "names of parameters in a checkpoint, with * ? [] as a shell has them for "
                        "files: \"layers.*.bias\"",
                .required = true})
          .key("lr_scale", &ParameterGroupKeys::lr_scale,
               {.help = "times the learning rate; 0: they stay as they are", .min = 0})
          .key("weight_decay", &ParameterGroupKeys::weight_decay,
               {.help = "of all that fit, also of norms and biases; left out: as without a group",
                .min = 0,
                .if_given = true})
          .key("frozen", &ParameterGroupKeys::frozen,
               {.help = "they stay as they are, without gradients and optimizer state; where they "
                        "are the first blocks as a whole (\"embedding.*\", \"layers.[0-9].*\"), "
                        "without a backward, too"});
  return schema;
}

const Schema<OptimizerKeys>& optimizer_schema() {
  static const auto schema =
      Schema<OptimizerKeys>()
          .key("name", &OptimizerKeys::name, {.help = "update rule", .choices = {"adamw"}})
          .key("lr", &OptimizerKeys::lr, {.help = "learning rate after warm-up", .min = 0})
          .key("schedule", &OptimizerKeys::schedule,
               {.help = "of lr after warm-up: cosine or linear to min_lr_ratio at the last step, "
                        "constant, or wsd: constant, then linear over the last decay_steps",
                .choices = {"cosine", "linear", "constant", "wsd"}})
          .key("min_lr_ratio", &OptimizerKeys::min_lr_ratio,
               {.help = "share of lr left at the last step", .min = 0, .max = 1})
          .key("warmup_steps", &OptimizerKeys::warmup_steps,
               {.unit = "iterations", .help = "lr rises linearly over these", .min = 0})
          .key("decay_steps", &OptimizerKeys::decay_steps,
               {.unit = "iterations",
                .help = "wsd: lr falls over the last ones; 0: over a tenth of all. To decay from a "
                        "checkpoint on, set steps to its step and decay_steps more",
                .min = 0})
          .key("beta1", &OptimizerKeys::beta1,
               {.help = "decay of the first moment, below 1", .min = 0, .max = 1})
          .key("beta2", &OptimizerKeys::beta2,
               {.help = "decay of the second moment, below 1", .min = 0, .max = 1})
          .key("eps", &OptimizerKeys::eps,
               {.help = "added to the root of the second moment", .min = 1e-30, .max = 1})
          .key("weight_decay", &OptimizerKeys::weight_decay,
               {.help = "decoupled from the gradient", .min = 0})
          .key("clip_norm", &OptimizerKeys::clip_norm,
               {.help = "largest global gradient norm; 0: no clipping", .min = 0})
          .tables("groups", &OptimizerKeys::groups, parameter_group_schema(),
                  "Parameters that are updated otherwise; the first group that fits counts");
  return schema;
}

}  // namespace

const Schema<TrainingKeys>& training_schema() {
  static const auto schema =
      Schema<TrainingKeys>()
          .key("steps", &TrainingKeys::steps,
               {.unit = "iterations",
                .help = "length of the training; one of steps, tokens and epochs is above 0",
                .min = 0})
          .key("tokens", &TrainingKeys::tokens,
               {.unit = "tokens", .help = "length instead of steps, rounded up to one", .min = 0})
          .key("epochs", &TrainingKeys::epochs,
               {.help = "length instead of steps: how many times all of data.train is read",
                .min = 0})
          .key("global_batch", &TrainingKeys::global_batch,
               {.unit = "sequences",
                .help = "batch of an iteration, over all devices",
                .required = true,
                .min = 1,
                .max = 1 << 24})
          .key("precision", &TrainingKeys::precision,
               {.help =
                    "number format of weights and activations; fp8: bf16, with products of linear "
                    "layers in 8 bits",
                .choices = {"fp32", "bf16", "fp16", "fp8"}})
          .key("tf32", &TrainingKeys::tf32,
               {.help = "matrix products of fp32 may round their factors to 10 bits of mantissa, "
                        "which tensor cores of NVIDIA devices multiply many times faster"})
          .key(
              "loss_scale", &TrainingKeys::loss_scale,
              {.help = "what gradients are computed so many times too large by, a power of two; 0: "
                       "dynamic in fp16, 1 in others",
               .min = 0,
               .max = 0x1p40})
          .key("seed", &TrainingKeys::seed,
               {.help = "of the first weights and of the data's order", .min = 0})
          .key("on_nonfinite", &TrainingKeys::on_nonfinite,
               {.help = "when loss or gradient is not finite: skip the update, go back to a "
                        "checkpoint and leave the batch out, or stop",
                .choices = {"skip", "rollback", "stop"}})
          .key("max_skipped", &TrainingKeys::max_skipped,
               {.unit = "iterations",
                .help = "skipped steps in a row that stop the run; rollback: left-out batches in "
                        "a row after which it goes back to an earlier checkpoint",
                .min = 1})
          .key("compare_replicas_every", &TrainingKeys::compare_replicas_every,
               {.unit = "iterations",
                .help = "between comparisons of the weights that data-parallel ranks hold copies "
                        "of, which end the job where a copy differs; 0: never",
                .min = 0})
          .key("silence_limit_s", &TrainingKeys::silence_limit_s,
               {.unit = "s",
                .help = "a rank that gives no sign of life for so long, or finishes no task for so "
                        "long and for five iterations, ends the job: raise it to debug a rank",
                .min = 1})
          .table("optimizer", &TrainingKeys::optimizer, optimizer_schema(),
                 "How weights are updated");
  return schema;
}

void check_training(const TrainingKeys& training, const Checker& check) {
  const double loss_scale = training.loss_scale;
  int exponent = 0;
  check(loss_scale == 0.0 || std::frexp(loss_scale, &exponent) == 0.5, "training.loss_scale",
        fmt::format("must be 0 or a power of two, found {}", loss_scale));
  const OptimizerKeys& optimizer = training.optimizer;
  check(int(training.steps > 0) + int(training.tokens > 0.0) + int(training.epochs > 0.0) == 1,
        "training.steps",
        fmt::format("one of steps, tokens and epochs must be above 0, found {}, {} and {}",
                    training.steps, training.tokens, training.epochs));
  check(optimizer.decay_steps == 0 || optimizer.schedule == "wsd", "training.optimizer.decay_steps",
        fmt::format("belongs to schedule = \"wsd\", found \"{}\"", optimizer.schedule));
  if (training.steps > 0)
    check(optimizer.warmup_steps + optimizer.decay_steps <= training.steps,
          "training.optimizer.warmup_steps",
          fmt::format("must be at most steps = {} less decay_steps = {}, found {}", training.steps,
                      optimizer.decay_steps, optimizer.warmup_steps));
  for (const ParameterGroupKeys& group : optimizer.groups)
    check(!group.frozen || (group.lr_scale == 1.0 && group.weight_decay < 0.0),
          "training.optimizer.groups",
          fmt::format("what is frozen has neither lr_scale nor weight_decay, but '{}' has",
                      group.pattern));
  check(optimizer.beta1 < 1.0, "training.optimizer.beta1", "must be below 1");
  check(optimizer.beta2 < 1.0, "training.optimizer.beta2", "must be below 1");
}

}  // namespace brume::deck
