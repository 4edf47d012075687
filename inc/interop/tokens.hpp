/// @file Packs text into token files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace brume::interop {

struct PackedText {
  std::int64_t train_tokens;
  std::int64_t valid_tokens;
  std::filesystem::path train;
  std::filesystem::path valid;
};

/// Packs files as bytes (vocabulary 256): the text of each file in the given order, cut into blocks
/// of `block_tokens`; an evenly spaced share of the blocks is held out, so both parts see every
/// kind of text.
///
/// @param files        read whole, in order; directories are walked in name order, hidden files
/// skipped
/// @param directory    train.tok and valid.tok are written there, made when missing
/// @param valid_ratio  share held out, 0 <= valid_ratio < 1
/// @throws Error(input) for a file that cannot be read; Error(storage) when writing fails
PackedText pack_bytes(const std::vector<std::filesystem::path>& files,
                      const std::filesystem::path& directory, double valid_ratio,
                      int block_tokens = 4096);

}  // namespace brume::interop
