/// @file Chooses the next token of a sequence from its logits.
#pragma once

#include <cstdint>
#include <span>

namespace brume::generation {

/// Changes to the model's distribution, in this order: penalties, temperature, top-k, top-p, min-p.
struct Sampling {
  double temperature = 0.0;         ///< divides logits; 0: always the most likely token
  int top_k = 0;                    ///< most likely tokens that stay, and ties; 0: all
  double top_p = 1.0;               ///< the fewest most likely tokens of this share stay
  double min_p = 0.0;               ///< a token stays if it has this share of the likeliest's
  double repetition_penalty = 1.0;  ///< logits of tokens that occurred: l / r, or l r below 0
  double presence_penalty = 0.0;    ///< taken from logits of tokens that the answer has
  double frequency_penalty = 0.0;   ///< ... as often as the answer has them
  std::uint64_t seed = 1;
  bool log_probabilities = false;  ///< whether choices have theirs
};

/// A number of Sampling, by its name in files and, with hyphens, on the command line.
struct SamplingKey {
  const char* name;
  double Sampling::*value;
  double least, most;
};
std::span<const SamplingKey> sampling_keys();

/// The tokens of a sequence so far.
struct History {
  std::span<const std::int32_t> tokens;
  std::int64_t prompt = 0;  ///< so many first ones were given
};

struct Choice {
  std::int32_t token;
  double log_probability = 0.0;  ///< the model's own [nats]
};

/// Chooses by `logits` [V]. Random numbers depend on seed, sequence and place alone, so a choice is
/// the same in any batch and on any rank. Of equal logits the least token counts as more likely.
///
/// @param sequence  number of the sequence in its job
/// @throws Error(input) for logits that are not finite
Choice choose(std::span<const float> logits, const Sampling& how, const History& history,
              std::uint64_t sequence);

}  // namespace brume::generation
