/// @file The config.json of a model.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <utility>

#include "base/error.hpp"
#include "interop/safetensors.hpp"
#include "model/model.hpp"

namespace brume::interop {

/// The last architecture of the model's family all of whose properties it has.
const families::Architecture& architecture(const model::Config& config);

/// The divisor of attention scores before its root.
double query_scalar(const model::Config& config);

/// @throws Error(input) unless the export has what it needs
template <typename... Args>
void export_needs(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds)
    throw Error(Failure::input, "the Transformers library has no counterpart of this model: {}",
                fmt::format(format, std::forward<Args>(args)...));
}

/// @throws Error(input) for a model that the library has no counterpart of
void check_exportable(const model::Config& config);

/// What config.json says of a model in the words of model::resolved, which reads it.
/// @throws Error(input)  for a model that the library has no counterpart of
nlohmann::json hugging_face_config(const model::Config& config, Dtype dtype);

/// The config.json at `original`, with this dtype and length, where it describes this model: it may
/// say more, such as which tokens begin and end a text. Else a new one.
nlohmann::json hugging_face_config(const model::Config& config, Dtype dtype,
                                   const std::filesystem::path& original);

}  // namespace brume::interop
