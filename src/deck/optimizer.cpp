/// @file Keys of [training.optimizer].
#include "tables.hpp"

namespace brume::deck {
namespace {

const Schema<ParameterGroupKeys>& parameter_group_schema() {
  static const auto schema = [] {
    return Schema<ParameterGroupKeys>()
        .key("pattern", &ParameterGroupKeys::pattern,
             {.help = "pattern of parameter names in a checkpoint, with * ? [] as in a shell: "
                      "\"layers.*.bias\"",
              .required = true})
        .key("lr_scale", &ParameterGroupKeys::lr_scale,
             {.help = "factor of the learning rate; 0: values stay fixed", .min = 0})
        .key("weight_decay", &ParameterGroupKeys::weight_decay,
             {.help = "weight decay of the matching parameters, norms and biases included; "
                      "default: as without a group",
              .min = 0,
              .if_given = true})
        .key("frozen", &ParameterGroupKeys::frozen,
             {.help = "keep the values, without gradients and optimizer state; first blocks frozen "
                      "as a whole (\"embedding.*\", \"layers.[0-9].*\") have no backward either"});
  }();
  return schema;
}

}  // namespace

const Schema<OptimizerKeys>& optimizer_schema() {
  static const auto schema = [] {
    return Schema<OptimizerKeys>()
        .key("name", &OptimizerKeys::name,
             {.help = "optimizer; lion and sgd keep one number per element instead of two; muon "
                      "does for matrices of layers, and updates the rest as adamw",
              .choices = {"adamw", "lion", "sgd", "muon"}})
        .key("lr", &OptimizerKeys::lr, {.help = "learning rate after warm-up", .min = 0})
        .key("schedule", &OptimizerKeys::schedule,
             {.help = "learning-rate schedule after warm-up: cosine or linear to min_lr_ratio, "
                      "constant, or wsd: constant, then linear over decay_steps",
              .choices = {"cosine", "linear", "constant", "wsd"}})
        .key("min_lr_ratio", &OptimizerKeys::min_lr_ratio,
             {.help = "share of lr at the last step", .min = 0, .max = 1})
        .key("warmup_steps", &OptimizerKeys::warmup_steps,
             {.unit = "steps", .help = "steps of linear warm-up", .min = 0})
        .key("decay_steps", &OptimizerKeys::decay_steps,
             {.unit = "steps",
              .help = "wsd: final steps over which lr falls; 0: a tenth of the training. To "
                      "decay from a checkpoint, set steps to its step + decay_steps",
              .min = 0})
        .key("beta1", &OptimizerKeys::beta1,
             {.help = "decay of the first moment, below 1; sgd: its momentum", .min = 0, .max = 1})
        .key("beta2", &OptimizerKeys::beta2,
             {.help = "decay of the second moment, below 1; lion: of its moment, usually 0.99",
              .min = 0,
              .max = 1})
        .key("eps", &OptimizerKeys::eps,
             {.help = "added to the root of the second moment", .min = 1e-30, .max = 1})
        .key("weight_decay", &OptimizerKeys::weight_decay,
             {.help =
                  "decoupled weight decay, for all parameters but norms and biases; sgd: added to "
                  "the gradient",
              .min = 0})
        .key("clip_norm", &OptimizerKeys::clip_norm,
             {.help = "largest global gradient norm; 0: no clipping; Megatron-LM: --clip-grad",
              .min = 0})
        .key("moments", &OptimizerKeys::moments,
             {.help = "number format of optimizer state, master weights excepted; bf16: half the "
                      "memory; fp8: a quarter for matrices, in blocks of floats of 8 bits, not for "
                      "muon; both are rounded up or down at random",
              .choices = {"fp32", "bf16", "fp8"}})
        .key("momentum", &OptimizerKeys::momentum,
             {.help = "muon: momentum of matrices, below 1", .min = 0, .max = 1})
        .key("nesterov", &OptimizerKeys::nesterov,
             {.help = "muon: Nesterov's momentum, which looks ahead by a gradient"})
        .key("matrix_scale", &OptimizerKeys::matrix_scale,
             {.help = "muon: length of a matrix's step over lr; moonshot: as long as adamw's, "
                      "0.2 sqrt(max(out, in)); spectral: 5 times that; jordan: "
                      "sqrt(max(1, out / in)); rms: sqrt(out / in)",
              .choices = {"moonshot", "spectral", "jordan", "rms"}})
        .tables("groups", &OptimizerKeys::groups, parameter_group_schema(),
                "Exceptions for some parameters; the first matching group counts");
  }();
  return schema;
}

}  // namespace brume::deck
