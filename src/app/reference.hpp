/// @file Log-probabilities by the weights that a training on pairs begins with.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "engine/engine.hpp"
#include "io/reference.hpp"
#include "prepare.hpp"

namespace brume::app {

/// Sequences that weights are judged by: each once, where there are fewer than asked for; whole
/// pairs.
std::int64_t eval_sequences(const Prepared& run);

/// Text of a Reference about the pairs and the model of a run.
std::string reference_source(const Prepared& run);

/// The log-probabilities of a training's pairs and of those that it is judged by. A training that
/// begins computes what no file has yet, and keeps it in the run directory, a part at least every
/// minute; a resumed one reads them. Collective.
///
/// @param name   of the run
/// @param aside  folder that results of an earlier run were moved to, whose file may fit too
/// @param stops  asked between passes, by all ranks; all agree
/// @return none: it was stopped, and has kept what there was
/// @throws AgreedError(input) when a resumed run has no file, or one of other pairs
std::optional<io::Reference> make_reference(const Prepared& run, const std::string& name,
                                            const std::filesystem::path& aside,
                                            engine::Engine& engine, comm::Communicator& crew,
                                            const std::function<bool()>& stops);

}  // namespace brume::app
