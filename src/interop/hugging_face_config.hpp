/// @file The config.json of a model.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "interop/safetensors.hpp"
#include "model/model.hpp"

namespace brume::interop {

/// The last architecture of the model's family all of whose properties it has.
const families::Architecture& architecture(const model::Config& config);

/// What config.json says of a model in the words of model::resolved, which reads it.
/// @throws Error(input)  for a model that the library has no counterpart of
nlohmann::json hugging_face_config(const model::Config& config, Dtype dtype);

/// The config.json at `original`, with this dtype and length, where it describes this model: it may
/// say more, such as which tokens begin and end a text. Else a new one.
nlohmann::json hugging_face_config(const model::Config& config, Dtype dtype,
                                   const std::filesystem::path& original);

}  // namespace brume::interop
