/// @file Keys of [training], and checks of several of them together.
#include <fmt/format.h>

#include <cmath>

#include "tables.hpp"

namespace brume::deck {
namespace {

const Schema<AdapterGroupKeys>& adapter_group_schema() {
  static const auto schema = [] {
    return Schema<AdapterGroupKeys>()
        .key("pattern", &AdapterGroupKeys::pattern,
             {.help = "pattern of linear layers, as in targets: \"mlp.*\"", .required = true})
        .key("rank", &AdapterGroupKeys::rank,
             {.help = "rank of the matching layers' terms; 0: as without a group",
              .min = 0,
              .max = largest_adapter_rank})
        .key("alpha", &AdapterGroupKeys::alpha,
             {.help = "alpha of the matching layers' terms; 0: as without a group", .min = 0});
  }();
  return schema;
}

const Schema<AdapterKeys>& adapter_schema() {
  static const auto schema = [] {
    return Schema<AdapterKeys>()
        .key("rank", &AdapterKeys::rank,
             {.help = "rank of the adapter's terms; 0: no adapter",
              .min = 0,
              .max = largest_adapter_rank,
              .aliases = {"r"}})
        .key(
            "alpha", &AdapterKeys::alpha,
            {.help = "scale of the terms times rank; 0: rank", .min = 0, .aliases = {"lora_alpha"}})
        .key("scaling", &AdapterKeys::scaling,
             {.help = "scale of the terms: standard is alpha / rank, rslora alpha / sqrt(rank)",
              .choices = {"standard", "rslora"}})
        .key("targets", &AdapterKeys::targets,
             {.help = "linear layers that get a term, as patterns: \"attention.*\", "
                      "\"mlp.out\", \"mlp.experts.*\"; \"all-linear\" or none: all but experts",
              .aliases = {"target_modules"}})
        .key("layers", &AdapterKeys::layers,
             {.help = "numbers of the layers that get terms, from 0; empty: all",
              .min = 0,
              .aliases = {"layers_to_transform"}})
        .key("modules_to_save", &AdapterKeys::modules_to_save,
             {.help = "modules that are trained whole besides the terms, as patterns: "
                      "\"embedding.token\", \"head\", \"*norm*\"; empty: none"})
        .key("weights", &AdapterKeys::weights,
             {.help = "initial weights: directory of an adapter of PEFT with the same ranks, "
                      "scales, targets, layers and modules_to_save; empty: the terms begin as "
                      "zero"})
        .tables("groups", &AdapterKeys::groups, adapter_group_schema(),
                "Exceptions for some linear layers; the first matching group counts");
  }();
  return schema;
}

const Schema<PreferenceKeys>& preference_schema() {
  static const auto schema = [] {
    return Schema<PreferenceKeys>()
        .key("beta", &PreferenceKeys::beta,
             {.help = "factor of log-probability ratios; a larger one stays closer to the initial "
                      "weights; usually 0.1; 0: no training on pairs",
              .min = 0,
              .max = 1e6})
        .key("loss", &PreferenceKeys::loss,
             {.help = "loss of a pair: sigmoid is DPO's, ipo a square of ratios per token",
              .choices = {"sigmoid", "ipo"}})
        .key("label_smoothing", &PreferenceKeys::label_smoothing,
             {.help = "sigmoid: probability that a pair is labelled the wrong way round, below 0.5",
              .min = 0,
              .max = 0.5});
  }();
  return schema;
}

const Schema<SamplesKeys>& samples_schema() {
  static const auto schema = [] {
    return Schema<SamplesKeys>()
        .key("prompts", &SamplesKeys::prompts,
             {.help = "prompts to answer: a line of text each, or lines of JSON with \"prompt\" or "
                      "\"messages\", as for `generate --prompts`; empty: none"})
        .key("every", &SamplesKeys::every,
             {.unit = "steps", .help = "steps between answers; 0: only at the end", .min = 0})
        .key("max_tokens", &SamplesKeys::max_tokens,
             {.unit = "tokens", .help = "longest answer", .min = 1, .max = 1 << 16})
        .key("temperature", &SamplesKeys::temperature,
             {.help = "divisor of logits before a token is drawn; 0: the most likely token",
              .min = 0,
              .max = 100})
        .key("top_k", &SamplesKeys::top_k,
             {.help = "number of most likely tokens to draw from; 0: all", .min = 0})
        .key("top_p", &SamplesKeys::top_p,
             {.help = "share of probability that the tokens to draw from add up to; 1: all",
              .min = 0,
              .max = 1})
        .key("seed", &SamplesKeys::seed, {.help = "seed of drawn tokens", .min = 0})
        .key("tokenizer", &SamplesKeys::tokenizer,
             {.help = "tokenizer.json, a model of SentencePiece, or a directory with one; empty: "
                      "that of the run directory or of model.weights, or bytes for 256 tokens"})
        .key("chat_template", &SamplesKeys::chat_template,
             {.help = "Jinja template for prompts with \"messages\"; empty: the tokenizer's own"});
  }();
  return schema;
}

}  // namespace

const Schema<TrainingKeys>& training_schema() {
  static const auto schema = [] {
    return Schema<TrainingKeys>()
        .key("steps", &TrainingKeys::steps,
             {.unit = "steps",
              .help = "length of the training; set exactly one of steps, tokens and epochs",
              .min = 0})
        .key("tokens", &TrainingKeys::tokens,
             {.unit = "tokens", .help = "length instead of steps, rounded up to a step", .min = 0})
        .key("epochs", &TrainingKeys::epochs,
             {.help = "length instead of steps: passes over the training data", .min = 0})
        .key("global_batch", &TrainingKeys::global_batch,
             {.unit = "sequences",
              .help = "sequences per step, over all devices; Megatron-LM: --global-batch-size",
              .required = true,
              .min = 1,
              .max = 1 << 24,
              .aliases = {"global_batch_size"}})
        .key("precision", &TrainingKeys::precision,
             {.help = "number format of weights and activations; fp8: bf16 with 8-bit products "
                      "in linear layers",
              .choices = {"fp32", "bf16", "fp16", "fp8"}})
        .key("tf32", &TrainingKeys::tf32,
             {.help = "fp32 products in TF32 on NVIDIA tensor cores: 10 bits of mantissa, many "
                      "times faster"})
        .key("loss_scale", &TrainingKeys::loss_scale,
             {.help = "loss scale, a power of two; 0: dynamic for fp16, 1 otherwise",
              .min = 0,
              .max = 0x1p40})
        .key("seed", &TrainingKeys::seed,
             {.help = "seed of initial weights and data order", .min = 0})
        .key("on_nonfinite", &TrainingKeys::on_nonfinite,
             {.help = "reaction to a non-finite loss or gradient: skip the update, roll back to "
                      "a checkpoint and omit the batch, or stop",
              .choices = {"skip", "rollback", "stop"}})
        .key("max_skipped", &TrainingKeys::max_skipped,
             {.unit = "steps",
              .help = "skipped steps in a row that stop the run; rollback: omitted batches in a "
                      "row before an earlier checkpoint",
              .min = 1})
        .key("compare_replicas_every", &TrainingKeys::compare_replicas_every,
             {.unit = "steps",
              .help = "steps between checks that data-parallel replicas have identical weights; "
                      "a difference ends the job; 0: never",
              .min = 0})
        .key("heartbeat_timeout_s", &TrainingKeys::silence_limit_s,
             {.unit = "s",
              .help = "heartbeat timeout; a rank that completes no task for 1.5 times this and "
                      "for 5 steps also ends the job; raise it to debug",
              .min = 1,
              .aliases = {"silence_limit_s"}})
        .table("optimizer", &TrainingKeys::optimizer, optimizer_schema(), "Optimizer")
        .table("adapter", &TrainingKeys::adapter, adapter_schema(),
               "Low-rank adapter (LoRA): trained terms of linear layers; other weights are frozen")
        .table("preference", &TrainingKeys::preference, preference_schema(),
               "Preference tuning (DPO): training on pairs of a chosen and a rejected answer")
        .table("samples", &TrainingKeys::samples, samples_schema(),
               "Answers of the model to prompts while it is trained");
  }();
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
        fmt::format("exactly one of steps, tokens and epochs must be above 0: found {}, {} and {}",
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
  check(optimizer.momentum < 1.0, "training.optimizer.momentum", "must be below 1");
  const OptimizerKeys usual;
  const auto is_muons = [&](bool changed, const char* key) {
    check(!changed || optimizer.name == "muon", key,
          fmt::format("belongs to name = \"muon\", found \"{}\"{}", optimizer.name,
                      optimizer.name == "sgd" ? ", whose momentum is beta1" : ""));
  };
  is_muons(optimizer.momentum != usual.momentum, "training.optimizer.momentum");
  is_muons(optimizer.nesterov != usual.nesterov, "training.optimizer.nesterov");
  is_muons(optimizer.matrix_scale != usual.matrix_scale, "training.optimizer.matrix_scale");
  check(!training.samples.prompts.empty() || training.samples == SamplesKeys{},
        "training.samples.prompts", "must name a file of prompts, found \"\"");
  const PreferenceKeys& preference = training.preference;
  check(preference.beta > 0.0 ||
            (preference.loss == PreferenceKeys{}.loss && preference.label_smoothing == 0.0),
        "training.preference.beta", "must be above 0 to train on pairs, usually 0.1: found 0");
  check(preference.label_smoothing == 0.0 ||
            (preference.loss == "sigmoid" && preference.label_smoothing < 0.5),
        "training.preference.label_smoothing",
        fmt::format("must be below 0.5 and belongs to loss = \"sigmoid\": found {} with \"{}\"",
                    preference.label_smoothing, preference.loss));
  check(preference.beta == 0.0 || training.global_batch % 2 == 0, "training.global_batch",
        fmt::format("must be even with training.preference, because a pair has two sequences: "
                    "found {}",
                    training.global_batch));
}

}  // namespace brume::deck
