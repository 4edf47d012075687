/// @file Keys about plans: [search], [generation] and [analysis].
#include "tables.hpp"

namespace brume::deck {

const Schema<SearchKeys>& search_schema() {
  static const auto schema = [] {
    return Schema<SearchKeys>()
        .key("trainer", &SearchKeys::trainer,
             {.help = "target trainer, which must be able to run the plan; empty: Brume",
              .choices = {"", "megatron", "torchtitan"},
              .aliases = {"for"}})
        .key("stages", &SearchKeys::stages,
             {.help = "numbers of pipeline stages to try; []: all", .min = 1})
        .key("dp", &SearchKeys::dp, {.help = "data-parallel degrees to try; []: all", .min = 1})
        .key("cp", &SearchKeys::cp,
             {.help = "context-parallel degrees to try: cp ranks share a sequence; []: all for "
                      "sequences of more than 8192 tokens, else 1",
              .min = 1})
        .key("gather_keys", &SearchKeys::gather_keys,
             {.help = "exchanges of ranks that share a sequence to try; 0: tokens for heads, of "
                      "which a rank attends with a part; 1: keys and values of all tokens; []: "
                      "both",
              .min = 0,
              .max = 1})
        .key("tp", &SearchKeys::tp,
             {.help = "tensor-parallel degrees to try; []: all within a node; larger ones use "
                      "whole nodes",
              .min = 1})
        .key("ep", &SearchKeys::ep,
             {.help = "expert-parallel degrees to try: ranks that divide whole experts; 1: tp cuts "
                      "each expert; []: 1, tp, the largest within a node, the largest",
              .min = 1})
        .key("dispatch_tokens", &SearchKeys::dispatch_tokens,
             {.help =
                  "exchanges of ep > tp ranks to try; 0: all-gather of all tokens; 1: all-to-all "
                  "of each token to the ranks of its experts; []: both",
              .min = 0,
              .max = 1})
        .key("mlp_tiles", &SearchKeys::mlp_tiles,
             {.help = "numbers of token tiles of a dense MLP to try; []: 1, and for sequences of "
                      "more than 8192 tokens also tiles of hidden_size tokens",
              .min = 1})
        .key("microbatch", &SearchKeys::microbatch,
             {.unit = "sequences",
              .help = "sequences per microbatch and data-parallel rank to try; []: all; "
                      "Megatron-LM: --micro-batch-size",
              .min = 1,
              .aliases = {"micro_batch_size"}})
        .key("run_ahead", &SearchKeys::run_ahead,
             {.unit = "microbatches",
              .help = "1: 1F1B; 2: eager 1F1B, twice the microbatches in flight, so that "
                      "messages overlap with computation",
              .min = 1,
              .max = 2})
        .key("virtual_stages", &SearchKeys::chunks,
             {.help = "virtual stages per device to try (interleaved 1F1B); []: all that divide "
                      "a stage's layers; [1]: none",
              .min = 1,
              .aliases = {"chunks"}})
        .key("lone_ends", &SearchKeys::lone_ends,
             {.help = "allow a first stage with the embedding alone, and a last one with the head "
                      "alone; Megatron-LM: --pipeline-model-parallel-layout"})
        .key("zero_bubble", &SearchKeys::zero_bubble,
             {.help = "allow backwards in two parts, of which the second fills idle time (zero "
                      "bubble)"})
        .key("zero_levels", &SearchKeys::zero_levels,
             {.help = "ZeRO levels to try; 0: none; 1: optimizer state; 2: also gradients; 3: "
                      "also weights",
              .min = 0,
              .max = 3})
        .key("shard_within_node", &SearchKeys::shard_within_node,
             {.help = "allow ZeRO shards within a node and replicas between nodes (HSDP)"})
        .key("full_recompute", &SearchKeys::recompute,
             {.help = "allow layers with full recomputation", .aliases = {"recompute"}})
        .key("no_recompute", &SearchKeys::store,
             {.help = "allow layers without selective recomputation: they keep the outputs of "
                      "norms and activation functions",
              .aliases = {"store"}})
        .key("recompute_all", &SearchKeys::recompute_all,
             {.help = "full recomputation of every layer (conventions mist)"})
        .key("weight_offload", &SearchKeys::weight_offload,
             {.help = "shares of weights in CPU memory to try", .min = 0, .max = 1})
        .key("grad_offload", &SearchKeys::grad_offload,
             {.help = "shares of gradients in CPU memory to try", .min = 0, .max = 1})
        .key("optim_offload", &SearchKeys::optim_offload,
             {.help = "shares of optimizer state in CPU memory to try", .min = 0, .max = 1})
        .key("act_offload", &SearchKeys::act_offload,
             {.help = "shares of saved activations in CPU memory to try", .min = 0, .max = 1})
        .key("optim_disk", &SearchKeys::optim_disk,
             {.help =
                  "shares of the offloaded optimizer state on disk to try, if disk_gib is above 0",
              .min = 0,
              .max = 1})
        .key("act_disk", &SearchKeys::act_disk,
             {.help = "shares of the offloaded activations on disk to try, if disk_gib is above 0",
              .min = 0,
              .max = 1})
        .key("host_update", &SearchKeys::host_update,
             {.help = "shares of the offloaded optimizer state that the CPU updates, to try",
              .min = 0,
              .max = 1})
        .key("unequal_stages", &SearchKeys::unequal_stages,
             {.help = "allow stages with different devices, microbatch, dp, cp and tp"})
        .key("gap", &SearchKeys::gap,
             {.help = "relative gap at which the search may stop: no plan is faster by more",
              .min = 0,
              .max = 1})
        .key("time_limit_s", &SearchKeys::time_limit_s,
             {.unit = "s",
              .help = "search time limit; it returns the best plan so far, or exit code 3 if "
                      "there is none",
              .min = 0})
        .key("simulate_top", &SearchKeys::simulate_top,
             {.help = "number of plans to rank by simulation", .min = 0, .max = 1000});
  }();
  return schema;
}

const Schema<GenerationKeys>& generation_schema() {
  static const auto schema = [] {
    return Schema<GenerationKeys>()
        .key("prompts", &GenerationKeys::prompts,
             {.help = "number of prompts", .min = 1, .max = 1e9})
        .key("prompt_tokens", &GenerationKeys::prompt_tokens,
             {.unit = "tokens",
              .help = "mean length of prompts, which have between half and one and a half times as "
                      "many; 0: a quarter of model.seq_len",
              .min = 0,
              .max = 1 << 24})
        .key("answer_tokens", &GenerationKeys::answer_tokens,
             {.unit = "tokens",
              .help = "mean length of answers, in the same way",
              .min = 0,
              .max = 1 << 24})
        .key("first_token_s", &GenerationKeys::first_token_s,
             {.unit = "s",
              .help = "longest mean time from the start of a prompt's computation to the first "
                      "token of its answer; 0: any",
              .min = 0,
              .max = 1e6})
        .key("token_s", &GenerationKeys::token_s,
             {.unit = "s",
              .help = "longest mean time between two tokens of an answer; 0: any",
              .min = 0,
              .max = 1e6});
  }();
  return schema;
}

const Schema<AnalysisKeys>& analysis_schema() {
  static const auto schema = [] {
    return Schema<AnalysisKeys>()
        .key("conventions", &AnalysisKeys::conventions,
             {.help = "cost model; mist: as Mist counts, for comparisons with it",
              .choices = {"default", "mist"}})
        .key("ends", &AnalysisKeys::ends,
             {.help = "spread of embedding and head: as the last stage, or over all its devices "
                      "(conventions mist)",
              .choices = {"last_stage", "dp"}})
        .key("plain_attention", &AnalysisKeys::plain_attention,
             {.help = "attention with a stored score matrix (conventions mist)"});
  }();
  return schema;
}

}  // namespace brume::deck
