/// @file reference.bin: log-probabilities of the answers of pairs by the weights that a run began
/// with. Layout in src/io/README.md.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace brume::io {

struct Reference {
  std::string run;                 ///< name of the run that they are of
  std::string source;              ///< the pairs and the model, in words that differ if either does
  std::string weights;             ///< hash of the weights, as hexadecimal digits
  std::vector<double> train = {};  ///< [nats] numbered as Sampler::window of the training data
  std::vector<double> valid = {};  ///< [nats] numbered as samples of the validation data

  bool operator==(const Reference&) const = default;
};

/// Replaces the file of a run directory. @throws Error(storage)
void write_reference(const std::filesystem::path& directory, const Reference& reference);

/// The file of a run directory; none: it has no such file.
/// @throws Error(storage) when it is damaged or cannot be read
std::optional<Reference> read_reference(const std::filesystem::path& directory);

}  // namespace brume::io
