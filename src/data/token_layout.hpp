/// @file Where the tokens lie in a file, whichever program wrote it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/descriptor.hpp"
#include "document_table.hpp"

namespace brume::data {

/// `count` tokens of `token_bytes` each, from byte `first_byte` on, little-endian. A negative token
/// of a signed type is a very large one of the unsigned type, so no vocabulary holds it.
struct TokenLayout {
  std::int64_t first_byte = 0;
  std::int64_t count = 0;
  int token_bytes = 0;                                  ///< 1, 2, 4 or 8
  std::shared_ptr<const DocumentTable> documents = {};  ///< none: the format does not say
};

/// Finds the tokens of a file that is not ours, and checks all that its format says about itself.
///
/// @throws Error(input) when its format is unknown, or the file breaks it; the message names the
///                      file
TokenLayout foreign_layout(const std::shared_ptr<const Descriptor>& file,
                           const std::filesystem::path& path);

}  // namespace brume::data
