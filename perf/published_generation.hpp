/// @file Published times of generation and predicted ones.
#pragma once

#include <nlohmann/json.hpp>

namespace brume::perf {

/// Prints predicted and published times per token and to the first token, medians of the
/// ratios, and how many pairs of layouts of the same requests are in the published order.
///
/// Requests of a copy arrive at random, r per second. A prompt stops all answers of its copy for
/// prompt_s, and a pass of n answers takes next_s(n). Little's law gives the open answers:
///
///   token_s = next_s(n) / (1 - r prompt_s),  n = r answer_tokens token_s, at least 1
///   first_token_s = prompt_s + min(r answer_tokens token_s, 1) next_s(n) / 2
void compare_generation(const nlohmann::json& published);

}  // namespace brume::perf
