/// @file Megatron-LM's text for the layers of pipeline stages.
#pragma once

#include <string>
#include <vector>

namespace brume::interop {

/// Layers of the parts that a text names, such as "Et*16|(t*15|)*2t*15L": E embedding, t layer, L
/// loss, | between parts, *N behind a character or (...) for N of them; commas mean nothing. Parts
/// lie on stages in turn.
struct PipelineLayout {
  std::vector<int> layers;
  bool joined = false;  ///< a part between others has no layer, so each number is that of a stage
};

/// @throws Error(input)  for anything else, or where layers and stages are not as many as given
PipelineLayout read_layout(const std::string& layout, int num_layers, int num_stages);

}  // namespace brume::interop
