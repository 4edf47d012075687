/// @file Megatron-LM's text for the layers of pipeline stages.
#pragma once

#include <string>
#include <vector>

namespace brume::interop {

/// Layers of each stage by a text such as "Et*16|(t*15|)*2t*15L": E embedding, t layer, L loss, |
/// between stages, *N behind a character or (...) for N of them; commas mean nothing. Where it has
/// several chunks of layers a stage, a stage has those of its own, as many stages apart.
///
/// @throws Error(input)  for anything else, or where layers and stages are not as many as given
std::vector<int> layers_of_layout(const std::string& layout, int num_layers, int num_stages);

}  // namespace brume::interop
