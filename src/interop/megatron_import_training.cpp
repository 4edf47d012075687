/// @file The training and the cluster that arguments of Megatron-LM describe, as deck keys.
#include <algorithm>
#include <cmath>

#include "megatron_import_deck.hpp"

namespace brume::interop {

void DeckText::add_training() {
  const std::string optimizer = given_.text("optimizer").value_or("adam");
  if (optimizer != "adam")
    given_.refuse(
        "--optimizer {:.80}: only adam is read. Leave it out, and set training.optimizer.name",
        optimizer);
  const int batch = given_.needed<int>("global-batch-size");
  const auto iterations = [&](double samples) {
    return int(std::ceil(std::min(samples / batch, 1e9)));
  };
  line("training.global_batch", batch);
  const std::optional<double> samples = given_.number<double>("train-samples");
  for (const char* growing : {"rampup-batch-size", "step-batch-size-schedule"})
    if (given_.has(growing))
      notes_.push_back(
          fmt::format("--{}: the batch is --global-batch-size from the start here", growing));
  if (given_.has("grad-reduce-in-bf16"))
    notes_.push_back("--grad-reduce-in-bf16: gradients are summed in fp32 here");
  const int steps =
      samples ? iterations(*samples) : given_.number<int>("train-iters").value_or(1000);
  line("training.steps", steps);
  const bool bf16 = given_.has("bf16"), fp16 = given_.has("fp16"), fp8 = given_.has("fp8-format");
  line("training.precision", std::string(fp8 ? "fp8" : bf16 ? "bf16" : fp16 ? "fp16" : "fp32"));
  given_.has("fp8-recipe");
  line<double>("training.loss_scale", "loss-scale", 0.0);
  line<int>("training.seed", "seed", 0, 1234);
  add_rate(steps, iterations);
  line<double>("training.optimizer.weight_decay", "weight-decay", 0.0, 0.01);
  line<double>("training.optimizer.beta1", "adam-beta1", 0.0);
  line<double>("training.optimizer.beta2", "adam-beta2", 0.0, 0.999);
  line<double>("training.optimizer.eps", "adam-eps", 0.0);
  line<double>("training.optimizer.clip_norm", "clip-grad", 0.0);
}

void DeckText::add_rate(int steps, const auto& iterations) {
  const std::optional<double> rate = given_.number<double>("lr", 0.0);
  const std::optional<double> least = given_.number<double>("min-lr", 0.0);
  if (rate) line("training.optimizer.lr", *rate);
  if (rate && *rate > 0.0)
    line("training.optimizer.min_lr_ratio", std::min(1.0, least.value_or(0.0) / *rate));
  std::string style = given_.text("lr-decay-style").value_or("linear");
  if (style == "WSD") style = "wsd";
  const std::string styles[] = {"cosine", "linear", "constant", "wsd"};
  if (std::ranges::find(styles, style) == std::end(styles))
    given_.refuse("--lr-decay-style {:.80}: nothing here is like it", style);
  line("training.optimizer.schedule", style);
  if (style == "wsd") {
    line<int>("training.optimizer.decay_steps", "lr-wsd-decay-iters", 1);
    if (given_.text("lr-wsd-decay-style").value_or("exponential") != "linear")
      notes_.push_back("--lr-wsd-decay-style: the decay of wsd is linear here");
  }
  const std::optional<double> decay_samples = given_.number<double>("lr-decay-samples");
  const int decays = decay_samples ? iterations(*decay_samples)
                                   : given_.number<int>("lr-decay-iters").value_or(steps);
  if (decays != steps)
    notes_.push_back(fmt::format(
        "Megatron-LM ends the learning-rate decay at step {}, Brume at step {}", decays, steps));
  const std::optional<double> share = given_.number<double>("lr-warmup-fraction", 0.0);
  const std::optional<double> samples = given_.number<double>("lr-warmup-samples", 0.0);
  const int warmup = share     ? int(std::min(1.0, *share) * decays)
                     : samples ? iterations(*samples)
                               : given_.number<int>("lr-warmup-iters", 0).value_or(0);
  line("training.optimizer.warmup_steps", warmup);
}

void DeckText::add_cluster() {
  line<int>("cluster.nodes", "nnodes", 1);
  line<int>("cluster.devices_per_node", "nproc-per-node", 1);
  for (const char* place : {"node-rank", "master-addr", "master-port"}) given_.has(place);
}

}  // namespace brume::interop
