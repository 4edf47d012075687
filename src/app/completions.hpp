/// @file Completions of prompts that `eval` scores, as sequences of tokens.
#pragma once

#include <string>
#include <vector>

#include "data/sampler.hpp"
#include "interop/tokens.hpp"
#include "model/model.hpp"

namespace brume::app {

/// Prompts lose their first tokens until prompt and completion have T + 1; the last is no input.
/// @throws Error(input) naming the completion
std::vector<interop::TokenDocument> read_completions(const std::string& file,
                                                     const interop::PackOptions& options,
                                                     const model::Config& model);

/// A sequence for each completion, filled with tokens that are not scored.
/// @param file  for errors
data::Sampler sequences_of(const std::vector<interop::TokenDocument>& documents,
                           const std::string& file, const model::Config& model);

}  // namespace brume::app
