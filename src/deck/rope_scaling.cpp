/// @file Keys of [model.rope_scaling].
#include "tables.hpp"

namespace brume::deck {

const Schema<RopeScalingKeys>& rope_scaling_schema() {
  static const auto schema = [] {
    return Schema<RopeScalingKeys>()
        .key("kind", &RopeScalingKeys::kind,
             {.help = "scaling of rotary frequencies: linear (all), llama3 (low ones), yarn (low "
                      "ones, and larger scores); Hugging Face: rope_scaling.rope_type",
              .choices = {"none", "linear", "llama3", "yarn"}})
        .key("factor", &RopeScalingKeys::factor,
             {.help = "divisor of the frequencies", .min = 1, .max = 1e6})
        .key("low_freq_factor", &RopeScalingKeys::low_freq_factor,
             {.help = "llama3: frequencies with fewer turns than this are fully divided",
              .min = 1e-3,
              .max = 1e6})
        .key("high_freq_factor", &RopeScalingKeys::high_freq_factor,
             {.help = "llama3: frequencies with more turns than this are unchanged",
              .min = 1e-3,
              .max = 1e6})
        .key("original_seq_len", &RopeScalingKeys::original_seq_len,
             {.unit = "tokens",
              .help = "llama3, yarn: length in which turns are counted; Hugging Face: "
                      "original_max_position_embeddings",
              .min = 1,
              .max = 1 << 24})
        .key("beta_fast", &RopeScalingKeys::beta_fast,
             {.help = "yarn: frequencies with more turns than this are unchanged",
              .min = 1e-3,
              .max = 1e6})
        .key("beta_slow", &RopeScalingKeys::beta_slow,
             {.help = "yarn: frequencies with fewer turns than this are fully divided",
              .min = 1e-3,
              .max = 1e6})
        .key("truncate", &RopeScalingKeys::truncate,
             {.help = "yarn: the range between beta_fast and beta_slow ends at whole numbers of "
                      "pairs"})
        .key("attention_factor", &RopeScalingKeys::attention_factor,
             {.help = "yarn: factor of cosines and sines; 0: m(mscale) / m(mscale_all_dim) with "
                      "m(s) = 1 + 0.1 s ln(factor), or m(1) unless both are set",
              .min = 0,
              .max = 1e3})
        .key("mscale", &RopeScalingKeys::mscale,
             {.help = "yarn: see attention_factor; 0: not set", .min = 0, .max = 1e3})
        .key("mscale_all_dim", &RopeScalingKeys::mscale_all_dim,
             {.help = "yarn: see attention_factor; with kv_lora_rank, scores are multiplied by "
                      "m(mscale_all_dim)^2, too; 0: not set",
              .min = 0,
              .max = 1e3});
  }();
  return schema;
}

}  // namespace brume::deck
